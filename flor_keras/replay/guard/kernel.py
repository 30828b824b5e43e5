"""The kernel as the last net: Landlock lets a process give up writing outside some folders, for good.

Stops what no patch sees: C and C++ code with its own file calls (HDF5 links, CUDA caches, TensorFlow graphs
that carry a file name). They get "permission denied"; nothing lists it. It cannot stop chmod and utime.
https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import posix
from collections.abc import Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE = 1 << 1
_TRUNCATE = 1 << 14
_BY_ABI = {  # rights that change something, and the Landlock version that brought them
    1: _WRITE_FILE | sum(1 << bit for bit in range(4, 13)),  # remove and make, of every kind
    2: 1 << 13,  # link and rename between folders
    3: _TRUNCATE,
}


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def confine_writes(allowed: Sequence[Path]) -> bool:
    """Give up writing outside `allowed` and /dev, for this thread and all it starts; say whether it worked.

    Call it before other threads run. It cannot be undone. False where the kernel has no Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return False
    rights = sum(bits for since, bits in _BY_ABI.items() if since <= abi)
    asked = _Ruleset(rights)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(asked), ctypes.c_size_t(ctypes.sizeof(asked)), 0)
    if ruleset < 0:
        return False
    try:
        folders = [*map(os.fspath, allowed), "/dev", "/proc"]
        added = [_allow(libc, ruleset, folder, rights) for folder in folders]
        no_new_rights = libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0)))
        return all(added) and no_new_rights == 0 and libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        posix.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> bool:
    """Add one rule. A file takes only the rights that files have."""
    folder = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)
    try:
        granted = rights if os.path.isdir(path) else rights & (_WRITE_FILE | _TRUNCATE)
        rule = _PathBeneath(granted, folder)
        return bool(libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0) == 0)
    finally:
        posix.close(folder)
