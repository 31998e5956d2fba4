"""That the cases and tolerances of the linear-attention operators see defects of the usual kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from target_engine.ops import registry
from tests.target_engine.test_ops import DTYPES, TARGET, Defect, _change, _shift, as_dict, config_of, excess, opened


def _kept(index: int) -> Defect:
    """A state that is not written back."""

    def defect(run: Any, arguments: tuple[Any, ...]) -> Any:
        kept = arguments[index].clone()
        result = run(*arguments)
        arguments[index].copy_(kept)
        return result

    return defect


def _disturbed(run: Any, arguments: tuple[Any, ...]) -> Any:
    """A slot that no sequence owns is written to, by a little."""
    result = run(*arguments)
    state, slots = arguments[5], arguments[6]
    free = [slot for slot in range(len(state)) if slot not in slots.tolist()]
    if free:
        state[free[0]] *= 1.1
    return result


def _before(index: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Defect:
    """The states of the call's sequences, argument `index`, seen wrongly; their slots are the argument after."""

    def defect(run: Any, arguments: tuple[Any, ...]) -> Any:
        state, slots = arguments[index], arguments[index + 1].long()
        state[slots] = change(state[slots])
        return run(*arguments)

    return defect


def _chunks_from_nothing(run: Any, arguments: tuple[Any, ...]) -> Any:
    """The state between two chunks is lost."""
    *tokens, state, slots, starts = arguments
    out = torch.empty_like(tokens[2])
    for row in range(len(slots)):
        start, end = int(starts[row]), int(starts[row + 1])
        for first in range(start, end, 64):
            part = [tensor[first : min(end, first + 64)] for tensor in tokens]
            if first > start:
                state[slots[row].long()] = 0.0
            ends = torch.tensor([0, len(part[0])], dtype=torch.int32)
            out[first : first + len(part[0])] = run(*part, state, slots[row : row + 1], ends)
    return out


def _first_token_of_each_run(run: Any, arguments: tuple[Any, ...]) -> Any:
    """A run's first token is dropped: what a border off by one does."""
    beta = arguments[4].clone()
    if not len(beta):
        return run(*arguments)
    beta[arguments[7][:-1].long().clamp(max=len(beta) - 1)] = 0.0
    return run(*arguments[:4], beta, *arguments[5:])


