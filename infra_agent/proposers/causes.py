"""Why an engine may be slow, and how likely each cause is, given observed facts.

Each cause has signs: a number read from the facts, the level at which it speaks for the cause, and how strongly. A
sign gives a bounded log-likelihood ratio, so that no single fact decides alone, and a fact that was not observed
gives none. From the signs follow

* `presence`: for each cause by itself, the probability that it is there (several can be), and
* `diagnosis`: one distribution over "what is mainly wrong", in which a cause counts by presence times the time that
  it could be costing, and `healthy` by the probability that nothing is there.

`found.<cause>` among the facts says how many places in the code a library found where that cause could be removed (0:
it looked, and there is none). A cause that this table does not know is judged by that alone, so a library can bring
its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Facts = Mapping[str, float | bool | str]

HEALTHY = "healthy"
UNKNOWN = "unknown"

#: Below this log gain a cause is not worth naming as the main one.
NEGLIGIBLE = 0.02


@dataclass(frozen=True)
class Sign:
    """One indication. `weight` bounds the log-likelihood ratio: weight * tanh((value - level) / width); a negative
    width turns it round.
    """

    read: Callable[[Facts], float | None]
    level: float
    width: float
    weight: float
    words: str = ""

    def evidence(self, facts: Facts) -> float:
        """Log-likelihood ratio, cause present against absent; 0 when the fact was not observed."""
        value = self.read(facts)
        return 0.0 if value is None else self.weight * math.tanh((value - self.level) / self.width)


@dataclass(frozen=True)
class Cause:
    """One cause. `headroom` is the log gain that removing it could bring if it is there, from shares of time."""

    name: str
    title: str
    prior: float
    signs: tuple[Sign, ...]
    headroom: Callable[[Facts], float]
    observation: Callable[[Facts], str] = field(default=lambda facts: "")


# -- readings ----------------------------------------------------------------------------------------------------------


def _number(facts: Facts, name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _get(facts: Facts, name: str, default: float = 0.0) -> float:
    value = _number(facts, name)
    return default if value is None else value


def _roles(facts: Facts, *words: str) -> float | None:
    """Share of busy time of all operators whose role contains one of the words; None when no operator was profiled."""
    shares = {name: _number(facts, name) for name in facts if name.startswith("share.op.")}
    operators = {name.removeprefix("share.op."): share for name, share in shares.items() if share is not None}
    if not operators:
        return None
    return sum(share for role, share in operators.items() if any(word in role for word in words))


def _projections(facts: Facts) -> float | None:
    return _roles(facts, "projection", "linear", "lm_head", "matmul")


def _parallel_projections(facts: Facts) -> float | None:
    return _roles(facts, "qkv", "gate_up")


def _decode_attention(facts: Facts) -> float | None:
    roles = [name for name in facts if name.startswith("share.op.") and "attention" in name and "decode" in name]
    return sum(_get(facts, name) for name in roles) if roles else None


def _attention(facts: Facts) -> float | None:
    return _roles(facts, "attention")


def _norms(facts: Facts) -> float | None:
    return _roles(facts, "norm")


def _tables(facts: Facts) -> float | None:
    return _roles(facts, "rotary_tables", "mask")


def _chunk_filled(facts: Facts) -> float | None:
    """Prompt tokens of a step over the most that a step may have."""
    tokens, chunk = _number(facts, "prefill.tokens_per_step"), _number(facts, "launch.prefill_chunk")
    return None if tokens is None or not chunk else tokens / chunk


def _phase(facts: Facts, *names: str) -> float | None:
    found = [value for name in names if (value := _number(facts, f"share.phase.{name}")) is not None]
    return sum(found) if found else None


def _prompt_time(facts: Facts) -> float | None:
    """Share of time that computes prompts; a mixed step counts half."""
    alone, mixed = _number(facts, "share.phase.prefill"), _number(facts, "share.phase.mixed")
    return None if alone is None and mixed is None else (alone or 0.0) + 0.5 * (mixed or 0.0)


def _waiting_per_slot(facts: Facts) -> float | None:
    waiting, rows = _number(facts, "queue.waiting_mean"), _number(facts, "decode.rows_mean")
    return None if waiting is None or not rows else waiting / rows


def _unserved_repeats(facts: Facts) -> float | None:
    repeated = _number(facts, "prefix.repeat_share")
    return None if repeated is None else max(0.0, repeated - _get(facts, "prefix.hit_share"))


def _threads_off(facts: Facts) -> float | None:
    """|log2(threads / cores)|: 0 when they match; `threads = 0` means all cores."""
    threads, cores = _number(facts, "launch.threads"), _number(facts, "machine.cores")
    if threads is None or not cores:
        return None
    return 0.0 if threads == 0 or cores < 1 else abs(math.log2(max(1.0, threads) / cores))


def _wide(facts: Facts) -> float | None:
    """Bytes a weight, where the machine multiplies a narrower type natively."""
    return _number(facts, "weights.bytes_per_param") if facts.get("machine.bf16", True) else None


def _found(cause: str) -> Sign:
    return Sign(lambda facts: _number(facts, f"found.{cause}"), 0.5, 0.3, 3.0)


def _saved(share: float | None, part: float) -> float:
    """Log gain of removing `part` of a share of time."""
    return -math.log1p(-min(0.95, max(0.0, min(1.0, share or 0.0) * part)))


def _percent(value: float | None) -> str:
    return "an unmeasured part" if value is None else f"{100 * value:.0f} %"


# -- the table ---------------------------------------------------------------------------------------------------------

CAUSES: tuple[Cause, ...] = (
    Cause(
        "too_few_slots",
        "requests wait while the batch is small",
        0.3,
        (Sign(_waiting_per_slot, 0.25, 0.2, 3.0), Sign(lambda f: _number(f, "decode.occupancy"), 0.75, 0.15, 1.0)),
        lambda f: 0.6 * math.log1p(min(4.0, _waiting_per_slot(f) or 0.0)),
        lambda f: (
            f"{_get(f, 'queue.waiting_mean'):.1f} requests wait on average while {_get(f, 'decode.rows_mean'):.1f} run"
            f" ({_percent(_number(f, 'decode.occupancy'))} of the slots)"
        ),
    ),
    Cause(
        "wide_weights",
        "weights are wider than the machine's fast matrix type",
        0.3,
        (Sign(_wide, 3.0, 0.6, 3.0), Sign(_projections, 0.25, 0.15, 0.7)),
        lambda f: _saved(_projections(f), 0.45),
        lambda f: (
            f"projections take {_percent(_projections(f))} of the busy time and read"
            f" {_get(f, 'weights.bytes_per_param'):.1f} bytes a weight"
        ),
    ),
    Cause(
        "weights_repacked_every_call",
        "constant weights are laid out again at every call",
        0.15,
        (_found("weights_repacked_every_call"),),
        lambda f: _saved(_projections(f), 0.25),
        lambda f: f"projections take {_percent(_projections(f))} of the busy time and their weights are not packed",
    ),
    Cause(
        "projections_apart",
        "projections of the same input are separate calls",
        0.15,
        (_found("projections_apart"),),
        lambda f: _saved(_parallel_projections(f), 0.12),
        lambda f: (
            f"projections that read the same input take {_percent(_parallel_projections(f))} of the busy time,"
            " one call each"
        ),
    ),
    Cause(
        "blocks_gathered",
        "decode attention gathers and copies the cache",
        0.2,
        (_found("blocks_gathered"), Sign(_decode_attention, 0.12, 0.05, 2.0)),
        lambda f: _saved(_decode_attention(f), 0.8),
        lambda f: (
            f"decode attention takes {_percent(_decode_attention(f))} of the busy time at"
            f" {_get(f, 'decode.rows_mean'):.1f} rows a step"
        ),
    ),
    Cause(
        "kv_heads_repeated",
        "keys and values are repeated for every query head",
        0.15,
        (_found("kv_heads_repeated"), Sign(_attention, 0.12, 0.06, 1.0)),
        lambda f: _saved(_attention(f), 0.3),
        lambda f: (
            f"attention takes {_percent(_attention(f))} of the busy time and repeats keys and values for each head"
        ),
    ),
    Cause(
        "norm_in_pieces",
        "a normalisation is written out operation by operation",
        0.15,
        (_found("norm_in_pieces"),),
        lambda f: _saved(_norms(f), 0.25),
        lambda f: f"normalisations take {_percent(_norms(f))} of the busy time, several operations each",
    ),
    Cause(
        "tensors_regrown",
        "tensors grow by copying what is there",
        0.1,
        (_found("tensors_regrown"),),
        lambda f: 0.03 * min(1.0, _get(f, "found.tensors_regrown")),
        lambda f: f"tensors grow by concatenation in {_get(f, 'found.tensors_regrown'):.0f} places",
    ),
    Cause(
        "prefixes_recomputed",
        "shared prompt prefixes are computed again",
        0.25,
        (Sign(_unserved_repeats, 0.12, 0.06, 3.0), Sign(_prompt_time, 0.15, 0.1, 0.7)),
        lambda f: _saved(_prompt_time(f), 0.95 * (_unserved_repeats(f) or 0.0)),
        lambda f: (
            f"{_percent(_number(f, 'prefix.repeat_share'))} of the prompt tokens repeat an earlier prefix and"
            f" {_percent(_number(f, 'prefix.hit_share'))} come from the cache"
        ),
    ),
    Cause(
        "threads_do_not_match_cores",
        "the thread count does not fit the cores",
        0.2,
        (Sign(_threads_off, 0.4, 0.2, 3.5),),
        lambda f: 0.6 * math.log(2) * min(2.0, _threads_off(f) or 0.0),
        lambda f: f"the engine runs {_get(f, 'launch.threads'):.0f} threads on {_get(f, 'machine.cores'):.0f} cores",
    ),
    Cause(
        "prompts_in_small_pieces",
        "prompts are computed in pieces too small for the machine",
        0.2,
        (
            Sign(lambda f: _number(f, "prefill.tokens_per_step"), 110.0, -45.0, 2.5),
            Sign(_chunk_filled, 0.8, 0.1, 1.0),
            Sign(_prompt_time, 0.25, 0.12, 1.2),
        ),
        lambda f: _saved(_prompt_time(f), 0.6 * max(0.0, 1.0 - _get(f, "prefill.tokens_per_step", 256.0) / 160.0)),
        lambda f: (
            f"prompts take {_percent(_prompt_time(f))} of the time at"
            f" {_get(f, 'prefill.tokens_per_step'):.0f} prompt tokens a step"
        ),
    ),
    Cause(
        "work_repeated",
        "work that does not change is repeated every step or layer",
        0.15,
        (
            _found("work_repeated"),
            Sign(lambda f: _phase(f, "prepare"), 0.08, 0.04, 1.2),
            Sign(_tables, 0.03, 0.02, 0.8),
        ),
        lambda f: (
            _saved(_get(f, "share.phase.prepare") + (_tables(f) or 0.0), 0.7)
            + 0.03 * min(1.0, _get(f, "found.work_repeated"))
        ),
        lambda f: (
            f"what prepares a step takes {_percent(_phase(f, 'prepare'))} of the time, and"
            f" {_get(f, 'found.work_repeated'):.0f} places compute again what does not change"
        ),
    ),
)

_BY_NAME = {cause.name: cause for cause in CAUSES}


def presence(facts: Facts) -> dict[str, float]:
    """Probability of each cause by itself, those that only a library knows (`found.<cause>`) included."""
    found = {name.removeprefix("found.") for name in facts if name.startswith("found.")}
    causes = [*CAUSES, *(_library_cause(name) for name in sorted(found - _BY_NAME.keys()))]
    return {cause.name: _probability(cause, facts) for cause in causes}


def _library_cause(name: str) -> Cause:
    return Cause(name, name.replace("_", " "), 0.25, (_found(name),), lambda facts: NEGLIGIBLE)


def _probability(cause: Cause, facts: Facts) -> float:
    logit = math.log(cause.prior / (1 - cause.prior)) + sum(sign.evidence(facts) for sign in cause.signs)
    return 1 / (1 + math.exp(-logit))


def with_found(facts: Facts, offered: Iterable[str], looked_for: Iterable[str]) -> dict[str, float | bool | str]:
    """The facts, and for each cause that a library looked for in the code (`looked_for`), in how many places it was
    `offered` to remove it.
    """
    found: dict[str, float | bool | str] = {f"found.{cause}": 0.0 for cause in looked_for}
    for cause in offered:
        found[f"found.{cause}"] = float(found.get(f"found.{cause}", 0.0)) + 1.0
    return {**facts, **found}


def headroom(cause: str, facts: Facts) -> float:
    """Log gain that removing the cause could bring if it is there; 0 for a cause that the table does not know."""
    return max(0.0, _BY_NAME[cause].headroom(facts)) if cause in _BY_NAME else 0.0


def diagnosis(facts: Facts) -> list[tuple[str, float]]:
    """What is mainly wrong: `(cause, probability)`, most likely first, `healthy` among them; the probabilities sum to
    one. Where no share of time was observed, nothing can be said: `unknown`.
    """
    if not any(name.startswith("share.") for name in facts):
        return [(UNKNOWN, 1.0)]
    present = presence(facts)
    weights = {name: p * headroom(name, facts) for name, p in present.items() if headroom(name, facts) >= NEGLIGIBLE}
    healthy = math.prod(1 - present[name] for name in weights)
    total = sum(weights.values())
    ranked = {name: (1 - healthy) * weight / total for name, weight in weights.items()} if total else {}
    ranked[HEALTHY] = healthy if total else 1.0
    return sorted(ranked.items(), key=lambda item: (-item[1], item[0]))


def observation(cause: str, facts: Facts) -> str:
    """The facts that speak for a cause, as a clause for a sentence."""
    known = _BY_NAME.get(cause)
    if known is None:
        places = _get(facts, f"found.{cause}")
        return f"{cause.replace('_', ' ')} was found in {places:.0f} place{'s' if places != 1 else ''}"
    return known.observation(facts)
