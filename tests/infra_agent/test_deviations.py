"""From the evidence of a deviation to facts, causes and the repair to try."""

from __future__ import annotations

import math
from typing import Any

import pytest

from infra_agent.hypothesis import Move
from infra_agent.ladder import Experience, required
from infra_agent.proposers import deviations
from infra_agent.proposers.embedded import Proposal, Stop, Trial
from infra_agent.proposers.repairs import propose
from infra_agent.records import Outcome

#: Every layer there is, with guesses of its cost.
LAYERS = {
    "static": 0.5, "smoke": 4.0, "operators": 3.0, "microbench": 6.0, "accuracy": 8.0, "kernels": 25.0,
    "sharding": 40.0, "sharded_model": 15.0, "load": 30.0,
}  # fmt: skip


def cut(cause: str | None = "precision", operators: tuple[str, ...] = ("merge",), ratio: float = 400.0) -> Any:
    """A deviating cut as a `sharding` verdict's evidence has it."""
    found: dict[str, Any] = {
        "operator": "kda_chunk",
        "conditions": [{"error_ratio": ratio, "relative_error": 1e-3}, {"error_ratio": None, "relative_error": None}],
        "localised": {
            "operator": "kda_chunk", "sharding": "context", "axis": "cp", "step": "merge", "condition": "one over 2"
        },
        "growth": [{"noun": "shards", "exponent": 0.9}, {"noun": "tokens", "exponent": None}],
        "unsharded_is_wrong": False,
    }  # fmt: skip
    if cause is not None:
        found["attribution"] = {"cause": cause, "operators": list(operators), "measured": []}
    return found


def facts(*cuts: Any) -> dict[str, Any]:
    return deviations.facts_of({"cuts": [*cuts, {"operator": "linear", "conditions": []}]})


def test_facts_name_what_is_wrong_where_and_by_how_much() -> None:
    found = facts(cut())
    assert found["deviation.cuts"] == 1.0
    assert found["deviation.ratio"] == 400.0
    assert found["deviation.operator"] == "kda_chunk"
    assert deviations.blamed(found) == {"merge"}
    assert found["deviation.growth.shards"] == 0.9
    assert "deviation.growth.tokens" not in found
    assert deviations.known(found)
    assert not deviations.known({"share.op.linear": 0.1})


def test_operators_of_all_explained_cuts_are_to_blame() -> None:
    assert deviations.blamed(facts(cut(), cut(operators=("local",)), cut(None))) == {"merge", "local"}


def test_a_cut_that_was_not_looked_into_has_no_cause() -> None:
    assert facts(cut(None))["deviation.cause"] == "unknown"
    assert facts()["deviation.cause"] == "unknown"


@pytest.mark.parametrize(
    ("cause", "first"), [("precision", "coarse_products"), ("logic", "wrong_combination"), ("unknown", None)]
)
def test_the_diagnosis_follows_the_comparison_at_higher_precision(cause: str, first: str | None) -> None:
    ranked = deviations.diagnosis(facts(cut(cause)))
    assert sum(p for _, p in ranked) == pytest.approx(1.0)
    if first is None:
        assert ranked[0][1] < 0.6
    else:
        assert ranked[0][0] == first
        assert ranked[0][1] > 0.5


def test_without_a_deviation_the_state_is_healthy() -> None:
    assert deviations.diagnosis({"launch.cp": 2.0}) == [("healthy", 1.0)]
    assert deviations.diagnosis(facts())[0][1] < 0.6, "the model deviates, and no operator was found to"


def test_the_observation_is_a_clause_with_the_figures() -> None:
    said = deviations.observation(facts(cut()))
    assert "kda_chunk cut by context over cp deviates" in said
    assert "400 times" in said
    assert "in merge" in said
    infinite = cut()
    infinite["conditions"] = []
    assert "times" not in deviations.observation(facts(infinite))


def repair(key: str, operators: tuple[str, ...], bits: float = 11.0, slowdown: float = 0.05, **more: Any) -> Move:
    fields: dict[str, Any] = {
        "key": key,
        "skeletons": ("products",),
        "kind": "code",
        "cause": "coarse_products",
        "title": key,
        "gain": bits * math.log(2),
        "spread": 3 * math.log(2),
        "operators": operators,
        "changes_numerics": True,
        "layers": ("kernels", "sharding", "sharded_model"),
        "mends": True,
        "slowdown": slowdown,
    }
    return Move(**{**fields, **more})


def asked(openings: list[Move], history: list[Trial] | None = None, found: Any = None, left: float = 500.0) -> Any:
    known = found or facts(cut(operators=("merge", "local")))
    return propose("sharding_deviation", history or [], openings, known, Experience(LAYERS), left, 0)


BOTH = repair("both", ("local", "merge"), places=("one", "two"))
ONE = repair("one", ("merge",))
EXACT = repair("exact", ("local", "merge"), bits=13, slowdown=0.4, places=("one", "two"))
WIDE = repair("wide", ("local", "merge", "other"), places=("one", "two", "three"))


def test_the_cheapest_that_covers_what_is_to_blame_comes_first_whatever_the_order() -> None:
    for openings in ([BOTH, ONE, EXACT, WIDE], [WIDE, EXACT, ONE, BOTH]):
        proposal = asked(openings)
        assert isinstance(proposal, Proposal)
        assert proposal.hypothesis.move.key == "both"
        assert proposal.hypothesis.cause == "coarse_products"
        assert proposal.hypothesis.predicted.mean == pytest.approx(2**11)


def test_after_it_failed_the_more_precise_one_is_tried() -> None:
    history = [Trial(move, Outcome.REJECT, None, "sharding", "start") for move in (BOTH, WIDE)]
    proposal = asked([BOTH, ONE, EXACT, WIDE], history)
    assert isinstance(proposal, Proposal)
    assert proposal.hypothesis.move.key == "exact"


def test_one_place_is_enough_where_one_is_to_blame() -> None:
    proposal = asked([BOTH, ONE, EXACT], found=facts(cut(operators=("merge",))))
    assert isinstance(proposal, Proposal)
    assert proposal.hypothesis.move.key == "one"


@pytest.mark.parametrize(
    ("openings", "found", "left", "why"),
    [
        ([], None, 500.0, "no repair is left"),
        ([repair("faster", ("merge",), mends=False)], None, 500.0, "no repair is left"),
        ([BOTH], facts(cut("logic", ())), 500.0, "likely to be enough"),
        ([BOTH], None, 3.0, "3 s are left"),
    ],
)
def test_it_stops_with_a_reason(openings: list[Move], found: Any, left: float, why: str) -> None:
    stop = asked(openings, found=found, left=left)
    assert isinstance(stop, Stop)
    assert why in stop.reason


def test_what_mends_is_judged_by_its_layers_and_what_speeds_up_by_those_too() -> None:
    assert required(BOTH) == {"static", "kernels", "sharding", "sharded_model"}
    faster = repair("faster", ("merge",), mends=False)
    assert required(faster) == required(BOTH) | {"smoke", "load", "operators", "accuracy"}
