"""Checkpoints: shared memory, the forked worker that writes them, and TensorFlow bundles on disk."""
