"""Checkpoints on disk: every type comes back bit for bit, damage is told, a name means whole."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal

import numpy as np
import pytest

from flor_keras.checkpoint import bundle
from flor_keras.checkpoint.contents import Content, as_tensor, content_of
from flor_keras.checkpoint.held import Held
from flor_keras.checkpoint.sealed import seal
from flor_keras.errors import CheckpointError

pytestmark = pytest.mark.slow

FLOATS = ["float16", "float32", "float64", "bfloat16", "float8_e5m2", "float8_e4m3fn"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FIXED_SIZE = [*FLOATS, *INTEGERS, "bool", "complex64", "complex128"]
SHAPES = [(), (1,), (0,), (3, 0, 2), (7,), (16,), (5, 13), (64, 33)]


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def some_bytes(dtype, shape, tf):
    """Return any bits the type can have, NaN payloads and negative zeros included."""
    native = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    size = int(np.prod(shape)) * native.itemsize
    random = np.random.default_rng(len(dtype) + size)
    return random.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)


@pytest.mark.parametrize("dtype", FIXED_SIZE)
def test_every_type_and_shape_comes_back_bit_for_bit(tf, tmp_path, dtype):
    contents = [
        Content(f"t{at}/a", dtype, shape, some_bytes(dtype, shape, tf)) for at, shape in enumerate(SHAPES)
    ]
    bundle.write(tmp_path / "0-0-end", contents, {}, {})
    read = bundle.read_tensors(tmp_path / "0-0-end")
    for content in contents:
        array = read[content.name]
        assert array.shape == content.shape
        assert tf.as_dtype(array.dtype).name == dtype
        assert array.tobytes() == content.raw.tobytes()


def test_text_comes_back_as_its_bytes(tf, tmp_path):
    words = np.array([b"", b"a", "grün".encode(), b"\0\xff" * 40], dtype=object)
    contents = [
        Content("words", "string", (2, 2), words),
        Content("one", "string", (), np.array([b"x"], dtype=object)),
        Content("none", "string", (0,), np.array([], dtype=object)),
    ]
    bundle.write(tmp_path / "c", contents, {}, {})
    read = bundle.read_tensors(tmp_path / "c")
    assert read["words"].reshape(-1).tolist() == words.tolist()
    assert read["one"] == b"x"
    assert read["none"].shape == (0,)


def test_an_aligned_tensor_is_written_from_its_own_memory(tf):
    raw = np.zeros(4096 + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    content = Content("t", "float32", (1024,), raw[start : start + 4096])
    tensor = as_tensor(content)
    content.raw.view(np.float32)[7] = 3.5
    assert float(tensor[7]) == 3.5


def a_checkpoint(folder, tf):
    contents = [content_of(f"v{at}", tf.random.normal([100, 10])) for at in range(3)]
    bundle.write(folder, contents, {"position": {"loop": 0}}, {"python.pkl": b"pickled"})
    return folder


def test_a_checkpoint_is_a_bundle_tensorflow_reads_by_itself(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    reader = tf.train.load_checkpoint(str(folder / "bundle"))
    ours = bundle.read_tensors(folder)
    assert sorted(reader.get_variable_to_shape_map()) == sorted(ours)
    assert all((reader.get_tensor(name) == array).all() for name, array in ours.items())
    assert (folder / "python.pkl").read_bytes() == b"pickled"


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DATA, INDEX, MANIFEST = "bundle.data-00000-of-00001", "bundle.index", "manifest.json"
DAMAGES = {
    "data cut": (DATA, cut, "is damaged"),
    "data flipped": (DATA, flip, "is damaged"),
    "data gone": (DATA, os.unlink, "is damaged"),
    "data empty": (DATA, lambda path: os.truncate(path, 0), "is damaged"),
    "index cut": (INDEX, cut, "is damaged"),
    "index flipped": (INDEX, flip, "is damaged"),
    "index gone": (INDEX, os.unlink, "is damaged"),
    "index empty": (INDEX, lambda path: os.truncate(path, 0), "is damaged"),
    "manifest gone": (MANIFEST, os.unlink, "its manifest cannot be read"),
    "manifest cut": (MANIFEST, cut, "its manifest cannot be read"),
    "manifest of another kind": (MANIFEST, lambda path: path.write_text("[]"), "its manifest cannot be read"),
    "manifest without tensors": (
        MANIFEST,
        lambda path: path.write_text('{"format": 1}'),
        "its manifest cannot be read",
    ),
    "manifest not text": (
        MANIFEST,
        lambda path: path.write_bytes(b"\xff\xfe\0"),
        "its manifest cannot be read",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_an_error_that_names_it(tf, tmp_path, damage):
    name, harm, message = DAMAGES[damage]
    folder = a_checkpoint(tmp_path / "0-3-end", tf)
    harm(folder / name)
    with pytest.raises(CheckpointError, match=message) as caught:
        bundle.load(folder)
    assert "0-3-end" in str(caught.value)
    assert "flor-keras show" in str(caught.value)


def test_a_flipped_byte_anywhere_in_the_tensors_is_found(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    whole = (folder / DATA).read_bytes()
    for at in range(0, len(whole), 977):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        (folder / DATA).write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            bundle.load(folder)


def test_a_changed_byte_anywhere_in_the_manifest_is_found(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    whole = (folder / MANIFEST).read_bytes()
    for at in range(len(whole)):
        for change in (1, 2, 4, 32):
            damaged = bytearray(whole)
            damaged[at] ^= change
            (folder / MANIFEST).write_bytes(damaged)
            with pytest.raises(CheckpointError):
                bundle.read_manifest(folder)


def test_a_manifest_of_the_first_format_has_no_hash_and_is_read(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    manifest = bundle.read_manifest(folder) | {"format": 1}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert bundle.load(folder).keys() == {"v0", "v1", "v2"}


def test_a_tensor_the_manifest_names_and_the_bundle_has_not_is_damage(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    manifest = bundle.read_manifest(folder)
    manifest["tensors"]["other"] = manifest["tensors"]["v0"]
    (folder / MANIFEST).write_text(seal(manifest))
    with pytest.raises(CheckpointError, match="is damaged"):
        bundle.load(folder)


def test_a_checkpoint_of_a_newer_format_says_to_upgrade(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    (folder / MANIFEST).write_text(json.dumps({"format": 99, "tensors": {}}))
    with pytest.raises(CheckpointError, match=r"has format 99.*pip install --upgrade"):
        bundle.load(folder)


def test_the_same_position_again_replaces_what_was_there(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    bundle.write(folder, [content_of("new", tf.constant([1.0]))], {}, {})
    assert list(bundle.read_tensors(folder)) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_only_wanted_tensors_are_read(tf, tmp_path):
    folder = a_checkpoint(tmp_path / "c", tf)
    assert list(bundle.load(folder, lambda name: name == "v1")) == ["v1"]


def test_a_failed_write_leaves_nothing_behind(tf, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(Exception, match=r"(?i)too large|exhausted"):
            a_checkpoint(tmp_path / "c", tf)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def versions(tf, *changing):
    """Return the tensors of one checkpoint: a large one and a vocabulary that stay, and ``changing``."""
    words = np.array([f"word {at}" for at in range(1000)], dtype=object)
    return [
        content_of("frozen", tf.range(5000)),
        Content("words", "string", (1000,), words),
        content_of("free", tf.fill([5000], changing[0])),
        content_of("scalar", tf.constant(1)),
    ]


def bundles(folder):
    return {name: found["bundle"] for name, found in bundle.read_manifest(folder)["tensors"].items()}


def test_what_did_not_change_is_not_written_again_and_reads_the_same(tf, tmp_path):
    held, all_bytes = Held(), []
    for epoch in range(4):
        contents = versions(tf, 7 if epoch == 3 else epoch)  # epoch 2 and 3 differ
        written = bundle.write(tmp_path / str(epoch), contents, {}, {}, held)
        all_bytes.append(written)
        assert bundle.read_tensors(tmp_path / str(epoch)).keys() == {"frozen", "words", "free", "scalar"}
    assert all_bytes[0].shared_bytes == 0
    assert {written.shared_bytes for written in all_bytes[1:]} == {
        20000 + sum(len(f"word {n}") for n in range(1000)) + 4
    }
    # The bundle that holds the bytes is named, not the one before: there is no chain.
    assert bundles(tmp_path / "3") == {"frozen": "../0", "words": "../0", "free": ".", "scalar": "../0"}
    read = bundle.read_tensors(tmp_path / "3")
    assert read["frozen"].tolist() == list(range(5000)) and read["words"][-1] == b"word 999"
    assert set(read["free"].tolist()) == {7}


def test_small_things_alone_keep_no_older_checkpoint_on_the_disk(tf, tmp_path):
    held = Held()
    for epoch in range(3):
        contents = [content_of("free", tf.fill([5000], epoch)), content_of("rate", tf.constant(0.1))]
        bundle.write(tmp_path / str(epoch), contents, {}, {}, held)
        assert set(bundles(tmp_path / str(epoch)).values()) == {"."}


def test_a_checkpoint_in_which_nothing_changed_takes_a_manifest_only(tf, tmp_path):
    held, contents = Held(), [content_of("frozen", tf.range(5000))]
    bundle.write(tmp_path / "0", contents, {}, {}, held)
    bundle.write(tmp_path / "1", contents, {}, {}, held)
    assert [path.name for path in (tmp_path / "1").iterdir()] == [MANIFEST]
    assert bundle.read_tensors(tmp_path / "1")["frozen"].tolist() == list(range(5000))


def test_what_is_no_longer_there_or_another_type_is_written_again(tf, tmp_path):
    held, contents = Held(), versions(tf, 0)
    bundle.write(tmp_path / "0", contents, {}, {}, held)
    bundle.write(tmp_path / "0", contents, {}, {}, held)  # in place of the one it would refer to
    assert set(bundles(tmp_path / "0").values()) == {"."}
    same_bits = contents[0]._replace(dtype="float32")
    bundle.write(tmp_path / "1", [same_bits, *contents[1:]], {}, {}, held)
    assert bundles(tmp_path / "1") == {"frozen": ".", "words": "../0", "free": "../0", "scalar": "../0"}
    shutil.rmtree(tmp_path / "0")
    bundle.write(tmp_path / "2", contents, {}, {}, held)
    assert set(bundles(tmp_path / "2").values()) == {"."}
    assert bundle.read_tensors(tmp_path / "2")["words"][-1] == b"word 999"


def test_a_missing_older_checkpoint_is_told(tf, tmp_path):
    held = Held()
    for epoch in range(2):
        bundle.write(tmp_path / str(epoch), versions(tf, epoch), {}, {}, held)
    shutil.rmtree(tmp_path / "0")
    with pytest.raises(CheckpointError, match="damaged"):
        bundle.load(tmp_path / "1")


def test_a_large_bundle_has_shards_that_tensorflow_reads(tf, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_SHARD_BYTES", 1000)
    contents = versions(tf, 3)
    bundle.write(tmp_path / "c", contents, {}, {})
    assert len(list((tmp_path / "c").glob("bundle.data-*-of-00004"))) == 4
    reader = tf.train.load_checkpoint(str(tmp_path / "c" / "bundle"))
    assert reader.get_tensor("frozen").tolist() == list(range(5000))
    assert bundle.read_tensors(tmp_path / "c")["words"][3] == b"word 3"
