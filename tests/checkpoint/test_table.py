"""The index of a bundle as TensorFlow writes it is read, and one written here is read by TensorFlow."""

from __future__ import annotations

import pytest

from flor_keras.checkpoint.table import TableError, crc32c, masked, read_table, write_table

ENTRIES = {f"model/layer_{at // 3}/{at}".encode(): bytes([at % 256]) * (at % 300) for at in range(500)}


def test_what_was_written_is_read(tmp_path):
    write_table(tmp_path / "index", {b"": b"header", **ENTRIES})
    assert read_table(tmp_path / "index") == {b"": b"header", **ENTRIES}


def test_checksums_are_those_of_the_standard():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert masked(0) == 0xA282EAD8


def test_any_changed_byte_is_found(tmp_path):
    write_table(tmp_path / "index", ENTRIES)
    content = (tmp_path / "index").read_bytes()
    footer = len(content) - 48
    for at in [*range(0, footer, 997), footer - 1, footer, footer + 2, len(content) - 1]:
        spoilt = bytearray(content)
        spoilt[at] ^= 0x55
        (tmp_path / "index").write_bytes(spoilt)
        try:
            found = read_table(tmp_path / "index")
        except TableError:
            continue
        assert found == ENTRIES, at  # the place of the filters, which nobody reads


@pytest.mark.parametrize("length", [0, 10, 47, 48, 1000])
def test_a_table_that_is_cut_off_is_refused(tmp_path, length):
    write_table(tmp_path / "index", ENTRIES)
    (tmp_path / "index").write_bytes((tmp_path / "index").read_bytes()[:length])
    with pytest.raises(TableError):
        read_table(tmp_path / "index")


@pytest.mark.slow
def test_tensorflow_and_we_read_what_the_other_writes(tmp_path):
    tf = pytest.importorskip("tensorflow")
    import numpy as np

    from flor_keras.checkpoint.mapped import array_of, map_bundle, write_mapped

    tensors = {f"model/layer_{at}/kernel": tf.random.normal([at % 7, 3]) for at in range(6000)}  # two blocks
    tensors |= {"text": tf.constant(["a", "", "grün" * 50]), "scalar": tf.constant(7, tf.int64)}
    tensors |= {"half": tf.constant([1.5], tf.bfloat16), "flags": tf.constant([True, False, True])}
    prefix = str(tmp_path / "theirs")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    mapped = map_bundle(tmp_path / "theirs")
    assert mapped.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if name != "text":
            assert np.array_equal(array_of(mapped[name]), tensor.numpy())
    write_mapped(tmp_path / "ours", {f"renamed/{name}": mapped[name] for name in reversed(mapped)})
    read = tf.train.load_checkpoint(str(tmp_path / "ours"))
    assert read.get_variable_to_shape_map().keys() == {f"renamed/{name}" for name in tensors}
    for name, tensor in tensors.items():
        assert np.array_equal(read.get_tensor(f"renamed/{name}"), tensor.numpy()), name
    again = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "ours"),
        tensor_names=["renamed/text"],
        shape_and_slices=[""],
        dtypes=[tf.string],
    )
    assert again[0].numpy().tolist() == tensors["text"].numpy().tolist()
