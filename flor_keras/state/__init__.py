"""The state of a training program: finding it, naming it, copying it out and putting it back."""