def _roll(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(1, 0)


DEFECTS: dict[str, tuple[str, Defect]] = {
    "a convolution whose state stays": ("short_convolution", _kept(1)),
    "a convolution without history": ("short_convolution", _before(1, torch.zeros_like)),
    "a convolution over the history backwards": ("short_convolution", _before(1, lambda state: state.flip(-1))),
    "convolution states in the wrong slots": ("short_convolution", _change(2, _roll)),
    "convolved rows in the wrong order": ("short_convolution", _shift(0)),
    "a gate a per mille too strong": ("kda_gate", lambda run, a: (lambda g, beta: (g * 1.001, beta))(*run(*a))),
    "a gate of the next token": ("kda_gate", _shift(0)),
    "strengths of the next token": ("kda_gate", _shift(1)),
    "chunks without decay": ("kda_chunk", _change(3, torch.zeros_like)),
    "chunks decayed a token late": ("kda_chunk", _change(3, _roll)),
    "chunks that write at full strength": ("kda_chunk", _change(4, torch.ones_like)),
    "chunks with queries and keys swapped": ("kda_chunk", lambda run, a: run(a[1], a[0], *a[2:])),
    "chunks of the wrong slots": ("kda_chunk", _change(6, _roll)),
    "chunks whose state stays": ("kda_chunk", _kept(5)),
    "chunks that disturb a slot": ("kda_chunk", _disturbed),
    "chunks that start from nothing": ("kda_chunk", _before(5, torch.zeros_like)),
    "chunks that forget each other": ("kda_chunk", _chunks_from_nothing),
    "chunks that lose a run's first token": ("kda_chunk", _first_token_of_each_run),
    "chunks with heads in the wrong order": ("kda_chunk", _change(4, lambda beta: beta.roll(1, 1))),
    "a step without decay": ("kda_recurrent", _change(3, torch.zeros_like)),
    "a step at full strength": ("kda_recurrent", _change(4, torch.ones_like)),
    "a step of the wrong slots": ("kda_recurrent", _change(6, _roll)),
    "a step whose state stays": ("kda_recurrent", _kept(5)),
    "a step that disturbs a slot": ("kda_recurrent", _disturbed),
    "a step with queries for keys": ("kda_recurrent", lambda run, a: run(a[0], a[0], *a[2:])),
    "a transition transposed": ("kda_local_state", lambda run, a: (lambda s, m: (s, m.mT.contiguous()))(*run(*a))),
    "a transition without decay": ("kda_local_state", lambda run, a: (run(*a)[0], run(a[0], a[1], 0 * a[2], a[3])[1])),
    "a local state without its last token": (
        "kda_local_state",
        lambda run, a: run(*(tensor[:-1] for tensor in a)) if len(a[0]) else run(*a),
    ),
    "ranks in the wrong order": ("kda_state_merge", lambda run, a: run(a[0].flip(0), a[1].flip(0), a[2])),
    "a merge without the first state": ("kda_state_merge", _change(2, torch.zeros_like)),
    "a merge with transitions transposed": ("kda_state_merge", _change(1, lambda m: m.mT.contiguous())),
    "a merge that gives states a rank late": ("kda_state_merge", _shift(0)),
    "a normalisation gated by itself": ("gated_norm", lambda run, a: run(a[0], a[0])),
    "a normalisation of the wrong rows": ("gated_norm", _change(1, _roll)),
    "a normalisation five per cent too large": ("gated_norm", lambda run, a: run(*a) * 1.05),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_seen(name: str, dtype: str) -> None:
    operator, defect = DEFECTS[name]
    config = config_of(operator, "torch", dtype)
    for case in registry.specification(operator).cases:
        inputs = TARGET.operator_inputs(operator, as_dict(case), config, 11)
        handle = opened(operator, "torch", dtype, case, inputs)
        spec, launch, run = TARGET._handles[handle]
        TARGET._handles[handle] = (spec, launch, lambda *arguments, run=run: defect(run, arguments))
        got = TARGET.operator_run(handle, inputs)
        if excess(operator, dtype, got, TARGET.operator_reference(operator, as_dict(case), config, inputs)) > 1.0:
            return
    pytest.fail("no case sees it")


class Tf32(TorchFunctionMode):
    """Products of matrices with operands of 10 explicit bits, to nearest: the smaller of the errors that tf32 makes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("matmul", "__matmul__"):
            args = tuple(self.rounded(operand) for operand in args)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(operand: torch.Tensor) -> torch.Tensor:
        bits = operand.contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize(
    ("operator", "cases"),
    [
        ("kda_chunk", {"weak-decay", "long-chain", "four-prompts", "model-heads"}),
        ("kda_local_state", {"weak-decay", "long-chain", "wide-long-chain", "fewer-tokens-than-keys"}),
        ("kda_state_merge", {"weak-decay", "many-ranks-of-weak-decay", "model-heads"}),
    ],
)
def test_the_tolerance_tells_tf32_from_float32(operator: str, cases: set[str]) -> None:
    config = config_of(operator, "torch", "float32")
    seen = set()
    for case in registry.specification(operator).cases:
        inputs = TARGET.operator_inputs(operator, as_dict(case), config, 7)
        wanted = TARGET.operator_reference(operator, as_dict(case), config, inputs)
        handle = opened(operator, "torch", "float32", case, inputs)
        assert excess(operator, "float32", TARGET.operator_run(handle, inputs), wanted) <= 0.5, case.name
        with Tf32():
            coarse = TARGET.operator_run(handle, inputs)
        if excess(operator, "float32", coarse, wanted) > 2.0:
            seen.add(case.name)
    assert seen >= cases
