"""Replay: a plan in the caller's process, the program run again in a worker process, what it logs in the store."""
