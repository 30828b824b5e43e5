"""Tensors mapped from checkpoints are those TensorFlow reads, wherever they lie, and nothing damaged is mapped."""

from __future__ import annotations

import numpy as np
import pytest

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.contents import Content, content_of
from flor_keras.checkpoint.held import Held
from flor_keras.checkpoint.mapped import array_of, map_checkpoint, write_mapped
from flor_keras.errors import CheckpointError

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A checkpoint in several shards, which has half of its tensors in an older one; and TensorFlow."""
    tf = pytest.importorskip("tensorflow")
    monkeypatch.setattr(bundle, "_SHARD_BYTES", 3000)
    held = Held()
    for epoch in range(2):
        changing = [content_of(f"free/{at}", tf.random.normal([30 + at, 40])) for at in range(5)]
        odd = [
            content_of("a", tf.constant([True, False, True])),
            content_of("half", tf.ones([7], tf.bfloat16)),
        ]
        words = np.array([f"word {at}" for at in range(1000)], dtype=object)
        frozen = [content_of(f"frozen/{at}", tf.range(2000 + at)) for at in range(5)]
        texts = [Content("words", "string", (1000,), words)]
        bundle.write(tmp_path / str(epoch), [*odd, *frozen, *changing, *texts], {}, {}, held)
    assert len(list((tmp_path / "1").glob("bundle.data-*"))) > 1
    return tmp_path / "1", tf


def test_tensors_of_all_shards_and_of_older_checkpoints_go_into_another_bundle_unchanged(
    checkpoint, tmp_path
):
    folder, tf = checkpoint
    tensors = bundle.load(folder)
    mapped = map_checkpoint(folder, lambda name: True)
    assert mapped.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if name != "words":
            assert np.array_equal(array_of(mapped[name]), tensor.numpy()), name
    write_mapped(tmp_path / "out", {f"other/{name}": at for name, at in mapped.items()})
    reader = tf.train.load_checkpoint(str(tmp_path / "out"))
    for name, tensor in tensors.items():
        assert np.array_equal(reader.get_tensor(f"other/{name}"), tensor.numpy()), name


def test_only_wanted_tensors_are_mapped(checkpoint):
    folder, _ = checkpoint
    assert list(map_checkpoint(folder, "frozen/3".__eq__)) == ["frozen/3"]
    assert map_checkpoint(folder, lambda name: False) == {}


def test_a_changed_byte_of_any_own_shard_is_found(checkpoint):
    folder, _ = checkpoint
    for path in folder.glob("bundle.data-*"):
        whole = path.read_bytes()
        for at in range(0, len(whole), 379):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(CheckpointError, match="damaged"):
                map_checkpoint(folder, lambda name: True)
        path.write_bytes(whole)


def test_a_changed_byte_of_the_index_is_found_or_changes_nothing(checkpoint):
    folder, _ = checkpoint
    before = map_checkpoint(folder, lambda name: True)
    path, num_found = folder / "bundle.index", 0
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            found = map_checkpoint(folder, lambda name: True)
        except CheckpointError:
            num_found += 1
        else:
            assert found.keys() == before.keys()
            assert all(found[name].entry == before[name].entry for name in before)
    assert num_found > 0.8 * len(whole) / 3  # but the padding, and where the filters lie


def test_a_changed_byte_of_a_value_that_lies_in_the_older_checkpoint_is_found(checkpoint, tmp_path):
    folder, tf = checkpoint
    (path, at) = next(
        (path, at)
        for path in (tmp_path / "0").glob("bundle.data-*")
        if (at := path.read_bytes().find(tf.range(2003).numpy().tobytes())) >= 0
    )
    whole = path.read_bytes()
    path.write_bytes(whole[: at + 4000] + bytes([whole[at + 4000] ^ 1]) + whole[at + 4001 :])
    with pytest.raises(CheckpointError, match="'frozen/3' are not those that were recorded"):
        map_checkpoint(folder, "frozen/3".__eq__)
    assert map_checkpoint(folder, "free/3".__eq__)
