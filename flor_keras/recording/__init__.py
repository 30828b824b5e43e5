"""Recording: one run of a training program into a store. Runs in the training process."""
