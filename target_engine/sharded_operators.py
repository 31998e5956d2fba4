"""Sharded operators as a judge asks for them: plain values and arrays in, plain values and arrays out.

`plan`, `shardings` and `question` are asked of a trusted tree: what is cut, what each rank is given, and what each must
give, from references in float64. `run` is asked of a tree that is judged: it gets the ranks' pieces and nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from target_engine.checkpoint import Checkpoint
from target_engine.launch import LaunchConfig, problems
from target_engine.models.config import ModelConfig
from target_engine.ops import registry
from target_engine.ops.settings import OperatorSettings
from target_engine.ops.specification import Arrays, Case, settings_of
from target_engine.parallel import strategy
from target_engine.parallel.cutting import take, token_index
from target_engine.parallel.sharding import Sharding
from target_engine.parallel.watch import Turns, Watch

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = Path(__file__).parent

RANK_PARAMETERS = ("tp", "cp", "layer_split")
"""Launch parameters that say over how many ranks a model runs."""

_OWN_AXES = frozenset({"X", "S"})
"""Axes of a case that hang together with its number of tokens: a model's sizes do not replace them."""

ALL = "*"


def plan(config: dict[str, Any]) -> dict[str, Any]:
    """The operator plan: `rows`, or `problems` that keep the model from running so; `unsharded` is the same launch on
    one rank.
    """
    found = [{"parameter": parameter, "message": message} for parameter, message in problems(config)]
    unsharded = {name: value for name, value in config.items() if name not in RANK_PARAMETERS}
    if found:
        return {"rows": [], "problems": found, "unsharded": unsharded}
    launch = LaunchConfig.parse(config)
    model = Checkpoint.open(launch.model).config
    found = [{"parameter": text.split()[0], "message": text} for text in strategy.problems(launch, model)]
    rows = [] if found else [row.as_dict() for row in strategy.plan(launch, model)]
    return {"rows": rows, "problems": found, "unsharded": unsharded}


def shardings(operator: str, config: dict[str, Any]) -> dict[str, Any]:
    """All ways to cut an operator, or why it is never cut."""
    spec, launch = registry.specification(operator), LaunchConfig.parse(config)
    model = Checkpoint.open(launch.model).config
    return {
        "unsharded": spec.unsharded,
        "shardings": [
            {
                "name": sharding.name,
                "axis": sharding.axis,
                "cuts": sharding.cuts,
                "collective": sharding.collective,
                "steps": sharding.steps,
                "tolerance": {dtype: asdict(tolerance) for dtype, tolerance in sharding.tolerance.items()},
                "uneven": sharding.by_tokens,
                "file": f"target_engine/ops/{operator}/parallel.py",
                "cases": [asdict(case) for case in model_cases(sharding, launch, model)],
            }
            for sharding in spec.shardings
        ],
    }


def model_cases(sharding: Sharding, launch: LaunchConfig, model: ModelConfig) -> list[Case]:
    """Input conditions with the configured model's numbers of heads, and all other sizes small: how heads fall on ranks
    depends on nothing else.
    """
    spec = registry.specification(sharding.operator)
    odd = [case for case in spec.cases if "odd" in case.tags and case.dims.get("N", case.dims.get("B", 0)) > 2]
    cases = []
    for use in strategy.uses(launch, _small(model, launch.tp)):
        if use.operator != sharding.operator or (sharding.axis == "tp" and use.tp != sharding.name):
            continue
        sizes = {axis: size for axis, size in use.dims.items() if axis not in _OWN_AXES}
        for case in (spec.cases[0], *odd[:1]):
            name = f"{use.role.replace(' ', '-')}-{case.name}"
            cases.append(Case(name, {**case.dims, **sizes}, case.distribution, ("model",)))
    return cases


