import enum
import math
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from flor_keras.errors import StoreError, UsageError
from flor_keras.records import Entry, Position
from flor_keras.store.database import Store
from flor_keras.store.values import encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)
DTYPES = (
    st_np.boolean_dtypes()
    | st_np.integer_dtypes()
    | st_np.unsigned_integer_dtypes()
    | st_np.floating_dtypes()
    | st_np.complex_number_dtypes()
    | st_np.unicode_string_dtypes()
    | st_np.byte_string_dtypes()
    | st_np.datetime64_dtypes()
)


@pytest.fixture(scope="module")
def through_the_store(tmp_path_factory):
    """Return a function that logs a value and reads it back from the file."""
    from flor_keras.records import RunRecord

    store = Store.open(tmp_path_factory.mktemp("values"), create=True)
    store.begin_run(RunRecord("r", None, None, [], 0.0, 1, "h", "0", "/"))
    names = iter(map(str, range(10**9)))

    def through(value):
        name = next(names)
        store.add_entries("r", [Entry(name, value, Position())])
        (entry,) = store.entries("r", [name])
        return entry.value

    yield through
    store.close()


@given(st.floats())
def test_a_float_comes_back_to_the_last_bit(through_the_store, value):
    back = through_the_store(value)
    assert type(back) is float
    assert math.isnan(back) if math.isnan(value) else struct.pack("d", back) == struct.pack("d", value)


@given(st.integers() | st.integers(-(2**63) - 2, -(2**63) + 2) | st.integers(2**63 - 2, 2**64 + 2))
def test_an_integer_of_any_size_comes_back(through_the_store, value):
    back = through_the_store(value)
    assert back == value
    assert type(back) is int


@given(JSON)
def test_json_comes_back_with_its_types(through_the_store, value):
    assert repr(through_the_store(value)) == repr(value)


@given(st.text(st.characters(exclude_categories=())) | st.binary())
def test_any_text_and_bytes_come_back(through_the_store, value):
    assert through_the_store(value) == value


@given(
    DTYPES.flatmap(lambda dtype: st_np.arrays(dtype, st_np.array_shapes(min_dims=1, min_side=0, max_side=3)))
)
def test_an_array_comes_back_to_the_last_bit(through_the_store, value):
    back = through_the_store(value)
    assert back.shape == value.shape
    assert back.dtype.str[1:] == value.dtype.str[1:]
    assert back.tobytes() == value.tobytes()


@given(DTYPES.flatmap(lambda dtype: st_np.arrays(dtype, ())))
def test_a_0d_array_comes_back_as_a_scalar(through_the_store, value):
    back = through_the_store(value)
    assert np.ndim(back) == 0
    assert not isinstance(back, np.ndarray)
    assert np.asarray(back).astype(value.dtype).tobytes() == value.tobytes() or value != value


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_dtypes_numpy_does_not_know_come_back(through_the_store, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    value = np.array([[0, 1, 2]]).astype(dtype)
    back = through_the_store(value)
    assert back.dtype == dtype
    assert back.tobytes() == value.tobytes()
    assert through_the_store(value[0, 2]) == 2


def test_tensors_are_known_by_their_numpy_method(through_the_store):
    class Tensor:
        def __init__(self, value):
            self._value = value

        def numpy(self):
            return self._value

    assert through_the_store(Tensor(np.float32(0.1))) == float(np.float32(0.1))
    assert through_the_store(Tensor(b"text")) == b"text"
    np.testing.assert_array_equal(through_the_store(Tensor(np.arange(3))), np.arange(3))


def test_subclasses_become_the_plain_type(through_the_store):
    class Color(enum.IntEnum):
        RED = 3

    class Word(enum.StrEnum):
        A = "a"

    for value, plain in (
        (Color.RED, 3),
        (Word.A, "a"),
        (np.float64(2), 2.0),
        (np.str_("x"), "x"),
        (np.True_, True),
    ):
        back = through_the_store(value)
        assert back == plain
        assert type(back) is type(plain)
    assert through_the_store({"a": (np.float32(1), np.arange(2))}) == {"a": [1.0, [0, 1]]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "type builtins.object"),
        ({1, 2}, "type builtins.set"),
        (np.array([object()]), "numpy.ndarray of dtype object"),
        ({1: 2}, "int as a key of a dict"),
        ([b"x"], "bytes inside a list"),
        ([object()], "type builtins.object"),
    ],
)
def test_what_cannot_be_stored_is_named(value, message, tmp_path):
    with pytest.raises(UsageError, match=f"{message}.*Supported are"):
        encode(value, tmp_path)


def test_equal_arrays_share_a_file_and_nothing_else_is_left(tmp_path):
    first, second = encode(np.arange(5), tmp_path), encode(np.arange(5), tmp_path)
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == [f"{first[1]}.npy"]


def test_a_damaged_array_is_a_clear_error(through_the_store, tmp_path):
    from flor_keras.store.values import decode

    kind, column = encode(np.arange(5), tmp_path)
    Path(tmp_path, f"{column}.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(StoreError, match="cannot be read"):
        decode(kind, column, tmp_path)
