"""Facts: a profiled run, the launch configuration and the machine as one flat dictionary that conditions can be asked
of.

Names: `launch.<parameter>`, `launch.operators.<operator>`, `machine.*`, `share.op.<role>` and `share.phase.<phase>` (of
the time in steps), `share.dispatch` (step time outside operators), `decode.rows_mean`, `decode.occupancy` (rows of a
step over slots while requests wait), `queue.waiting_mean`, `queue.waiting_share` (of steps with a queue),
`prefill.tokens_per_step`, `prefix.repeat_share` (of prompt tokens whose block-aligned prefix an earlier prompt had),
`prefix.hit_share` (served from cache), `kv.blocks_peak_share`, `weights.bytes`, `weights.bytes_per_param`,
`throughput.output_tok_s`, `step.ms_mean`, `step.count`. A fact that could not be observed is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from feedback.profile.spans import SpanSums
from feedback.target import Description, OperatorInfo

Facts = dict[str, float | str | bool]

BYTES_PER_PARAMETER = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def launch_facts(config: Mapping[str, Any], description: Description, operators: Iterable[OperatorInfo]) -> Facts:
    """Every launch parameter, at its default where the configuration leaves it out.

    And the implementation of each operator.
    """
    facts: Facts = {}
    for parameter in description.launch_space:
        if isinstance(parameter.default, bool | int | float | str):
            facts[f"launch.{parameter.name}"] = parameter.default
    for name, value in config.items():
        if isinstance(value, bool | int | float | str):
            facts[f"launch.{name}"] = value
    for operator in operators:
        facts[f"launch.operators.{operator.name}"] = operator.selected
    return facts


def span_facts(sums: SpanSums, roles: Mapping[str, str], max_batch: float | None) -> Facts:
    """Shares of the time in steps, and how full the steps were. `roles` maps operator names to roles."""
    facts: Facts = {}
    if sums.busy_seconds <= 0:
        return facts
    for operator, seconds in sums.operators.items():
        name = f"share.op.{roles.get(operator, operator)}"
        facts[name] = float(facts.get(name, 0.0)) + seconds / sums.busy_seconds
    for phase, seconds in sums.phases.items():
        facts[f"share.phase.{phase}"] = seconds / sums.busy_seconds
    if sums.operators:
        facts["share.dispatch"] = max(0.0, 1.0 - sums.operator_seconds / sums.busy_seconds)
    if not sums.steps:
        return facts
    facts["step.count"] = float(len(sums.steps))
    facts["step.ms_mean"] = 1e3 * sums.busy_seconds / len(sums.steps)
    decodes = [step["decodes"] for step in sums.steps if step.get("decodes")]
    if decodes:
        facts["decode.rows_mean"] = _mean(decodes)
    prefills = [
        step["tokens"] - step["decodes"] for step in sums.steps if step.get("tokens", 0) > step.get("decodes", 0)
    ]
    if prefills:
        facts["prefill.tokens_per_step"] = _mean(prefills)
    waiting = [step["waiting"] for step in sums.steps if "waiting" in step]
    if waiting:
        facts["queue.waiting_mean"] = _mean(waiting)
        facts["queue.waiting_share"] = _mean([count > 0 for count in waiting])
    crowded = [step["rows"] for step in sums.steps if step.get("waiting") and "rows" in step]
    if crowded and max_batch:
        facts["decode.occupancy"] = _mean(crowded) / max_batch
    return facts


def counter_facts(counters: Mapping[str, float], config: Mapping[str, Any]) -> Facts:
    """From the session's own counters."""
    facts: Facts = {}
    if counters.get("prompt_tokens"):
        facts["prefix.hit_share"] = counters.get("cached_prompt_tokens", 0.0) / counters["prompt_tokens"]
    if counters.get("kv_blocks"):
        facts["kv.blocks_peak_share"] = counters.get("kv_blocks_peak", 0.0) / counters["kv_blocks"]
    if counters.get("weight_bytes"):
        facts["weights.bytes"] = counters["weight_bytes"]
        if counters.get("parameters"):
            facts["weights.bytes_per_param"] = counters["weight_bytes"] / counters["parameters"]
        elif config.get("dtype") in BYTES_PER_PARAMETER:
            facts["weights.bytes_per_param"] = BYTES_PER_PARAMETER[config["dtype"]]
    return facts


def repeat_share(prompts: Sequence[Sequence[int]], block: int) -> float:
    """Share of prompt tokens that lie in whole blocks whose prefix, that block included, an earlier prompt had."""
    seen: set[tuple[int, ...]] = set()
    repeated = total = 0
    for prompt in prompts:
        total += len(prompt)
        prefixes = [tuple(prompt[:end]) for end in range(block, len(prompt) + 1, block)]
        repeated += block * sum(prefix in seen for prefix in prefixes)
        seen.update(prefixes)
    return repeated / total if total else 0.0


def render_table(facts: Facts, calls: Mapping[str, int] | None = None) -> str:
    """The shares as a table for a person, largest first, then what the run was like."""
    lines = [f"{'where the time of a step goes':<44}{'share':>8}"]
    for prefix, title in (("share.op.", "operator"), ("share.phase.", "phase")):
        rows = sorted(
            ((float(value), name.removeprefix(prefix)) for name, value in facts.items() if name.startswith(prefix)),
            reverse=True,
        )
        lines += [f"  {title + ' ' + name:<42}{share:>8.1%}" for share, name in rows]
    if "share.dispatch" in facts:
        lines.append(f"  {'outside operators':<42}{float(facts['share.dispatch']):>8.1%}")
    for name in sorted(facts):
        if name.startswith(("decode.", "queue.", "prefill.", "prefix.", "kv.", "weights.", "step.", "throughput.")):
            value = facts[name]
            lines.append(f"{name:<44}{value:>8.4g}" if isinstance(value, float) else f"{name:<44}{value!s:>8}")
    for name, count in sorted((calls or {}).items()):
        lines.append(f"{'calls of ' + name:<44}{count:>8}")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
