"""The store: the database, the layout on disk and the values in it. Imports neither TensorFlow nor Keras."""
