"""Models out of checkpoints: the graph of a model once per loop, and any epoch of it as a file others can load."""
