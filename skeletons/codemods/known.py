"""Names of torch functions and methods by what they do (`pure_names.toml`)."""

from __future__ import annotations

import tomllib
from pathlib import Path

_LISTS = tomllib.loads((Path(__file__).parent / "pure_names.toml").read_text(encoding="utf-8"))
_NAMES = {key: frozenset(text.split()) for key, text in _LISTS.items()}

BUFFERS, VIEWS, BUILTINS = _NAMES["buffers"], _NAMES["views"], _NAMES["builtins"]
FUNCTIONS = _NAMES["functions"] | BUFFERS
METHODS = (FUNCTIONS - {"device", "Size", "finfo", "iinfo"}) | _NAMES["methods"]

#: Methods whose result never shares memory with their tensor.
FRESH = (_NAMES["functions"] | BUFFERS) - frozenset(
    ["as_tensor", "diagonal", "broadcast_to", "view_as_complex", "view_as_real"]
)
