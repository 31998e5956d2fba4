"""TOML text: what is written is read back, edits keep the rest, lines are right."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.errors import UserError
from infra_agent import tomltext

keys = st.text(min_size=1, max_size=8)
scalars = st.one_of(
    st.booleans(),
    st.integers(min_value=-(2**62), max_value=2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
)
values = st.one_of(scalars, st.lists(st.integers(), max_size=3), st.lists(st.text(max_size=4), max_size=3))
tables = st.dictionaries(keys, values, max_size=4)
documents = st.dictionaries(keys, st.one_of(values, tables), max_size=5)


@given(documents)
def test_a_document_reads_back(data: dict) -> None:
    assert tomllib.loads(tomltext.document(data)) == data


@given(documents, st.dictionaries(keys, st.one_of(st.none(), values, tables.filter(bool)), max_size=4))
def test_an_edit_changes_what_it_names_and_nothing_else(data: dict, changes: dict) -> None:
    expected = dict(data)
    for key, new in changes.items():
        if new is None:
            expected.pop(key, None)
        elif isinstance(new, dict):
            expected[key] = {**(data[key] if isinstance(data.get(key), dict) else {}), **new}
        else:
            expected[key] = new
    assert tomllib.loads(tomltext.edit(tomltext.document(data), changes)) == expected


PROFILE = """\
# The first version.
dtype = "float32"  # honest
max_batch = 4

# operators
[operators]
linear = "torch"   # plain
note = '''
max_batch = 9
'''

[extra]
"""


def test_an_edit_keeps_comments_and_order() -> None:
    edited = tomltext.edit(
        PROFILE, {"max_batch": 16, "threads": 2, "operators": {"linear": "prepacked", "rope": "native"}}
    )
    assert edited == PROFILE.replace("max_batch = 4\n", "max_batch = 16\nthreads = 2\n").replace(
        'linear = "torch"   # plain', 'linear = "prepacked"   # plain'
    ).replace("'''\n\n[extra]", "'''\nrope = \"native\"\n\n[extra]")


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("max_batch",), 3),
        (("operators",), 6),
        (("operators", "note"), 8),
        (("operators", "absent"), 6),
        (("absent",), 1),
    ],
)
def test_the_line_of_a_key(key: tuple[str, ...], line: int) -> None:
    assert tomltext.line_of(PROFILE, key) == line


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb = = 2\n", 2), ("a = 1\n\nb = [1,\n", 3), ("a = 1\na = 2\n", 2)])
def test_broken_toml_names_the_line(text: str, line: int) -> None:
    with pytest.raises(UserError, match=rf"^x\.toml:{line}: not valid TOML: "):
        tomltext.parse(text, "x.toml")
