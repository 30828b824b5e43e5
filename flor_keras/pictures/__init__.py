"""What was logged, for the eye: plots with matplotlib, event files for TensorBoard. Both are optional extras."""
