"""The pure parts of the operator layer: which operators, which cases, what counts as wrong."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from feedback.operators.cases import FRESH, checked_cases, free_axes, fresh_cases, input_seed
from feedback.operators.checks import Call, judge_case, same_bits, tolerance_for, worst_ratio
from feedback.operators.selection import reached_first, touched
from feedback.target import Case, OperatorInfo, Tensor, Tolerance

TOLERANCE = Tolerance(atol=1e-5, rtol=1e-5, reason="one rounding")


def case(name: str, tags: tuple[str, ...] = ("typical",), distribution: str = "normal", **dims: int) -> Case:
    return Case(name=name, dims=dims, tags=tags, distribution=distribution)


CASES = (
    case("four", N=4, K=64),
    case("sixteen", N=16, K=64),
    case("one", ("odd",), N=1, K=64),
    case("odd-width", ("odd",), N=5, K=37),
    case("large", ("constructed",), "large", N=5, K=64),
    case("real", ("microbench",), N=512, K=576),
)


def operator(name: str = "scale", selected: str = "torch", deterministic: bool = True) -> OperatorInfo:
    return OperatorInfo(
        name=name,
        role=name,
        doc="y = 2 x",
        tensors=(
            Tensor(name="x", shape=("N", "K"), dtype="compute", kind="runtime"),
            Tensor(name="y", shape=("N", "K"), dtype="compute", kind="output"),
        ),
        cases=CASES,
        tolerance={"float32": TOLERANCE},
        implementations=("torch", "fused"),
        selected=selected,
        files={"torch": f"engine/ops/{name}/torch.py", "fused": f"engine/ops/{name}/fused.py"},
        deterministic=deterministic,
    )


def test_timed_cases_are_left_to_the_timing_layer():
    assert "real" not in [found.name for found in checked_cases(CASES)]
    assert checked_cases(CASES[-1:]) == CASES[-1:]


def test_only_axes_that_the_specification_varies_alone_are_free():
    assert free_axes(checked_cases(CASES)) == {"N": ({"K": 64}, (1, 4, 5, 16))}


@given(st.integers(0, 2**62))
def test_fresh_sizes_are_new_and_leave_the_other_axes_alone(seed):
    fresh = fresh_cases(CASES, seed)
    assert len(fresh) == 3
    assert {found.dims["K"] for found in fresh} == {64}
    assert not {found.dims["N"] for found in fresh} & {1, 4, 5, 16, 512}
    assert max(found.dims["N"] for found in fresh) > 16
    assert all(found.distribution in ("normal", "large") and FRESH in found.tags for found in fresh)
    assert fresh == fresh_cases(CASES, seed)


PURPOSES = st.lists(st.text('\0",\\ 0a', max_size=3) | st.text(max_size=5), max_size=3)


@example(0, ["", "\0"], ["\0", ""])
@example(0, ["a,b"], ["a", "b"])
@given(st.integers(0, 2**31), PURPOSES, PURPOSES)
def test_input_seeds_fit_and_differ_by_purpose(seed, a, b):
    assert 0 <= input_seed(seed, *a) < 2**63
    assert (input_seed(seed, *a) == input_seed(seed, *b)) is (a == b)
    assert input_seed(seed, *a) != input_seed(seed + 1, *a)


def test_operators_that_import_what_changed_come_first(tmp_path):
    infos = (operator("a"), operator("b"), operator("c"))
    for name, text in (
        ("a", "import torch"),
        ("b", "from engine.ops.shared import fold"),
        ("c", "x = 'engine.ops.sharedness'"),
    ):
        (tmp_path / f"engine/ops/{name}").mkdir(parents=True)
        (tmp_path / f"engine/ops/{name}/torch.py").write_text(text)
    names = ("a", "b", "c")
    assert reached_first(names, ("engine/ops/shared.py",), infos, tmp_path) == (("b", "a", "c"), 1)
    assert reached_first(names, ("engine/ops/c/torch.py",), infos, tmp_path) == (("c", "a", "b"), 1)
    assert reached_first(names, ("engine/elsewhere.c",), infos, tmp_path) == (names, 0)


def test_touched_operators_are_the_stated_and_the_changed():
    before = (operator("a"), operator("b"), operator("c"))
    after = (operator("a"), operator("b", selected="fused"), operator("c"))
    assert touched(("c",), (), before, before)[0] == ("c",)
    assert touched((), (), before, after)[0] == ("b",)
    assert touched(("c",), ("engine/ops/a/native.c",), before, after)[0] == ("a", "b", "c")
    assert touched((), ("engine/ops/registry.py",), before, before)[0] == ("a", "b", "c")
    assert touched((), ("engine/scheduler.py",), before, before) == (("a", "b", "c"), "none known to be touched")


def calls_of(*results: np.ndarray, mutated: tuple[str, ...] = ()) -> list[Call]:
    return [Call({"x": np.zeros(1, np.float32)}, mutated, {"y": result}) for result in results]


def judged(calls, expected, labels, info=None):
    wants = [{"y": want} for want in expected]
    return [(d.kind, d.text) for d in judge_case(info or operator(), "case", calls, wants, labels, TOLERANCE)]


A, B = np.float32([[1, 2, 3]]), np.float32([[4, 5, 6]])
TURNS = ("A", "B", "A", "B")


def test_right_results_are_right():
    assert judged(calls_of(A, B, A, B), (A.astype(np.float64), B, A, B), TURNS) == []


def test_a_result_of_an_earlier_call_is_named_as_such():
    (found,) = judged(calls_of(A, A, A, A), (A, B, A, B), TURNS)
    assert found == ("stale", "returned the result of an earlier call with other inputs (y)")


def test_an_error_is_described():
    ((kind, text),) = judged(calls_of(A + np.float32([0, 0, 1]), B), (A, B), ("A", "B"))
    assert kind == "error"
    assert text.startswith("y: column 2 wrong")


def test_a_shape_or_type_is_told_before_any_number():
    assert judged(calls_of(A[0]), (A,), ("A",)) == [("shape", "y has shape [3], expected [1, 3]")]
    assert judged(calls_of(A.astype(np.float64)), (A,), ("A",)) == [("shape", "y is float64, expected float32")]
    missing = [Call({}, (), {})]
    assert [d.text for d in judge_case(operator(), "c", missing, [{"y": A}], ("A",), TOLERANCE)] == ["returned no y"]


def test_repeats_must_be_bitwise_equal_unless_the_operator_says_otherwise():
    close = np.nextafter(A, np.float32(9))
    assert judged(calls_of(A, B, close, B), (A, B, A, B), TURNS) == [
        ("repeat", "the same input gave different y in two calls")
    ]
    assert judged(calls_of(A, B, close, B), (A, B, A, B), TURNS, operator(deterministic=False)) == []


def test_a_changed_input_is_told_first():
    found = judged(calls_of(A + 1, mutated=("x",)), (A,), ("A",))
    assert [kind for kind, _ in found] == ["mutation", "error"]


def test_bits_tell_signed_zeros_and_types_apart():
    assert not same_bits(np.float32([0.0]), np.float32([-0.0]))
    assert not same_bits(np.float32([1]), np.float64([1]))
    assert same_bits(np.float32([np.nan]), np.float32([np.nan]))


@given(st.floats(0, 10), st.floats(0.1, 100))
def test_the_worst_ratio_is_in_units_of_the_tolerance(factor, value):
    want = np.array([value, 0.0])
    allowed = TOLERANCE.atol + TOLERANCE.rtol * value
    got = want + np.array([factor * allowed, 0.0])
    assert np.isclose(worst_ratio({"y": got}, {"y": want}, TOLERANCE), factor, rtol=1e-6, atol=1e-6)
    assert worst_ratio({"y": np.array([np.nan, 0])}, {"y": want}, TOLERANCE) == np.inf


def test_a_type_without_a_tolerance_has_none():
    info = operator().model_copy(update={"tolerance": {"float32": TOLERANCE, "bfloat16": TOLERANCE}})
    assert tolerance_for(info, "int8") is None
    assert tolerance_for(operator(), "int8") == TOLERANCE
