"""Looking after a store: what it takes on disk, whether all of it is whole, and giving room back."""
