"""What the sharding layer says, from numbers alone: comparing, localising, growth, rounding or logic, conditions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedback.sharding.compare import Answer, Question, judge, ranks_in_words, ratio_of, relative_error, repeats, stale
from feedback.sharding.conditions import BRIEF, CHAIN, Condition, conditions, shortened, spread
from feedback.sharding.cuts import Cut, allowed, cuts
from feedback.sharding.growth import fit
from feedback.sharding.localise import first_wrong_step, where_it_fails
from feedback.sharding.precision import ALL, attribute
from feedback.sharding.reach import reachable_first
from feedback.target import Case, OperatorInfo, PlanRow, ShardingInfo, Shardings, Tensor, Tolerance

STEPS = ("local", "merge", "output")
TIGHT = Tolerance(atol=1e-6, rtol=0.0, reason="test")


def case(name: str, distribution: str = "normal", tags: tuple[str, ...] = (), **dims: int) -> Case:
    return Case(name=name, dims=dims, distribution=distribution, tags=tags)


INFO = OperatorInfo(
    name="scan",
    role="scan",
    doc="",
    tensors=(
        Tensor(name="x", shape=("N", 3), dtype="compute", kind="runtime"),
        Tensor(name="y", shape=("N", 3), dtype="compute", kind="output"),
    ),
    cases=(
        case("plain", N=4),
        case("one", tags=("odd",), N=1),
        case("odd", tags=("odd",), N=7),
        case("weak", "weak_decay", N=40),
        case("long", "weak_decay", N=90),
        case("strong", "strong_decay", N=30),
        case("timed", tags=("microbench",), N=900),
    ),
    tolerance={"float32": TIGHT},
    implementations=("torch",),
    selected="torch",
    files={"torch": "engine/ops/scan/torch.py"},
)


def sharding(**changes: object) -> ShardingInfo:
    values = {
        "name": "context",
        "axis": "cp",
        "cuts": {"x": "tokens N"},
        "collective": "all_gather",
        "steps": STEPS,
        "tolerance": {"float32": TIGHT},
        "uneven": True,
        "file": "engine/ops/scan/parallel.py",
        "cases": (case("model", tags=("model",), N=5),),
    }
    return ShardingInfo.model_validate(values | changes)


CUT = Cut(INFO, sharding(), 3, ("scan",))


def row(operator: str, name: str | None, ranks: int, role: str = "scan") -> PlanRow:
    return PlanRow(
        operator=operator, role=role, phase="prefill", layers=1, implementation="torch", axis="cp" if name else None,
        sharding=name, ranks=ranks, shapes={}, local={}, cuts={}, collective="none", steps=STEPS, reference="",
        tolerance=None,
    )  # fmt: skip


def question(copies: bool = False) -> Question:
    expected = tuple({"y": np.arange(6.0).reshape(2, 3) + rank} for rank in range(2))
    steps = tuple({"local": {"s": np.ones(3) * rank}, "merge": {"t": np.arange(4.0)}} for rank in range(2))
    places = tuple({"y": np.arange(6).reshape(2, 3)} for _ in range(2)) if copies else ({}, {})
    return Question(tuple({"x": np.zeros((2, 3), np.float32)} for _ in range(2)), expected, steps, places)


def answer(asked: Question, **changes) -> Answer:
    ranks = tuple({"y": piece["y"].astype(np.float32)} for piece in asked.expected)
    steps = tuple({step: {n: a.copy() for n, a in some.items()} for step, some in one.items()} for one in asked.steps)
    return Answer(**({"ranks": ranks, "steps": steps, "changed": ((), ()), "used": ("scan",)} | changes))


class TestComparing:
    def test_a_right_answer_has_nothing_wrong(self):
        asked = question()
        assert judge(INFO, asked, answer(asked), TIGHT) is None
        assert ratio_of(asked, answer(asked), TIGHT) == 0.0
        assert relative_error(INFO, asked, answer(asked)) == 0.0

    def test_the_ranks_that_are_wrong_are_named(self):
        asked = question()
        wrong = answer(asked)
        wrong.ranks[1]["y"][0, 2] += 0.5
        fault = judge(INFO, asked, wrong, TIGHT)
        assert (fault.kind, fault.ranks, fault.text) == ("error", (1,), "y wrong on rank 1 of 2")
        assert fault.pattern.where() == "row 0, column 2"
        assert ratio_of(asked, wrong, TIGHT) == pytest.approx(5e5, rel=1e-3)

    @pytest.mark.parametrize(
        ("change", "kind", "says"),
        [
            ({"failed": "rank 1 of 2: boom"}, "failure", "boom"),
            ({"ranks": ({"y": np.zeros((2, 3), np.float32)}, {})}, "shape", "rank 1 gives no y"),
            ({"ranks": ({"y": np.zeros((1, 3), np.float32)},) * 2}, "shape", r"rank 0 gives y of shape [1, 3]"),
            ({"ranks": ({"y": np.zeros((2, 3), np.float64)},) * 2}, "shape", "gives y as float64"),
            ({"changed": ((), ("x",))}, "mutation", "rank 1 changes its input x"),
        ],
    )
    def test_what_else_may_be_wrong(self, change, kind, says):
        asked = question()
        fault = judge(INFO, asked, answer(asked, **change), TIGHT)
        assert fault.kind == kind
        assert says in fault.text

    def test_copies_that_differ_in_a_bit_are_wrong_even_within_the_tolerance(self):
        asked = question(copies=True)
        same = tuple({"y": np.ones((2, 3), np.float32)} for _ in range(2))
        asked = Question(asked.pieces, same, None, asked.copies)
        one = answer(Question(asked.pieces, same, question().steps, asked.copies))
        assert judge(INFO, asked, one, TIGHT) is None
        one.ranks[1]["y"][1, 1] = np.nextafter(np.float32(1), np.float32(2))
        fault = judge(INFO, asked, one, TIGHT)
        assert (fault.kind, fault.ranks) == ("copies", (1,))

    def test_an_answer_to_another_question_and_one_that_wavers(self):
        asked = question()
        first, other = answer(asked), answer(asked)
        assert stale(other, [first]).kind == "stale"
        other.ranks[0]["y"][0, 0] += 1
        assert stale(other, [first]) is None
        assert "different y" in repeats(INFO, first, other).text
        assert repeats(INFO.model_copy(update={"deterministic": False}), first, other) is None

    def test_ranks_in_words(self):
        assert [ranks_in_words(some, 5) for some in ([2], [0, 1, 2], [0, 3], [0, 1, 2, 3, 4])] == [
            "rank 2 of 5",
            "ranks 0-2 of 5",
            "ranks 0, 3 of 5",
            "all 5 ranks",
        ]


class TestLocalising:
    def test_the_first_wrong_step_with_its_ranks(self):
        asked = question()
        wrong = answer(asked)
        wrong.steps[1]["merge"]["t"][2] += 1
        step = first_wrong_step(STEPS, asked, wrong, TIGHT)
        assert (step.name, step.ranks, step.tensor) == ("merge", (1,), "t")
        wrong.steps[0]["local"]["s"] += 1
        assert first_wrong_step(STEPS, asked, wrong, TIGHT).name == "local"
        assert first_wrong_step(STEPS, asked, answer(asked), TIGHT).name == "output"

    def test_a_step_that_a_failed_rank_did_not_reach(self):
        asked = question()
        reached = answer(asked, ranks=(), failed="rank 1 of 2: boom")
        del reached.steps[1]["merge"]
        step = first_wrong_step(STEPS, asked, reached, TIGHT)
        assert (step.name, step.ranks) == ("merge", (1,))

    def test_a_step_that_is_recorded_otherwise_is_unknown_not_wrong(self):
        asked = question()
        other = answer(asked)
        other.steps[0]["merge"]["t"] = np.zeros(5)
        step = first_wrong_step(STEPS, asked, other, TIGHT)
        assert step.name == "output"
        assert "step merge is recorded otherwise" in step.unknown
        assert first_wrong_step(STEPS, Question((), (), None, ()), other, TIGHT).unknown

    def test_where_it_fails(self):
        def outcomes(*items: tuple[Case, int, int, bool]) -> list[tuple[Condition, bool]]:
            return [(Condition(one, ranks, cut), bad) for one, ranks, cut, bad in items]

        weak, strong, plain = INFO.cases[3], INFO.cases[5], INFO.cases[0]
        said = where_it_fails(
            outcomes((weak, 3, 0, True), (weak, 3, 1, True), (plain, 3, 0, False), (strong, 3, 0, False))
        )
        assert said == "only under weak_decay"
        said = where_it_fails(
            outcomes((weak, 3, 4, True), (plain, 3, 4, True), (weak, 3, 0, False), (plain, 3, 0, False))
        )
        assert said == "only where pieces are uneven or empty"
        said = where_it_fails(
            outcomes((weak, 16, 0, True), (plain, 16, 0, True), (weak, 3, 0, False), (plain, 3, 0, False))
        )
        assert said == "only where ranks is a multiple of 16" or "ranks" in said
        assert where_it_fails(outcomes((weak, 3, 0, True))) is None


class TestGrowth:
    @pytest.mark.parametrize(
        ("exponent", "says"),
        [(0.0, "does not grow"), (0.5, "square root"), (1.0, "about linearly"), (2.0, "power 2.0")],
    )
    def test_a_power_is_found_and_put_in_words(self, exponent, says):
        growth = fit("shards", [(n, 1e-6 * n**exponent) for n in (2, 4, 8, 16)])
        assert growth.exponent == pytest.approx(exponent, abs=1e-6)
        assert growth.scatter < 1e-6
        assert says in growth.words()

    def test_too_few_points_and_what_is_no_number_are_left_out(self):
        assert fit("shards", [(2, 1.0), (4, 2.0)]) is None
        assert fit("shards", [(2, 1.0), (4, np.inf), (8, np.nan), (16, 0.0)]) is None

    @given(st.floats(0.2, 3.0), st.floats(1e-8, 1.0))
    def test_the_factor_is_that_of_the_ends(self, exponent, size):
        growth = fit("tokens", [(n, size * n**exponent) for n in (64, 128, 256)])
        assert growth.factor == pytest.approx(4**exponent, rel=1e-6)


class TestPrecision:
    def ask(self, everything=0.1, wide: float | None = 0.1, **single: float | None):
        def asked(exact: tuple[str, ...], is_wide: bool) -> float | None:
            return everything if exact == (ALL,) else single[exact[0]] if exact else wide

        return asked

    def test_what_stays_is_logic_of_the_combination(self):
        found = attribute(self.ask(everything=50.0), ("a", "b"), 1e-4)
        assert (found.cause, found.operators) == ("logic", ())
        assert "stays with float64 operators" in found.text

    def test_what_vanishes_with_float64_inputs_is_precision_of_the_operator_that_matters(self):
        found = attribute(self.ask(a=40.0, b=0.2), ("a", "b"), 1e-4)
        assert (found.cause, found.operators) == ("precision", ("b",))
        assert found.text == "vanishes with a float64 b: precision, not logic"

    @pytest.mark.parametrize(
        ("wide", "relative", "cause"), [(None, 1e-4, "precision"), (40.0, 1e-4, "undecided"), (40.0, 0.5, "logic")]
    )
    def test_where_float64_inputs_do_not_help_the_size_of_the_error_decides(self, wide, relative, cause):
        assert attribute(self.ask(wide=wide, a=40.0, b=0.2), ("a", "b"), relative).cause == cause

    def test_two_operators_that_both_round_are_found_together(self):
        def asked(exact: tuple[str, ...], wide: bool) -> float:
            return 0.1 if wide or {"a", "c"} <= set(exact) else 30.0

        found = attribute(asked, ("a", "b", "c"), 1e-4)
        assert (found.cause, found.operators) == ("precision", ("a", "c"))
        assert found.text == "vanishes with float64 a and c together: precision, not logic"

    def test_what_cannot_run_is_not_decided(self):
        assert attribute(lambda exact, wide: None, ("a",), 0.1).cause == "undecided"


class TestConditions:
    def test_a_cut_that_combines_is_tried_in_full_and_in_long_chains(self):
        found = conditions(CUT, 3)
        names = {condition.case.name for condition in found}
        assert {"plain", "model", "one", "odd", "weak", "long", "strong"} <= names
        assert "timed" not in names
        assert any("fresh" in condition.case.tags for condition in found)
        chains = [condition for condition in found if condition.ranks == CHAIN]
        assert [chain.case.name for chain in chains] == ["long", "strong", "odd"]
        assert any(condition.cut for condition in found)
        assert found == conditions(CUT, 3) != conditions(CUT, 4)

    def test_a_cut_that_combines_nothing_is_tried_on_a_spread(self):
        alone = Cut(INFO, sharding(collective="none", steps=("output",), uneven=False), 3, ("scan",))
        found = conditions(alone, 3)
        assert len(found) <= 8
        assert {condition.cut for condition in found} == {0}

    def test_interpreted_kernels_are_tried_on_few_inputs_weak_decay_first(self):
        found = conditions(CUT, 3, brief=True)
        assert len(found) == BRIEF
        assert found[0].case.distribution == "weak_decay"
        assert {condition.case.distribution for condition in found[:3]} == {"weak_decay", "normal", "strong_decay"}
        assert shortened([]) == []

    def test_a_spread_keeps_what_differs(self):
        same = [case(f"same{i}", N=4) for i in range(5)]
        other = case("other", "weak_decay", N=9)
        assert [one.name for one in spread([*same, other], 2)] == ["same0", "other"]
        assert spread(same, 9) == same


class TestCuts:
    def test_every_cut_of_the_plan_once_with_its_places(self):
        rows = [
            row("scan", "context", 3),
            row("scan", "context", 3, "again"),
            row("scan", None, 1),
            row("scan", "heads", 2),
        ]
        found, missing = cuts(rows, [INFO], lambda operator: Shardings(shardings=(sharding(),)))
        assert [(cut.name, cut.roles) for cut in found] == [("scan: context over cp 3", ("scan", "again"))]
        assert missing == ["scan under heads, which the target does not describe"]

    def test_both_tolerances_count_and_both_must_be_there(self):
        found = allowed(CUT, "float32")
        assert found is not None
        assert found.atol == 2e-6
        assert allowed(CUT, "bfloat16") is None

    def test_cuts_that_a_change_can_reach_come_first(self, tmp_path: Path):
        for name, text in (("scan", 'build("merge")'), ("other", "nothing"), ("third", "import engine.shared")):
            folder = tmp_path / "engine" / "ops" / name
            folder.mkdir(parents=True)
            (folder / "parallel.py").write_text(text)

        def cut(name: str) -> Cut:
            files = {"torch": f"engine/ops/{name}/torch.py"}
            info = INFO.model_copy(update={"name": name, "files": files})
            return Cut(info, sharding(file=f"engine/ops/{name}/parallel.py"), 2, (name,))

        all_cuts = [cut("other"), cut("scan"), cut("third")]
        for changed, first in (
            ("engine/ops/scan/torch.py", ["scan"]),
            ("engine/ops/merge/torch.py", ["scan"]),
            ("engine/shared.py", ["third"]),
            ("engine/models/llama.py", []),
        ):
            found, count = reachable_first(all_cuts, [changed], tmp_path)
            assert [one.info.name for one in found[:count]] == first
            assert {one.info.name for one in found} == {"other", "scan", "third"}
