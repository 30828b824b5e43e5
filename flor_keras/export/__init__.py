"""Models out of checkpoints: the graph of a model once per loop, and any epoch of it as a file others can load."""

FORMATS = ("saved_model", "keras", "weights.h5", "checkpoint")
