"""The regression test that goes into a patch: its text, and what running it in two trees means."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

from infra_agent.regression import tried
from infra_agent.regression import written as text_of
from tests.infra_agent.test_deviations import cut, facts

PROFILE = "engine/profiles/run.toml"
CONFIG: dict[str, Any] = {"model": 'a "quoted" \\ path', "cp": 2, "operators": {"merge": "triton"}}


def written(observed: str = "merge deviates") -> tuple[str, str]:
    return text_of(facts(cut()), CONFIG, PROFILE, observed)


@pytest.mark.parametrize("observed", ["merge deviates", 'he said """no"""', "back\\slash", "x " * 400, "two\nlines"])
def test_the_text_is_python_that_holds_the_launch_configuration(observed: str) -> None:
    path, text = written(observed)
    assert path == "engine/regressions/test_kda_chunk_context.py"
    tree = ast.parse(text)
    names = {}
    exec(compile(ast.Module(body=[n for n in tree.body if isinstance(n, ast.Assign)], type_ignores=[]), "x", "exec"),
         {"Path": Path, "__file__": "/root/engine/regressions/test_kda_chunk_context.py"}, names)  # fmt: skip
    assert tomllib.loads(names["CONFIG"]) == CONFIG
    assert names["ROOT"] == Path("/root")
    assert max(len(line) for line in text.split("\n")) <= 120
    assert "kda_chunk" in text
    assert [n.name for n in tree.body if isinstance(n, ast.FunctionDef)] == ["test_kda_chunk_context"]


def test_it_asks_the_judge_and_knows_no_value() -> None:
    _, text = written()
    assert '"-m", "infra_agent", "probe"' in text
    assert '"--operator", "kda_chunk"' in text


SAYS = "def test_it():\n    print({line!r})\n    assert {passes}\n"
FAILS = SAYS.format(line="refuted [sharding] x: y over z 2: wrong", passes=False)
PASSES = SAYS.format(line="confirmed [sharding] as it should", passes=True)


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        (
            SAYS.format(line="refuted [sharding] x: y over z 2: wrong", passes=False),
            SAYS.format(line="confirmed x", passes=True),
            True,
        ),
        (FAILS, PASSES, True),
        (PASSES, PASSES, False),
        (FAILS, FAILS, False),
        (SAYS.format(line="refuted [sharding] protected file", passes=False), PASSES, False),
        (SAYS.format(line="unsupported x", passes=False), PASSES, False),
        ("import no_such_module_anywhere\n", PASSES, False),
        ("def test_it(:\n", PASSES, False),
        (FAILS, "raise SystemExit(3)\n", False),
    ],
)
def test_it_holds_only_when_the_base_is_refuted_and_the_patch_is_not(
    tmp_path: Path, before: str, after: str, holds: bool
) -> None:
    for name, text in (("base", before), ("patched", after)):
        (tmp_path / name / "t").mkdir(parents=True)
        (tmp_path / name / "t" / "test_it.py").write_text(text)
    record = tried("t/test_it.py", tmp_path / "base", tmp_path / "patched", "x: y over z ")
    assert record.holds is holds
    assert record.base_line
    assert record.patched_line
