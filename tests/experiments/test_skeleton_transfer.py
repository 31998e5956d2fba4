"""The judge of skeleton transfer: it notices what is wrong, what was not run, and what names a path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.skeleton_transfer import experiment, verify
from experiments.skeleton_transfer.paths_named import marks, named, texts_below
from experiments.skeleton_transfer.trials import TRIALS, Trial
from feedback.errors import UserError
from infra_agent.experiments import Context, execute, find
from skeletons.library import SHIPPED, Library
from skeletons.transfer import Transfer, transfer


@pytest.fixture(scope="module")
def library() -> Library:
    return Library.load(user=Path("/nonexistent"))


def trial(skeleton: str, kind: str) -> Trial:
    return next(t for t in TRIALS if (t.skeleton, t.kind) == (skeleton, kind))


def answer(**changes: object) -> dict:
    return {"error": 1e-7, "values": 12, "problem": "", "changed": ["f:1"], "ran": ["f:1"], **changes}


def test_every_code_skeleton_has_a_variant_a_library_module_and_a_counterexample(library: Library) -> None:
    wanted = {(name, kind) for name in experiment.code_skeletons(library) for kind in experiment.KINDS}
    assert wanted <= {(t.skeleton, t.kind) for t in TRIALS}
    for each in TRIALS:
        assert (each.reason != "") == (each.kind == "counterexample")


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "transformed"),
        ({"error": 1e-3}, "WRONG"),
        ({"error": float("inf")}, "WRONG"),
        ({"error": float("nan")}, "WRONG"),
        ({"problem": "y: float32 where float64 was"}, "WRONG"),
        ({"ran": []}, "NOT RUN"),
        ({"values": 0}, "NOT RUN"),
    ],
)
def test_a_comparison_is_judged(changes: dict, outcome: str) -> None:
    found = verify.judged(trial("library_kernel_for_rms", "variant"), 1, answer(**changes))
    assert (found.outcome, found.ok) == (outcome, outcome == "transformed")


def test_changed_lines_are_those_that_the_new_text_added() -> None:
    assert verify.changed_lines("a\nb\nc\n", "a\nx\nc\ny\n") == [2, 4]
    assert verify.changed_lines("a\nb\n", "a\n") == []
    assert verify.changed_lines("", "a\nb\n") == [1, 2]


def test_what_names_a_file_of_the_target_is_found_and_what_does_not_is_not() -> None:
    wanted = marks("engine", ["engine/ops/norm/torch.py", "engine/ops/norm/__init__.py", "engine/models/llama.py"])
    texts = {
        "package": "import engine.launch",
        "path": "see ops/norm/torch.py",
        "tail": '"norm/torch.py"',
        "module": "from ops.norm.torch import x",
        "innocent": "torch.nn.functional.rms_norm of an engineer, models, a norm",
    }
    assert set(named(texts, wanted)) == {"package", "path", "tail", "module"}


def test_the_shipped_skeletons_are_read() -> None:
    texts = texts_below(SHIPPED)
    assert any(name.endswith("transform.py") for name in texts)
    assert named({"x": "the target_engine/models/llama.py"}, marks("target_engine", []))


def test_claims_need_every_skeleton() -> None:
    good = [verify.Outcome(t, "transformed", True) for t in TRIALS]
    names = sorted({t.skeleton for t in TRIALS})
    assert all(experiment.told(good, {}, names, partial=False).claims.values())
    assert not all(experiment.told(good[1:], {}, names, partial=False).claims.values())
    bad = [replace(good[0], outcome="WRONG", ok=False), *good[1:]]
    assert not all(experiment.told(bad, {}, names, partial=False).claims.values())
    assert not all(experiment.told(good, {"x": ["y"]}, names, partial=False).claims.values())


def test_a_variant_is_transformed_and_run_and_its_counterexample_declined(library: Library, tmp_path: Path) -> None:
    found = verify.attempt(library, trial("hoist_invariant_work", "variant"), tmp_path)
    assert (found.outcome, found.error) == ("transformed", 0.0), found.note
    assert any(name.startswith("Integrator.integrate") for name in found.ran)
    declined = verify.attempt(library, trial("hoist_invariant_work", "counterexample"), tmp_path)
    assert declined.ok, declined.note


def test_a_wrong_transformation_is_noticed(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*arguments: Any, **more: Any) -> Transfer:
        done = transfer(*arguments, **more)
        files = {path: text.replace("), gain, least)", "), gain * 1.001, least)") for path, text in done.files.items()}
        return replace(done, files=files)

    monkeypatch.setattr(verify, "transfer", damaged)
    found = verify.attempt(library, trial("library_kernel_for_rms", "variant"), tmp_path)
    assert (found.outcome, found.ok) == ("WRONG", False)


def test_a_check_that_breaks_is_no_pass(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "CHECKS", tmp_path)
    found = verify.attempt(library, trial("hoist_invariant_work", "variant"), tmp_path)
    assert (found.outcome, found.ok) == ("BROKEN", False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        {"kinds": "variant,counterexample"},
        # Whole modules out of libraries take minutes: the experiment tries them all.
        {"kinds": "library", "only": "explicit_product_precision,native_row_kernels"},
    ],
    ids=["written for it", "out of libraries"],
)
def test_skeletons_transfer(tmp_path: Path, options: dict[str, str]) -> None:
    result, _ = execute(find("skeleton_transfer"), tmp_path / "out", lambda line: None, options=options)
    failing = [row for row in result.rows if row[6] != "yes"]
    assert result.rows
    assert all(result.claims.values()), (failing, result.notes)


def test_unknown_kinds_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kinds: name some of variant, library, counterexample"):
        experiment.run(Context(tmp_path, lambda line: None, options={"kinds": "module"}))


def test_options_narrow_it_down(tmp_path: Path) -> None:
    context = Context(tmp_path, lambda line: None, options={"only": "no_such_skeleton"})
    assert not all(experiment.run(context).claims.values())
