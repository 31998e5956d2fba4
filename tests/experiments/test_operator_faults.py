"""The corpus fits the engine, mutants are what they say, and a campaign counts, places and remembers them rightly."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.operator_faults import campaign, conclusions
from experiments.operator_faults.absent import ABSENT
from experiments.operator_faults.corpus import RECORDS
from experiments.operator_faults.equivalence import Compared
from experiments.operator_faults.experiment import recorded
from experiments.operator_faults.faults import OPS, Edit, Fault, NotThere, Record
from experiments.operator_faults.kinds import KINDS
from experiments.operator_faults.layers import Answer, adequate, localised
from experiments.operator_faults.mutants import bytecode, changes, mutants, sampled
from experiments.operator_faults.scenarios import scenarios
from experiments.operator_faults.steps import place_of, steps_from
from infra_agent.experiments import Context, execute, find
from target_engine.adapter import _role
from target_engine.ops.registry import operator_names, specification

LAYERS = {"operators", "sharding", "kernels", "schedules", "sharded_model"}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    files = sorted((root / "target_engine").rglob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in files}


@pytest.fixture(scope="module")
def made(sources: dict[str, str]) -> list[Fault]:
    return mutants(sources)


# The corpus


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_fits_the_engine_once_and_changes_code_that_may_be_changed(
    record: Record, sources: dict[str, str]
) -> None:
    fault = record.planted(sources)
    assert set(fault.files) == {edit.path for edit in record.edits}
    for path, text in fault.files.items():
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(sources[path]))
        assert _role(path.removeprefix("target_engine/")) == "editable", f"{path} defines what right means"
    assert record.layer in LAYERS
    assert record.source == "lecture" or "#" in record.source
    assert sources[fault.path].splitlines()[fault.line - 1].strip()


def test_the_corpus_is_large_enough_and_names_places_that_there_are(sources: dict[str, str]) -> None:
    assert len({record.name for record in RECORDS}) == len(RECORDS)
    assert sum(record.source != "lecture" for record in RECORDS) >= 25
    assert sum(record.source == "lecture" for record in RECORDS) == 7
    features = {scenario.feature for scenario in scenarios(0, 512)} | {"order"}
    for record in RECORDS:
        if record.layer == "schedules":
            assert set(record.steps) <= features, record.name
            continue
        known = {step for name in record.operators for s in specification(name).shardings for step in s.steps}
        assert set(record.operators) <= set(operator_names())
        assert set(record.steps) <= known, record.name
    assert not {source for source, _, _ in ABSENT} & {record.source for record in RECORDS}
    assert len(recorded(sources)) == len(RECORDS)


def test_an_edit_that_does_not_fit_just_once_is_an_error() -> None:
    record = Record("r", "a/b#1", "parallel", "x", (Edit("f.py", "a = 1\n", "a = 2\n"),), (), (), "operators")
    assert record.planted({"f.py": "b = 0\na = 1\n"}).line == 2
    for text in ("", "a = 1\na = 1\n"):
        with pytest.raises(NotThere, match="not once"):
            record.planted({"f.py": text})


# Mutants


def test_mutants_are_many_of_every_kind_and_each_is_another_program(made: list[Fault], sources: dict[str, str]) -> None:
    assert len(made) >= 150
    assert {fault.kind for fault in made} == set(KINDS)
    assert len({fault.name for fault in made}) == len(made)
    codes = {(fault.path, bytecode(fault.files[fault.path])) for fault in made}
    assert len(codes) == len(made)
    assert not any((fault.path, bytecode(sources[fault.path])) in codes for fault in made)
    for fault in made:
        assert fault.operators, fault.name
        assert set(fault.operators) <= set(operator_names())
        assert len(fault.files) == 1
        assert _role(fault.path.removeprefix("target_engine/")) == "editable"


def test_a_sample_is_drawn_by_its_seed_and_grows_from_its_beginning(made: list[Fault]) -> None:
    names = [fault.name for fault in sampled(made, 40, 3)]
    assert names == [fault.name for fault in sampled(made, 40, 3)]
    assert names == [fault.name for fault in sampled(made, 60, 3)][:40]
    assert names != [fault.name for fault in sampled(made, 40, 4)]
    assert {fault.kind for fault in sampled(made, 8, 0)} == set(KINDS)
    assert {fault.kind for fault in sampled(made, None, 0, ["mask"])} == {"mask"}
    assert len(sampled(made, None, 0)) == len(made)


def test_the_same_sources_have_the_same_mutants(made: list[Fault], sources: dict[str, str]) -> None:
    few = {path: text for path, text in sources.items() if "/kda_chunk/" in path or path.endswith("/tokens.py")}
    again = [fault for fault in mutants(few) if "/kda_chunk/torch" in fault.path]
    assert [fault.name for fault in again] == [fault.name for fault in made if "/kda_chunk/torch" in fault.path]


SMALL = '''"""A module."""

LIMIT = 3 + 1


def run(x, lengths, group, size: int = 1 - 1):
    """A docstring with len(x) + 1 in it."""
    hidden = (x >= lengths[0]) & (x < size)
    kept = x.masked_fill(hidden, 0.0)[1:]
    count = -(-len(x) // size)
    total = group.all_reduce(kept.sum(-1).float())
    return total @ kept.transpose(-1, -2), count
'''


def test_each_kind_changes_what_it_says() -> None:
    told = {(kind, change) for _, _, kind, change, _ in changes(SMALL)}
    assert ("mask", "x.masked_fill(hidden, 0.0) -> x") in told
    assert ("mask", "x >= lengths[0] -> x == x") in told
    assert ("index", "0 -> 1") in told
    assert ("axis", "kept.sum(-1) -> kept.sum(-2)") in told
    assert ("axis", "kept.transpose(-1, -2) -> kept") in told
    assert ("off-by-one", "x < size -> x <= size") in told
    assert ("off-by-one", "1: -> 1 + 1:") in told
    assert ("dtype", "kept.sum(-1).float() -> kept.sum(-1).bfloat16().float()") in told
    assert ("missing collective", "group.all_reduce(kept.sum(-1).float()) -> kept.sum(-1).float()") in told
    assert ("wrong length", "-(-len(x) // size) -> (len(x) // size)") in told
    lines = {line for line, *_ in changes(SMALL)}
    assert not lines & {1, 3, 6, 7}, "nothing outside of what runs, no default, no docstring"
    for _, _, _, _, text in changes(SMALL):
        assert text.count("\n") == SMALL.count("\n")
        compile(text, "mutant", "exec")


# Where a change must be found


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize(
    ("operator", "part", "steps"),
    [
        ("kda_chunk", "v, g, beta, local_starts(mine))\n", {"local_state", "chain"}),
        ("kda_chunk", "both = group.all_gather", {"gather"}),
        ("kda_chunk", "first = state[slots", {"merge"}),
        ("kda_chunk", "state[slots.long()] = states", {"output"}),
        ("kda_chunk", "before = states[filled", {"output"}),
        ("kda_chunk", "both = [local_state(k[piece]", {"local_state", "chain"}),
        ("short_convolution", "tail = last_inputs", {"tail"}),
        ("short_convolution", "kept = min(end", {"tail"}),
        ("short_convolution", "before = window.clone()", {"halo"}),
        ("embedding", "here = (ids", {"partial", "output"}),
        ("linear", "y = group.all_reduce", {"output"}),
        ("attention_prefill", "starts = local_starts(mine", {"output"}),
    ],
)
def test_the_first_step_that_a_line_reaches(operator: str, part: str, steps: set[str], sources: dict[str, str]) -> None:
    text = sources[f"{OPS}/{operator}/parallel.py"]
    found = set(steps_from(text, line=line_of(text, part)))
    assert found <= steps | {"output"}
    assert found & steps


def test_shared_code_belongs_to_those_that_import_it(sources: dict[str, str]) -> None:
    path = f"{OPS}/delta_chunks.py"
    unit = place_of(path, line_of(sources[path], "return x * torch.rsqrt"), sources)
    assert set(unit.operators) == {"kda_chunk", "kda_local_state", "kda_recurrent"}
    decays = place_of(path, line_of(sources[path], "late.add_(early"), sources)
    assert set(decays.operators) == {"kda_chunk", "kda_local_state"}
    tokens = "target_engine/parallel/tokens.py"
    read = place_of(tokens, line_of(sources[tokens], "used, places ="), sources)
    assert set(read.operators) == {"attention_decode", "attention_prefill"}
    assert "broadcast" in read.steps
    merge = place_of(f"{OPS}/kda_state_merge/torch.py", 18, sources)
    assert set(merge.operators) == {"kda_state_merge", "kda_chunk"}
    assert {"output", "merge"} <= set(merge.steps)


# Counting


def answer(layer: str, status: str = "refuted", **more: str) -> Answer:
    return Answer(layer, status, 1.0, f"{status} [{layer}]", **more)


FAULT = Fault(
    "f", "mask", "mutant", {f"{OPS}/linear/parallel.py": "x"}, ("linear",), ("partial",), "", "p.py", 1, "a -> b"
)


def test_a_refutation_is_placed_by_operator_and_step() -> None:
    assert localised(FAULT, answer("sharding", operator="linear", step="partial"))
    assert not localised(FAULT, answer("sharding", operator="linear", step="output"))
    assert not localised(FAULT, answer("sharding", operator="lm_head", step="partial"))
    assert localised(FAULT, answer("operators", operator="linear"))
    assert localised(FAULT, answer("static", file=f"{OPS}/linear/parallel.py"))
    assert not localised(FAULT, answer("smoke"))
    state = replace(FAULT, operators=("slot reuse",), steps=("slot reuse",), files={"target_engine/engine.py": "x"})
    assert localised(state, answer("schedules", step="slot reuse"))
    assert not localised(state, answer("schedules", step="batch"))


def test_a_fault_is_shown_to_the_layers_that_its_files_matter_to() -> None:
    names = [layer.name for layer in adequate(FAULT)]
    assert names[:3] == ["static", "operators", "sharding"]
    assert "smoke" not in names
    state = [layer.name for layer in adequate(replace(FAULT, files={"target_engine/engine.py": "x"}))]
    assert state[:3] == ["static", "smoke", "schedules"]
    assert "operators" not in state


def result_of(
    name: str, outcome: str = "killed", placed: bool = True, kind: str = "mask", **more: object
) -> campaign.Record:
    killed = outcome == "killed"
    answers = (
        answer("static", "confirmed"),
        answer("operators", "refuted" if killed else "confirmed", operator="linear"),
    )
    compared = {
        "equivalent": Compared(90, 0),
        "regrouped": Compared(90, 7, 0.1, "linear y", agreed=30),
        "survived": Compared(9, 3, 0.2, "linear x"),
    }.get(outcome)
    fields: dict[str, object] = {
        "key": name, "name": name, "kind": kind, "source": "mutant", "path": "p.py", "line": 1, "change": "a -> b",
        "layer": "operators", "operators": ("linear",), "steps": ("output",), "outcome": outcome, "answers": answers,
        "localised": placed and killed, "compared": compared,
    }  # fmt: skip
    return campaign.Record(**fields | more)  # pyrefly: ignore[bad-argument-type]


def clean(status: str = "confirmed") -> campaign.Record:
    answers = (answer("operators", status), answer("sharding", "confirmed"))
    return result_of("clean 0", outcome="sound", kind="none", answers=answers, compared=None)


def test_equivalent_mutants_do_not_count_and_survivors_do() -> None:
    reports = [result_of(f"r{i}", kind="parallel") for i in range(30)]
    mutants_ = [result_of(f"m{i}") for i in range(150)] + [
        result_of("e", "equivalent"), result_of("g", "regrouped"), result_of("s", "survived"),
    ]  # fmt: skip
    told = conclusions.conclude(reports, mutants_, [clean()], whole=True)
    assert all(told.claims.values()), told.claims
    assert any("150 of 151" in claim and "98.7%" in claim for claim in told.claims)
    text = "\n".join(told.notes)
    assert "equivalent, to the last bit: 1" in text
    assert "the same function, regrouped: 1" in text
    assert "the same values in 30 runs in float64" in text
    assert "bit-identical in 90 runs" in text
    assert "within the tolerance: 3 of 9 runs differ" in text
    rows = {row[0]: row for row in told.rows}
    assert rows["operators"][1:3] == (183, 180)
    assert rows["operators"][7:] == (1.0, "0 of 1")


def test_claims_fail_when_they_should() -> None:
    reports = [result_of(f"r{i}", kind="parallel") for i in range(30)]
    good = [result_of(f"m{i}") for i in range(160)]

    def failing(*arguments: list[campaign.Record]) -> list[str]:
        return [claim for claim, holds in conclusions.conclude(*arguments, whole=True).claims.items() if not holds]

    assert failing(reports, good, [clean()]) == []
    assert any("reported" in c for c in failing([*reports, result_of("x", "survived")], good, [clean()]))
    assert any("mutants" in c for c in failing(reports, good[:100], [clean()]))
    left = [result_of(f"s{i}", "survived") for i in range(8)]
    assert any("98%" in c for c in failing(reports, [*good, *left], [clean()]))
    astray = [result_of(f"a{i}", placed=False) for i in range(20)]
    assert any("95%" in c for c in failing(reports, [*good, *astray], [clean()]))
    assert any("alarm" in c for c in failing(reports, good, [clean("refuted")]))
    assert any("alarm" in c for c in failing(reports, good, [clean("unsupported")]))
    late = result_of("late", kind="parallel", answers=(answer("schedules", step="alone"),))
    assert any("must see it" in c for c in failing([*reports, late], good, [clean()]))
    slow = [replace(r, answers=tuple(replace(a, seconds=9.0) for a in r.answers)) for r in good]
    assert any("median" in c for c in failing(reports, slow, [clean()]))


def test_the_table_of_outcomes_is_one_that_feedback_information_reads(tmp_path: Path) -> None:
    from experiments.feedback_information import measured
    from feedback.information.diagnosis import Stopping
    from feedback.information.outcomes import OutcomeTable

    faults = [result_of("a"), result_of("b", kind="sign"), result_of("c", "survived")]
    for table in (conclusions.outcome_table(faults, [clean()]), conclusions.layer_table(faults, [clean()])):
        again = OutcomeTable.parse(table)
        assert {"none", conclusions.SOUND} & set(again.causes)
        told = measured.told(again, measured.played(again, 0, 1, Stopping(0.95, 4)))
        assert all(told.claims.values())


# Remembering


def test_records_survive_a_torn_line(tmp_path: Path) -> None:
    first, second = result_of("a"), result_of("b", "survived")
    campaign.append(tmp_path, first)
    with (tmp_path / campaign.FILE).open("a") as file:
        file.write('{"key": "torn", "name": "wri')
    assert campaign.read(tmp_path) == {"a": first}
    campaign.append(tmp_path, second)
    assert campaign.read(tmp_path) == {"a": first, "b": second}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_few_faults_end_to_end_and_again_from_what_was_written(tmp_path: Path) -> None:
    lines: list[str] = []
    options = {"only": "in tf32", "sample": "0", "seeds": "0", "table": str(tmp_path / "table.json")}
    result, folder = execute(find("operator_faults"), tmp_path / "out", lines.append, 0, options)
    records = campaign.read(folder)
    assert [record.outcome for record in records.values()] == ["killed", "killed"]
    assert all(record.localised and record.refuting is not None for record in records.values())
    assert (tmp_path / "table.json").read_text() == (folder / "outcomes.json").read_text()
    assert not (folder / "planted").exists()
    assert len(lines) == 2
    again: list[str] = []
    repeated, _ = execute(find("operator_faults"), tmp_path / "out", again.append, 0, options)
    assert again == ["2 records are there already"]
    assert repeated.rows == result.rows


def test_a_wrong_option_is_refused(tmp_path: Path) -> None:
    from experiments.operator_faults import experiment
    from feedback.errors import UserError

    assert conclusions.outcome_table([], []) == {}
    for options in ({"kinds": "mask,masque"}, {"sample": "-3"}, {"seeds": "some"}):
        with pytest.raises(UserError, match="--option"):
            experiment.run(Context(tmp_path, lambda line: None, options=options))
