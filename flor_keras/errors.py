"""The errors flor_keras raises on purpose.

Every message says what happened (with the value), what was expected, and what to type next. The command
line prints the message without a traceback and exits with ``exit_status``.
"""


class FlorError(Exception):
    """Base of all errors raised on purpose by flor_keras."""

    exit_status = 1


class UsageError(FlorError):
    """What was asked for does not exist or does not fit: a run, a name, an epoch, an argument."""

    exit_status = 2


class StoreError(FlorError):
    """The store cannot be opened, read or written."""


class StateError(FlorError):
    """The variables of a program and of a checkpoint do not match."""


class CheckpointError(FlorError):
    """A checkpoint could not be written, or is damaged."""


class ReplayError(FlorError):
    """A replay was refused, or the replayed program failed."""
