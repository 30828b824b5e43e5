"""A file of which only what is written takes room reads as any other file in memory does."""

from __future__ import annotations

import io
import random

from flor_keras.export.scattered import Scattered


def test_it_reads_as_a_plain_file_in_memory_does():
    draw = random.Random(1)
    ours, theirs = Scattered(), io.BytesIO()
    for _ in range(2000):
        at, size = draw.randrange(30_000), draw.choice([0, 1, 7, 4096, 9000])
        match draw.choice(["write", "write", "read", "truncate", "end"]):
            case "write":
                content = draw.randbytes(size)
                assert (ours.seek(at), ours.write(content)) == (theirs.seek(at), theirs.write(content))
            case "read":
                assert (ours.seek(at), ours.read(size)) == (theirs.seek(at), theirs.read(size))
            case "truncate" if at >= len(theirs.getvalue()):  # HDF5 only makes files longer
                ours.truncate(at)
                theirs.seek(0, io.SEEK_END)
                theirs.write(bytes(at - theirs.tell()))
            case "end":
                assert ours.seek(-1, io.SEEK_END) == theirs.seek(-1, io.SEEK_END) if ours.num_bytes else True
    ours.seek(0)
    assert ours.read(ours.num_bytes) == theirs.getvalue()


def test_what_is_not_written_takes_no_room():
    file = Scattered()
    file.seek(10**12)
    file.write(b"end")
    assert file.num_bytes == 10**12 + 3
    assert len(file._pages) == 1
    file.seek(10**12 - 2)
    assert file.read(100) == b"\0\0end"
