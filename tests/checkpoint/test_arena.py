"""The arena lays tensors out and shares them between processes."""

from __future__ import annotations

import os

import numpy as np

from flor_keras.checkpoint.arena import ALIGNMENT, Arena, lay_out


def tensors(*sizes: int):
    return [(f"t{at}", "uint8", (size,), size) for at, size in enumerate(sizes)]


def test_slots_are_aligned_and_do_not_overlap():
    layout = lay_out(tensors(1, 64, 65, 0, 3))
    assert [slot.offset % ALIGNMENT for slot in layout.slots] == [0] * 5
    ends = [slot.offset + slot.num_bytes for slot in layout.slots]
    assert all(end <= slot.offset for end, slot in zip(ends[:-1], layout.slots[1:], strict=True))
    assert layout.num_bytes >= ends[-1]


def test_a_state_of_nothing_has_an_arena_too():
    layout = lay_out([])
    arena = Arena(layout.num_bytes)
    assert arena.fits(layout)
    arena.close()


def test_what_one_process_writes_another_sees_without_a_copy():
    layout = lay_out(tensors(100_000, 7))
    arena = Arena(layout.num_bytes)
    pid = os.fork()
    if pid == 0:
        attached = Arena.attach(os.dup(arena.descriptor))
        attached.view(layout.slots[1])[:] = 42
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert arena.view(layout.slots[1]).tolist() == [42] * 7
    assert not arena.view(layout.slots[0]).any()
    arena.close()


def test_a_view_outlives_the_arena_it_is_of():
    layout = lay_out(tensors(5000))
    arena = Arena(layout.num_bytes)
    view = arena.view(layout.slots[0])
    view[:] = 1
    arena.close()
    assert view.sum() == 5000


def test_an_arena_fits_up_to_its_size_and_not_beyond():
    arena = Arena(10_000_000)
    assert arena.fits(lay_out(tensors(10_000_000)))
    assert not arena.fits(lay_out(tensors(11_000_000)))
    arena.close()


def test_the_pages_are_there_before_the_first_copy():
    arena = Arena(32 << 20)
    slot = lay_out(tensors(32 << 20)).slots[0]
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.copyto(arena.view(slot), 1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    arena.close()
    assert faults < (32 << 20) / os.sysconf("SC_PAGE_SIZE") / 20