def _small(model: ModelConfig, tp: int) -> ModelConfig:
    """The model with as many heads, and small heads and widths."""
    return replace(
        model,
        hidden_size=min(model.hidden_size, 40),
        intermediate_size=tp * max(1, min(model.intermediate_size // tp, 24)),
        vocab_size=max(min(model.vocab_size, 211), tp),
        head_dim=min(model.head_dim, 8),
        linear_key_dim=min(model.linear_key_dim, 16),
        linear_value_dim=min(model.linear_value_dim, 12),
    )


def question(
    operator: str, sharding: str, case: Case, dtype: str, inputs: Arrays, ranks: int, cut: int
) -> dict[str, Any]:
    """What each rank is given (`pieces`) and must give (`expected`; `steps` where the reference tells them), in float64
    where floating; or `refused`. `cut` 0 cuts tokens evenly, any other number unevenly, with empty pieces.

    `copies` are, for tensors of which two ranks hold the same elements, each rank's places in the whole.
    """
    from target_engine.parallel.simulate import find_sharding

    found = find_sharding(operator, sharding)
    refused = found.ranks(case.dims, ranks)
    if refused:
        return {"refused": refused}
    settings = settings_of(case.dims, dtype)
    pieces = found.split(case, inputs, ranks, cut)
    whole = {name: _wide(array) for name, array in inputs.items()}
    results = registry.reference(operator)(settings, **{name: array.copy() for name, array in whole.items()})
    module = importlib.import_module(f"target_engine.ops.{operator}.reference")
    wide = [{name: _wide(array) for name, array in piece.items()} for piece in pieces]
    told = module.steps(settings, sharding, wide, whole) if hasattr(module, "steps") else None
    places = {name: np.arange(array.size).reshape(array.shape) for name, array in results.items()}
    where = _shares(found, case, places, pieces)
    shared = {name for name in results if _overlap([share[name] for share in where])}
    return {
        "pieces": pieces,
        "expected": _shares(found, case, results, pieces),
        "steps": told,
        "copies": [{name: share[name] for name in shared} for share in where],
    }


def _shares(sharding: Sharding, case: Case, whole: Arrays, pieces: list[Arrays]) -> list[Arrays]:
    """What each rank has of whole outputs and inout arrays."""
    lengths = pieces[0].get("shard_lengths")
    shapes = {tensor.name: tensor.shape for tensor in registry.specification(sharding.operator).tensors}
    shares = []
    for rank, piece in enumerate(pieces):
        parts = sharding.parts(case.dims, len(pieces), rank) if lengths is None else {"N": token_index(lengths, rank)}
        share = {}
        for name, array in whole.items():
            if name in sharding.owned:
                share[name] = array if rank == int(piece["owner"][0]) else array[:0]
            else:
                share[name] = array if name in sharding.whole else take(array, shapes[name], parts)
        shares.append(share)
    return shares


def _overlap(places: list[np.ndarray]) -> bool:
    flat = np.concatenate([part.ravel() for part in places])
    return len(np.unique(flat)) < len(flat)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def unavailable(config: dict[str, Any], operators: Iterable[str]) -> dict[str, str]:
    """Operator -> why its chosen implementation cannot run on this machine, for those that cannot."""
    launch = LaunchConfig.parse(config)
    found = {}
    for operator in operators:
        reason = registry.unavailable(operator, launch.implementation(operator), launch.dtype)
        if reason:
            found[operator] = reason
    return found


def run(
    operator: str, sharding: str, case: Case, config: dict[str, Any], pieces: list[Arrays], *,
    exact: list[str], wide: bool, patience: float, serial: bool,
) -> dict[str, Any]:  # fmt: skip
    """The operator over simulated ranks, with the code that the engine combines with: `ranks` (outputs and inout
    arrays), `steps` (what each rank recorded), `changed` (inputs that a rank wrote to), `used` (operators it built).

    Operators in `exact` (`ALL`: every one) are their references in float64; `wide` makes all inputs float64. A rank may
    keep the others waiting for `patience` seconds; `serial` lets one rank at a time compute. When a rank fails the
    answer is `failed` (one line) and `at` (file, line), with the steps that were reached.
    """
    import torch

    from target_engine.parallel.collectives import Crew, RankFailure
    from target_engine.parallel.simulate import combine, find_sharding, to_array, to_tensor

    torch.set_num_threads(1)
    launch, found, size = LaunchConfig.parse(config), find_sharding(operator, sharding), len(pieces)
    spec, dtype = registry.specification(operator), "float64" if wide else launch.dtype
    rows = settings_of(case.dims, dtype).rows
    steps: list[dict[str, Arrays]] = [{} for _ in pieces]
    changed: list[list[str]] = [[] for _ in pieces]
    used: set[str] = set()
    turns, watch = Turns(), Watch()
    crew = Crew(size, [[range(size)]], patience)
    crew.timeout = patience + 2.0  # beyond the collectives' own, so that the rank that keeps others waiting is named
    combining = combine(operator)

    @watch.watched
    def body(rank: int) -> Arrays:
        settings = replace(settings_of(found.dims(case.dims, size, rank), dtype), rows=rows)
        mine = {name: to_tensor(operator, name, array, dtype) for name, array in pieces[rank].items()}

        def build(name: str, **constants: Tensor) -> Callable[..., Any]:
            used.add(name)
            if name in exact or ALL in exact:
                made = _exact(name, settings, constants)
            else:
                made = registry.build(name, launch.implementation(name), settings, **constants)
            return turns.around(rank, made) if serial else made

        def record(step: str, tensors: dict[str, Tensor]) -> None:
            steps[rank][step] = {name: to_array(tensor) for name, tensor in tensors.items()}

        outputs = combining(sharding, build, settings, mine, crew.groups[rank][0], record)
        kept = {tensor.name for tensor in spec.named("inout")}
        for name, array in pieces[rank].items():
            if name not in kept and not torch.equal(mine[name], to_tensor(operator, name, array, dtype)):
                changed[rank].append(name)
        return {name: to_array(tensor) for name, tensor in outputs.items()}

    try:
        results = crew.run(body)
    except RankFailure as error:
        line = str(error)
        if turns.holder is not None and "did not" in line:
            line = f"rank {turns.holder} of {size} did not come back from its operator within {patience:g} s"
        return {"failed": line, "at": watch.place(), "steps": steps}
    return {"ranks": results, "steps": steps, "changed": changed, "used": sorted(used)}


def _exact(operator: str, settings: OperatorSettings, constants: dict[str, Tensor]) -> Callable[..., Any]:
    """The operator's reference in float64, with results in the types that an implementation gives."""
    import torch

    spec, reference = registry.specification(operator), registry.reference(operator)

    def double(tensor: Tensor) -> np.ndarray:
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()

    fixed = {name: double(tensor) for name, tensor in constants.items()}

    def call(*arguments: Tensor) -> Any:
        given = dict(zip((tensor.name for tensor in spec.named("runtime", "inout")), arguments, strict=True))
        results = reference(settings, **fixed, **{name: double(tensor) for name, tensor in given.items()})
        for tensor in spec.named("inout"):
            given[tensor.name].copy_(torch.from_numpy(results[tensor.name]))
        compute = next((t.dtype for t in (*arguments, *constants.values()) if t.is_floating_point()), torch.float64)
        outputs = []
        for tensor in spec.named("output"):
            value = torch.from_numpy(np.ascontiguousarray(results[tensor.name]))
            narrow = compute if tensor.dtype == "compute" else getattr(torch, tensor.dtype)
            keep = settings.dtype == "float64" or not value.is_floating_point()
            outputs.append(value if keep else value.to(narrow))
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    return call
