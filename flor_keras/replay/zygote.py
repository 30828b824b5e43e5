"""The process replay workers are forked from: TensorFlow and Keras imported, no operation executed.

Importing them costs seconds per process; a fork of this one has them at once. Forking is safe until TensorFlow starts its
threads, which the first operation does. Started as ``python -m flor_keras.replay.zygote DESCRIPTOR``; requests come
through that socket, one at a time, and each is answered by a number in a line:

    {"start": WORDS, "changes": {…}}  with two descriptors, for events and for output: the worker's pid
    {"wait": PID}                     its exit status, negative for a signal

When the other end is closed, all workers are ended. Each is guarded, confined and seeded after the fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import signal
import socket
import sys
import time
from typing import Any

from flor_keras.replay import worker

_WAIT_SECS = 5.0
_MAX_REQUEST_BYTES = 1 << 20


def main(descriptor: int) -> None:
    """Serve until the other end of the socket is closed."""
    import keras
    import numpy as np
    import tensorflow as tf

    del keras, np, tf
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page of what is imported
    requests = socket.socket(fileno=descriptor)
    requests.set_inheritable(False)
    children: set[int] = set()
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 2)
        if not text:
            break
        request = json.loads(text)
        if "start" in request:
            answer = _fork(request, descriptors, requests)
            children.add(answer)
        else:
            answer = _wait(request["wait"])
            children.discard(request["wait"])
        with contextlib.suppress(OSError):
            requests.sendall(f"{answer}\n".encode())
    for pid in children:
        _kill(pid)
        os.waitpid(pid, 0)


def _fork(request: dict[str, Any], descriptors: list[int], requests: socket.socket) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            requests.close()
            worker.die_with(parent)
            _become_worker(request, descriptors)
        finally:
            os._exit(70)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def _become_worker(request: dict[str, Any], descriptors: list[int]) -> None:
    events, output = descriptors
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(request["changes"])
    _draw_fresh_random_states()
    faulthandler.enable()
    worker.main([*request["start"], str(events)])


def _draw_fresh_random_states() -> None:
    """A fork inherits the states; a program of its own would have fresh ones."""
    import numpy as np

    random.seed()
    np.random.seed()


def _wait(pid: int) -> int:
    """Return the exit status of a worker that has said its last word; end it by force if it lingers."""
    deadline = time.monotonic() + _WAIT_SECS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    _kill(pid)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
