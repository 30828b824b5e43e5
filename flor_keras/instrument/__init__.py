"""Understand a training program from its source text. Nothing in here runs the program or imports TensorFlow.

``loglines``  which lines log a name, at what level, reachable from where
``changes``   what differs between two versions of a program, apart from log lines, metrics and callbacks
``sources``   which files belong to a program
"""
