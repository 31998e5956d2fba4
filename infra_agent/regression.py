"""The regression test inside a patch: it asks the judge about the operator that deviated, and holds no expected value.

It fails on the state that the run began from. That is tried, on a tree with the test alone, before a patch is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from infra_agent import tomltext
from infra_agent.proposers.causes import Facts
from infra_agent.proposers.deviations import PREFIX
from infra_agent.records import RegressionRecord

#: The folder below the target's own in which such tests lie.
FOLDER = "regressions"

#: What one run of a test may take, seconds.
SECONDS = 600.0

#: Answers of a test.
HOLDS, REFUTED = 0, 1

_TEXT = '''"""{operator} cut by {sharding} over {axis} ranks gives what it gives whole.

{story}

It asks `infra-agent probe`, which draws the inputs and knows what is expected. No GPU is needed: Triton kernels are
interpreted with the rounding of hardware where there is none.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[{depth}]
CONFIG = """
{config}"""


def test_{name}() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(CONFIG)
        file.flush()
        asked = ["sharding", "--operator", "{operator}", "--config", file.name, "--base-config", file.name]
        command = [sys.executable, "-P", "-m", "infra_agent", "probe", *asked, "--target", ROOT, "--base", ROOT]
        done = subprocess.run(command, capture_output=True, text=True, timeout={seconds:g})
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
'''


def written(facts: Facts, config: Mapping[str, Any], profile_path: str, observed: str) -> tuple[str, str]:
    """Path and text of the test for a deviation: pure. It lies beside the folder of the target's launch profiles."""
    operator, sharding = str(facts[f"{PREFIX}operator"]), str(facts[f"{PREFIX}sharding"])
    name = re.sub(r"\W+", "_", f"{operator}_{sharding}")
    path = PurePosixPath(profile_path).parent.parent / FOLDER / f"test_{name}.py"
    text = _TEXT.format(
        operator=operator,
        sharding=sharding,
        axis=facts[f"{PREFIX}axis"],
        story=_story(observed),
        depth=len(path.parts) - 1,
        config=tomltext.document(config).replace("\\", "\\\\"),
        name=name,
        seconds=SECONDS,
    )
    return str(path), text


def _story(observed: str) -> str:
    """Why the test is there, as lines of a docstring."""
    plain = " ".join(observed.replace("\\", "/").replace('"', "'").split())
    said = f"A regression test that came with a patch and fails on the state before it: {plain}"
    return textwrap.fill(textwrap.shorten(said, 400, placeholder=" ..."), 116)


def place(facts: Facts) -> str:
    """How the line of a verdict about the deviation goes on after its layer."""
    return f"{facts[f'{PREFIX}operator']}: {facts[f'{PREFIX}sharding']} over {facts[f'{PREFIX}axis']} "


def tried(path: str, base: Path, patched: Path, place: str) -> RegressionRecord:
    """Run the test in two trees. In the one that very `place` has to be refuted, in the other the test has to hold.
    That it could not be asked, or that something else is wrong, is neither.
    """
    before, after = _run(base / path, place), _run(patched / path, place)
    return RegressionRecord(
        path=path,
        base_failed=before[0] == REFUTED,
        patched_passed=after[0] == HOLDS,
        base_line=before[1],
        patched_line=after[1],
    )


def _run(file: Path, place: str) -> tuple[int, str]:
    """What the probe that the test asks said (-1: nothing that counts), and its line."""
    program = (
        "import runpy, sys\n"
        "names = runpy.run_path(sys.argv[1])\n"
        "[names[name]() for name in sorted(names) if name.startswith('test_')]\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, str(file)],
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            env=_environment(),
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {2 * SECONDS:g} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    said = lines[0] if lines else (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    if done.returncode == 0:
        return HOLDS, said
    refuted = "AssertionError" in done.stderr and said.startswith(f"refuted [sharding] {place}")
    return (REFUTED if refuted else -1), said


def _environment() -> dict[str, str]:
    """This process's, with this very package found first: the test starts it again."""
    own = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))}
