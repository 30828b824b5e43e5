"""Metrics over any data for epochs of a run that is over, without its program."""
