"""The launch configuration: shipped profiles, exact errors, and a launch space that only holds what can start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from target_engine.errors import EngineError
from target_engine.launch import LAUNCH_SPACE, PROFILES, LaunchConfig, launch_space, problems


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_profile_is_valid(path: Path) -> None:
    assert LaunchConfig.load(path) == LaunchConfig.load(path.stem)


def test_the_first_run_is_plain() -> None:
    config = LaunchConfig.load("first_run")
    assert (config.dtype, config.max_batch, config.prefix_cache) == ("float32", 4, False)
    assert set(config.operators.values()) <= {"torch"}
    assert LaunchConfig.load("sequential").max_batch == 1


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('dtype = "float32"\nmax_batch = "four"\n', 2, ["max_batch", "'four'"]),
        ('# comment\n\ndtype = "int4"\n', 3, ["dtype", "'int4'", "float32"]),
        ("max_batch = 4\nslots = 3\n", 2, ["slots", "unknown parameter", "max_batch"]),
        ('threads = 1\n[operators]\nlinear = "torch"\nrms_norm = "magic"\n', 4, ["rms_norm", "'magic'", "torch"]),
        ('[operators]\nattention = "torch"\n', 2, ["attention", "unknown operator", "attention_decode"]),
        ("max_model_len = 512\nnum_blocks = 4\n", 2, ["num_blocks", "64 tokens", "at least 32"]),
        ("max_batch = 0\n", 1, ["max_batch", "0"]),
        ("prefix_cache = 1\n", 1, ["prefix_cache"]),
    ],
)
def test_an_error_names_file_line_and_parameter(tmp_path: Path, text: str, line: int, words: list[str]) -> None:
    path = tmp_path / "launch.toml"
    path.write_text(text)
    with pytest.raises(EngineError) as caught:
        LaunchConfig.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_files_that_are_no_profile(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("max_batch = = 3\n")
    with pytest.raises(EngineError, match=r"not valid TOML.*line 1"):
        LaunchConfig.load(broken)
    with pytest.raises(EngineError, match="cannot be read"):
        LaunchConfig.load(tmp_path / "absent.toml")
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(EngineError, match="cannot be read"):
        LaunchConfig.load(broken)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5000) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from([*LaunchConfig.model_fields, "surprise"]), JSON, max_size=6))
def test_any_values_either_start_or_have_a_named_problem(values: dict) -> None:
    found = problems(values)
    if found:
        assert all(parameter and message and "\n" not in message for parameter, message in found)
        with pytest.raises(EngineError):
            LaunchConfig.parse(values)
    else:
        assert LaunchConfig.parse(values).kv_blocks * LaunchConfig.parse(values).block_size >= 2


def test_every_point_of_the_launch_space_is_valid() -> None:
    for parameter in launch_space():
        for value in parameter.values:
            table, dot, operator = parameter.name.partition(".")
            values = {table: {operator: value}} if dot else {parameter.name: value}
            assert problems(values) == [], parameter.name
        assert parameter.default in parameter.values
        assert parameter.doc
    assert [parameter.name for parameter in LAUNCH_SPACE if parameter.changes_numerics] == ["dtype"]


def test_blocks_are_derived_for_every_slot() -> None:
    assert LaunchConfig(max_batch=3, block_size=16, max_model_len=100).kv_blocks == 3 * 7
    assert LaunchConfig(num_blocks=900).kv_blocks == 900


def test_validation_needs_no_torch() -> None:
    code = (
        "import sys; from target_engine.adapter import create; target = create();"
        "assert target.validate_config({'dtype': 'int4'}) and not target.validate_config({});"
        "target.describe(); target.files(); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
