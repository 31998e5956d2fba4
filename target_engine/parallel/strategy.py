"""From a launch configuration to the operator plan: which operators run, how each input is cut, what combines them, and
which unsharded path they must equal. Torch-free, and not for an agent to edit: checks are made from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig
from target_engine.models.config import ModelConfig
from target_engine.ops.registry import specification
from target_engine.ops.specification import Tolerance
from target_engine.parallel.sharding import Sharding

Phase = Literal["prefill", "decode"]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Use:
    """One place where a model calls an operator. `tp` names its tensor-parallel sharding; `layers`: how many have it;
    `alone`: why context-parallel ranks do not cut it.
    """

    operator: str
    role: str
    dims: dict[str, int]
    layers: int
    tp: str | None = None
    phases: tuple[Phase, ...] = ("prefill", "decode")
    alone: str = ""


@dataclass(frozen=True)
class PlanRow:
    """One operator in one phase under one cut: everything that a check of it needs.

    `shapes` are those that the cut divides (a context cut of what tensor parallelism has left), `local` those of rank
    0, which has the most. `sharding` None: nothing is cut, for the reason in `note`.
    """

    operator: str
    role: str
    phase: Phase
    layers: int
    implementation: str
    axis: Literal["tp", "cp"] | None
    sharding: str | None
    ranks: int
    shapes: Shapes
    local: Shapes
    cuts: dict[str, str]
    collective: str
    steps: tuple[str, ...]
    reference: str
    tolerance: Tolerance | None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def problems(config: LaunchConfig, model: ModelConfig, tokens: int | None = None) -> list[str]:
    """What keeps this model from running under this configuration's tp and cp; `tokens` is the longest prefill step,
    `prefill_chunk` where it is not given.
    """
    tp, cp = config.tp, config.cp
    tokens = config.prefill_chunk if tokens is None else tokens
    found = []
    if tp > model.num_heads:
        found.append(f"tp {tp} is more than the model's {model.num_heads} query heads: give at most {model.num_heads}")
    if model.intermediate_size % tp:
        fits = _divisors(model.intermediate_size, model.num_heads)
        found.append(f"tp {tp} does not divide the intermediate size {model.intermediate_size}: give one of {fits}")
    if model.kda_layers and model.linear_num_heads % tp:
        fits = _divisors(model.linear_num_heads, model.linear_num_heads)
        found.append(f"tp {tp} does not divide the {model.linear_num_heads} linear heads: give one of {fits}")
    if tp > model.vocab_size:
        found.append(f"tp {tp} is more than the vocabulary of {model.vocab_size}: give at most {model.vocab_size}")
    if cp > tokens:
        found.append(f"cp {cp} is more than the {tokens} tokens of the longest prefill step: give at most {tokens}")
    if config.layer_split and cp == 1:
        found.append("layer_split needs context-parallel ranks: give cp 2 or more")
    return found


def check(config: LaunchConfig, model: ModelConfig, tokens: int | None = None) -> None:
    """Raises `EngineError` with the first of `problems`."""
    for problem in problems(config, model, tokens):
        raise EngineError(f"plan: {problem}")


def _divisors(number: int, most: int) -> str:
    return ", ".join(str(part) for part in range(1, most + 1) if number % part == 0)


def plan(config: LaunchConfig, model: ModelConfig, tokens: int | None = None) -> list[PlanRow]:
    """The rows of a prefill step of `tokens` tokens of one prompt, and of a decode step of `max_batch` sequences.

    Raises `EngineError` when the model cannot run under this configuration.
    """
    check(config, model, tokens)
    tokens = config.prefill_chunk if tokens is None else tokens
    rows: list[PlanRow] = []
    for use in uses(config, model):
        for phase in use.phases:
            rows += _rows(config, use, phase, tokens if phase == "prefill" else config.max_batch)
    return rows


def _rows(config: LaunchConfig, use: Use, phase: Phase, count: int) -> Iterator[PlanRow]:
    """The cuts of one operator in one phase: tensor parallel, then context parallel of what that leaves."""
    spec = specification(use.operator)
    sequences = 1 if phase == "prefill" else count
    table = -(-config.max_model_len // config.block_size)
    dims = {"N": count, "B": sequences, "E": sequences + 1, "T": table, "R": config.cp} | use.dims
    if use.operator in ("lm_head", "sampling"):
        dims["N"] = sequences
    if use.operator == "kda_local_state":
        dims["N"] = -(-count // config.cp)
    if use.operator == "kda_state_merge":
        dims["E"] = config.cp + 1
    shardings = {sharding.name: sharding for sharding in spec.shardings}
    cuts: list[tuple[Sharding, int]] = []
    if use.tp is not None and config.tp > 1:
        cuts.append((shardings[use.tp], config.tp))
    context = shardings.get("layers") if config.layer_split else None
    context = context or (shardings.get("context") if phase == "prefill" else None)
    if context is not None and config.cp > 1:
        cuts.append((context, config.cp))
    for sharding, ranks in cuts:
        yield _row(config, use, phase, dims, sharding, ranks)
        if not (phase == "decode" and sharding.by_tokens):
            dims = sharding.dims(dims, ranks, 0)
    if not cuts:
        yield _row(config, use, phase, dims, None, 1)


def _row(
    config: LaunchConfig, use: Use, phase: Phase, dims: dict[str, int], sharding: Sharding | None, ranks: int
) -> PlanRow:
    spec = specification(use.operator)
    shapes = _shapes(use.operator, dims)
    cuts = sharding.cuts if sharding else dict.fromkeys(shapes, "replicated")
    collective = sharding.collective if sharding else "none"
    local = _local(use.operator, dims, sharding, ranks) if sharding else shapes
    if sharding and sharding.by_tokens and phase == "decode":  # every rank has all decodes: their owner alone acts
        cuts = {name: "replicated" if "N" in cut.split() else cut for name, cut in cuts.items()}
        collective, local = "none", shapes
    return PlanRow(
        operator=use.operator,
        role=use.role,
        phase=phase,
        layers=use.layers,
        implementation=config.implementation(use.operator),
        axis=sharding.axis if sharding else None,
        sharding=sharding.name if sharding else None,
        ranks=ranks,
        shapes=shapes,
        local=local,
        cuts=cuts,
        collective=collective,
        steps=sharding.steps if sharding else ("output",),
        reference=f"target_engine/ops/{use.operator}/reference.py on the whole inputs of one rank",
        tolerance=sharding.tolerance[config.dtype] if sharding else None,
        note="" if sharding else spec.unsharded or use.alone or _why_alike(config, phase),
    )


def _why_alike(config: LaunchConfig, phase: Phase) -> str:
    """Why nothing of an operator is cut that could be under another configuration."""
    if config.tp * config.cp == 1:
        return "there is one rank"
    if config.cp > 1 and phase == "decode":
        return "context-parallel ranks compute decodes alike"
    return "tensor-parallel ranks compute it alike: its inputs are whole on all of them"


def _shapes(operator: str, dims: dict[str, int]) -> Shapes:
    return {
        tensor.name: tuple(dims[axis] if isinstance(axis, str) else axis for axis in tensor.shape)
        for tensor in specification(operator).tensors
    }


def _local(operator: str, dims: dict[str, int], sharding: Sharding, ranks: int) -> Shapes:
    """Shapes on rank 0; what another rank owns is counted with it."""
    whole, mine = _shapes(operator, dims), _shapes(operator, sharding.dims(dims, ranks, 0))
    return {name: whole[name] if name in sharding.whole | sharding.owned else shape for name, shape in mine.items()}


def uses(config: LaunchConfig, model: ModelConfig) -> list[Use]:
    """Every place where the model calls an operator, in the order of a step."""
    hidden, inner, vocabulary = model.hidden_size, model.intermediate_size, model.vocab_size
    heads, kv_heads, size = model.num_heads, model.num_kv_heads, model.head_dim
    kda, layers = len(model.kda_layers), model.num_layers
    full = layers - kda
    attention = {"H": heads, "G": kv_heads, "D": size}
    cache = attention | {"X": config.kv_blocks, "S": config.block_size}
    projected = {"Q": heads * size, "P": kv_heads * size, "K": hidden, "D": size}
    return [
        Use("embedding", "embedding", {"V": vocabulary, "K": hidden}, 1, "vocabulary"),
        Use("rotary", "positions", {"D": size, "F": size // 2}, 1),
        Use("rms_norm", "norms", {"K": hidden}, 2 * layers + 1),
        Use("qkv_projection", "attention input", projected, full, "heads"),
        Use("rope", "attention input", attention, full, "heads"),
        Use("kv_write", "attention cache", cache, full, "heads"),
        Use("attention_prefill", "attention", cache, full, "heads", ("prefill",)),
        Use("attention_decode", "attention", cache, full, "heads", ("decode",)),
        Use(
            "linear", "attention output", {"M": hidden, "K": heads * size, "D": size, "G": kv_heads}, full, "head_rows"
        ),
        *(_kda_uses(config, model) if kda else ()),
        Use("gate_up_projection", "mlp input", {"M": inner, "K": hidden}, layers, "columns"),
        Use("silu_mul", "mlp", {"M": inner}, layers, "columns"),
        Use("linear", "mlp output", {"M": hidden, "K": inner}, layers, "rows"),
        Use("lm_head", "logits", {"V": vocabulary, "K": hidden}, 1, "vocabulary"),
        Use("sampling", "sampling", {"V": vocabulary}, 1),
    ]


def _kda_uses(config: LaunchConfig, model: ModelConfig) -> Iterator[Use]:
    """The operators of the linear-attention layers."""
    hidden, heads, layers = model.hidden_size, model.linear_num_heads, len(model.kda_layers)
    key, value, width = model.linear_key_dim, model.linear_value_dim, model.conv_width
    slots = config.state_slots
    for role, inputs, outputs, cut in (
        ("queries, keys", hidden, heads * key, "columns"),
        ("values", hidden, heads * value, "columns"),
        ("write strength", hidden, heads, "columns"),
        ("decay, gate: down", hidden, value, None),
        ("decay: up", value, heads * key, "columns"),
        ("gate: up", value, heads * value, "columns"),
    ):
        count = 2 * layers if "," in role else layers
        yield Use("linear", f"linear attention {role}", {"M": outputs, "K": inputs}, count, cut)
    taps = {"W": width, "P": width - 1, "X": slots, "H": heads}
    yield Use("short_convolution", "queries, keys", {"C": heads * key} | taps, 2 * layers, "heads")
    yield Use("short_convolution", "values", {"C": heads * value} | taps, layers, "heads")
    yield Use("kda_gate", "linear attention", {"H": heads, "K": key}, layers, "heads")
    state = {"H": heads, "K": key, "V": value, "X": slots}
    yield Use("kda_chunk", "linear attention", state, layers, "heads", ("prefill",))
    if config.cp > 1:
        own, same = "each rank computes it of its own tokens", "every rank folds the same gathered parts"
        yield Use("kda_local_state", "within kda_chunk", state, layers, "heads", ("prefill",), own)
        yield Use("kda_state_merge", "within kda_chunk", state, layers, "heads", ("prefill",), same)
    yield Use("kda_recurrent", "linear attention", state, layers, "heads", ("decode",))
    yield Use("gated_norm", "linear attention", {"H": heads, "V": value}, layers, "heads")
    yield Use("linear", "linear attention output", {"M": hidden, "K": heads * value}, layers, "rows")


def render(rows: list[PlanRow]) -> Iterator[str]:
    """The plan as lines of text: a headline an operator and cut, and below it what is cut and what it must equal."""
    for row in rows:
        times = f" x {row.layers}" if row.layers > 1 else ""
        head = f"{row.operator} ({row.role}{times}), {row.phase}"
        if row.sharding is None:
            yield f"{head}: whole on every rank"
            yield f"    {row.note}"
            continue
        yield f"{head}: {row.sharding} over {row.axis} {row.ranks}, combined by {row.collective}"
        for name, cut in row.cuts.items():
            if cut != "replicated":
                whole, local = list(row.shapes[name]), list(row.local[name])
                yield f"    {name} {whole}{f' -> {local}' if local != whole else ''}: {cut}"
        yield f"    equals {row.reference}"
        if row.tolerance is not None:
            allowed = row.tolerance
            yield f"    |error| <= {allowed.atol:g} + {allowed.rtol:g} |value|: {allowed.reason}"
