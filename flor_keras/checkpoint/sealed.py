"""JSON that carries the hash of its own text, so that a byte of it that changed on disk is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

_SEAL = ', "seal": "'


def seal(content: Mapping[str, Any]) -> str:
    """Return ``content``, which must not be empty, as JSON with its hash at the end."""
    text = json.dumps(content)
    return f'{text[:-1]}{_SEAL}{_hash(text)}"}}'


def unseal(text: str) -> tuple[Any, bool]:
    """Return what is in JSON, and whether it carries its hash.

    Raises:
      ValueError: the text is not JSON, or not what was sealed.
    """
    content, mark, digest = text.rpartition(_SEAL)
    if not mark:
        return json.loads(text), False
    if digest != f'{_hash(content + "}")}"}}':
        raise ValueError("its text is not what was written")
    return json.loads(f"{content}}}"), True


def _hash(text: str) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())
