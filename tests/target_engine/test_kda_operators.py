"""The linear-attention operators say the same thing in every form: chunks, single tokens, parts of a sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from target_engine.ops import recurrence
from target_engine.ops.specification import Arrays
from tests.target_engine.kda import call, cut, equal, plain, sequences, starts

TOKENS = "q k v g beta"
LOCAL = "k v g beta"


def run_chunks(lengths: list[int], arrays: Arrays, dtype: torch.dtype = torch.float64) -> Arrays:
    return call("kda_chunk", {**arrays, "query_starts": starts(lengths)}, dtype)


@settings(max_examples=60, deadline=None)
@given(sequences())
def test_chunks_are_the_plain_recurrence(drawn: tuple[list[int], Arrays]) -> None:
    lengths, arrays = drawn
    equal(run_chunks(lengths, arrays), plain("kda_chunk", {**arrays, "query_starts": starts(lengths)}))


@settings(max_examples=30, deadline=None)
@given(sequences(longest=40))
def test_single_tokens_are_the_plain_recurrence(drawn: tuple[list[int], Arrays]) -> None:
    lengths, arrays = drawn
    wanted = plain("kda_chunk", {**arrays, "query_starts": starts(lengths)})
    state, out = arrays["state"], np.zeros_like(arrays["v"])
    for step in range(max(lengths)):
        rows = [row for row, length in enumerate(lengths) if step < length]
        at = starts(lengths)[rows] + step
        tokens = {name: arrays[name][at] for name in TOKENS.split()}
        found = call("kda_recurrent", {**tokens, "state": state, "state_slots": arrays["state_slots"][rows]})
        state, out[at] = found["state"], found["out"]
    equal({"out": out, "state": state}, wanted)


@settings(max_examples=40, deadline=None)
@given(sequences(runs=1), st.data())
def test_a_sequence_may_be_split_anywhere(drawn: tuple[list[int], Arrays], data: st.DataObject) -> None:
    (length,), arrays = drawn
    whole = run_chunks([length], arrays)
    places = sorted(data.draw(st.lists(st.integers(0, length), max_size=3)))
    state, outs = arrays["state"], []
    for start, end in zip([0, *places], [*places, length], strict=True):
        found = run_chunks([end - start], {**arrays, **cut(arrays, TOKENS, start, end), "state": state})
        state = found["state"]
        outs.append(found["out"])
    equal({"out": np.concatenate(outs), "state": state}, whole)


@settings(max_examples=40, deadline=None)
@given(sequences(runs=1, longest=250), st.data())
def test_local_states_merge_to_the_whole(drawn: tuple[list[int], Arrays], data: st.DataObject) -> None:
    """Shards are uneven and may be empty; with each one's state before it, outputs are the whole sequence's too."""
    (length,), arrays = drawn
    whole = run_chunks([length], arrays)
    ranks = data.draw(st.integers(1, 6))
    places = sorted(data.draw(st.lists(st.integers(0, length), min_size=ranks - 1, max_size=ranks - 1)))
    spans = list(zip([0, *places], [*places, length], strict=True))
    parts = [call("kda_local_state", cut(arrays, LOCAL, *span)) for span in spans]
    slot = int(arrays["state_slots"][0])
    gathered = {name: np.stack([part[name] for part in parts]) for name in ("s_ext", "m")}
    states = call("kda_state_merge", {**gathered, "s_0": arrays["state"][slot]})["states"]
    equal({"state": states[-1]}, {"state": whole["state"][slot]})
    outs = []
    for (start, end), before in zip(spans, states, strict=False):
        state = np.array(arrays["state"])
        state[slot] = before
        outs.append(run_chunks([end - start], {**arrays, **cut(arrays, TOKENS, start, end), "state": state})["out"])
    equal({"out": np.concatenate(outs)}, {"out": whole["out"]})


@settings(max_examples=40, deadline=None)
@given(sequences(runs=1, longest=200))
def test_the_local_state_takes_any_state_to_the_one_after(drawn: tuple[list[int], Arrays]) -> None:
    _, arrays = drawn
    found = call("kda_local_state", arrays)
    equal(found, plain("kda_local_state", arrays))
    slot = int(arrays["state_slots"][0])
    after = np.einsum("hij,hjv->hiv", found["m"], arrays["state"][slot]) + found["s_ext"]
    equal({"state": after}, {"state": run_chunks([len(arrays["k"])], arrays)["state"][slot]})


@settings(max_examples=40, deadline=None)
@given(sequences(), st.sampled_from([torch.float32, torch.float64]))
def test_slots_not_named_and_empty_runs_stay_as_they_are(drawn: tuple[list[int], Arrays], dtype: torch.dtype) -> None:
    lengths, arrays = drawn
    given_state = arrays["state"].astype(np.float32).astype(np.float64)
    slots = arrays["state_slots"]
    still = [slot for slot in range(len(given_state)) if slot not in slots[np.array(lengths) > 0]]
    after = run_chunks(lengths, {**arrays, "state": given_state}, dtype)["state"]
    np.testing.assert_array_equal(after[still], given_state[still])
    if len(arrays["q"]) >= len(lengths):
        one = {**arrays, **cut(arrays, TOKENS, 0, len(lengths)), "state": given_state}
        unnamed = [slot for slot in range(len(given_state)) if slot not in slots]
        np.testing.assert_array_equal(call("kda_recurrent", one, dtype)["state"][unnamed], given_state[unnamed])


@settings(max_examples=40, deadline=None)
@given(sequences(runs=3), st.floats(1.0, 1000.0))
def test_no_decay_overflows(drawn: tuple[list[int], Arrays], times: float) -> None:
    """However strong the decay: in float32 an exponent of more than 88 would be infinite."""
    lengths, arrays = drawn
    g = -np.abs(arrays["g"]) * times - 1.0
    wanted = plain("kda_chunk", {**arrays, "g": g, "query_starts": starts(lengths)})
    found = run_chunks(lengths, {**arrays, "g": g}, torch.float32)
    assert all(np.isfinite(array).all() for array in found.values())
    equal(found, wanted, 2e-5)


def test_a_total_decay_forgets_everything() -> None:
    rng = np.random.default_rng(0)
    dims = {"H": 2, "K": 8, "V": 8, "X": 1}
    arrays = {**recurrence.tokens(rng, dims, "normal", 70), "state": rng.standard_normal((1, 2, 8, 8))}
    arrays["g"][40] = -np.inf
    arrays["state_slots"] = np.zeros(1, np.int32)
    whole = run_chunks([70], arrays)
    late = {**arrays, **cut(arrays, TOKENS, 40, 70), "state": np.zeros((1, 2, 8, 8))}
    equal({"out": whole["out"][40:], "state": whole["state"]}, run_chunks([30], late))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 2**32), st.data())
def test_a_convolution_may_be_split_anywhere(lengths: list[int], width: int, seed: int, data: st.DataObject) -> None:
    """The inputs at the border come back through the state, also when a part is shorter than the state."""
    rng = np.random.default_rng(seed)
    runs = len(lengths)
    arrays: Arrays = {
        "weight": rng.standard_normal((5, width)),
        "x": rng.standard_normal((sum(lengths), 5)),
        "state": rng.standard_normal((runs + 2, 5, width - 1)),
        "state_slots": recurrence.state_slots(rng, {"X": runs + 2, "B": runs}),
    }
    wanted = plain("short_convolution", {**arrays, "query_starts": starts(lengths)})
    equal(call("short_convolution", {**arrays, "query_starts": starts(lengths)}), wanted)
    borders = [data.draw(st.integers(0, length)) for length in lengths]
    out, state = np.zeros_like(arrays["x"]), arrays["state"]
    for begins, ends in (([0] * runs, borders), (borders, lengths)):
        rows = [start + t for start, a, b in zip(starts(lengths), begins, ends, strict=False) for t in range(a, b)]
        part = starts([b - a for a, b in zip(begins, ends, strict=True)])
        given_part = {**arrays, "x": arrays["x"][rows], "state": state, "query_starts": part}
        found = call("short_convolution", given_part)
        out[rows], state = found["out"], found["state"]
    equal({"out": out, "state": state}, wanted)
    unnamed = [slot for slot in range(runs + 2) if slot not in arrays["state_slots"]]
    np.testing.assert_array_equal(state[unnamed], arrays["state"][unnamed])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_keeps_its_inputs_exactly(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    arrays: Arrays = {
        "weight": rng.standard_normal((6, 4)),
        "x": torch.from_numpy(rng.standard_normal((9, 6))).to(dtype).double().numpy(),
        "state": np.zeros((1, 6, 3)),
        "state_slots": np.zeros(1, np.int32),
        "query_starts": np.array([0, 9], np.int32),
    }
    np.testing.assert_array_equal(call("short_convolution", arrays, dtype)["state"][0], arrays["x"][-3:].T)


@settings(max_examples=30, deadline=None)
@given(sequences(runs=1, longest=300))
def test_gates_make_a_decay_and_a_strength(drawn: tuple[list[int], Arrays]) -> None:
    """Whatever arrives: 0 <= beta <= 1 and g <= 0, finite, in float32."""
    _, arrays = drawn
    count, heads, keys = arrays["q"].shape
    raw = {"raw": 40.0 * arrays["q"], "raw_beta": 40.0 * arrays["v"][:, :, 0]}
    found = call(
        "kda_gate", {"a_log": np.full(heads, 2.7), "dt_bias": np.full((heads, keys), -3.0), **raw}, torch.float32
    )
    assert found["g"].shape == (count, heads, keys)
    assert np.isfinite(found["g"]).all()
    assert (found["g"] <= 0).all()
    assert ((found["beta"] >= 0) & (found["beta"] <= 1)).all()
