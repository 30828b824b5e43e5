"""Every private use has its test."""

from pathlib import Path

from flor_keras import keras_internals

TESTS = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))


def test_every_private_use_is_tested_here():
    assert [name for name in keras_internals.__all__ if f"keras_internals.{name}" not in TESTS] == []
