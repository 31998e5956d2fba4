"""What deviates and why: from the evidence of a refuted comparison over ranks to facts, and from facts to causes. Pure.

The causes are told apart by the comparison at higher precision, which the sharding layer makes by itself: a deviation
that vanishes when one operator is its float64 reference, and on float64 inputs too, is rounding inside that operator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from feedback.information.belief import Belief
from infra_agent.proposers.causes import HEALTHY, Facts

#: Fact names begin with this.
PREFIX = "deviation."

#: How often a deviation has each cause before it is looked into; and how likely each answer of the comparison at higher
#: precision is when the cause is there: (precision, logic, undecided, not compared).
PRIORS = {"coarse_products": 0.3, "wrong_combination": 0.4, "wrong_operator": 0.3}
ANSWERS = ("precision", "logic", "undecided", "unknown")
LIKELIHOODS = {
    "coarse_products": (0.90, 0.02, 0.05, 0.03),
    "wrong_combination": (0.01, 0.88, 0.03, 0.08),
    "wrong_operator": (0.03, 0.72, 0.15, 0.10),
}


def facts_of(finding: Mapping[str, Any]) -> dict[str, float | bool | str]:
    """Facts from the evidence of a refuted `sharding` verdict: of the first cut that was looked into, and over all."""
    bad = [cut for cut in finding.get("cuts", ()) if "localised" in cut]
    explained = [cut for cut in bad if "attribution" in cut] or bad
    facts: dict[str, float | bool | str] = {f"{PREFIX}cuts": float(len(bad))}
    if not bad:
        return {**facts, f"{PREFIX}cause": "unknown"}
    first = explained[0]
    place, found = first["localised"], first.get("attribution", {})
    blamed = {name for cut in explained for name in cut.get("attribution", {}).get("operators", ())}
    facts |= {
        f"{PREFIX}cause": str(found.get("cause", "unknown")),
        f"{PREFIX}operator": str(place["operator"]),
        f"{PREFIX}sharding": str(place["sharding"]),
        f"{PREFIX}axis": str(place["axis"]),
        f"{PREFIX}step": str(place["step"]),
        f"{PREFIX}condition": str(place["condition"]),
        f"{PREFIX}blamed": ",".join(sorted(blamed)),
        f"{PREFIX}everywhere": all(cut.get("unsharded_is_wrong") is True for cut in explained),
    }
    for name, seen in (("ratio", _errors(bad, "error_ratio")), ("relative", _errors(bad, "relative_error"))):
        if seen:
            facts[f"{PREFIX}{name}"] = max(seen)
    grown = [g for g in first.get("growth", ()) if g.get("exponent") is not None]
    for growth in grown:
        facts[f"{PREFIX}growth.{growth['noun'].split()[-1]}"] = float(growth["exponent"])
    return facts


def _errors(cuts: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    return [float(c[name]) for cut in cuts for c in cut["conditions"] if c.get(name) is not None]


def blamed(facts: Facts) -> frozenset[str]:
    """Operators whose float64 reference makes the deviation vanish; none where the combination itself is at fault."""
    return frozenset(filter(None, str(facts.get(f"{PREFIX}blamed", "")).split(",")))


def known(facts: Facts) -> bool:
    """Whether the facts are of a deviation."""
    return any(name.startswith(PREFIX) for name in facts)


def diagnosis(facts: Facts) -> list[tuple[str, float]]:
    """Cause and probability, most likely first; `healthy` where nothing deviates."""
    if not known(facts):
        return [(HEALTHY, 1.0)]
    answer = str(facts.get(f"{PREFIX}cause", "unknown"))
    place = ANSWERS.index(answer) if answer in ANSWERS else len(ANSWERS) - 1
    weights = {cause: prior * LIKELIHOODS[cause][place] for cause, prior in PRIORS.items()}
    if facts.get(f"{PREFIX}everywhere"):
        weights["wrong_combination"] *= 0.05  # the operator is wrong without any cut
    found = Belief.weighted(weights)
    return sorted(zip(found.causes, map(float, found.array), strict=True), key=lambda item: (-item[1], item[0]))


def observation(facts: Facts) -> str:
    """The facts as a clause for a sentence."""
    ratio = facts.get(f"{PREFIX}ratio")
    size = f"by {float(ratio):.3g} times what is allowed" if isinstance(ratio, float) and math.isfinite(ratio) else ""
    where = (
        f"{facts.get(f'{PREFIX}operator')} cut by {facts.get(f'{PREFIX}sharding')} over {facts.get(f'{PREFIX}axis')}"
    )
    step = f"first at step {facts.get(f'{PREFIX}step')}"
    told = str(facts.get(f"{PREFIX}blamed", "")).replace(",", " and ")
    why = {
        "precision": f"which vanishes with more precise products{f' in {told}' if told else ''}",
        "logic": "which no precision mends",
    }.get(str(facts.get(f"{PREFIX}cause")), "whose cause the comparison at higher precision does not tell")
    return " ".join(part for part in (f"{where} deviates", f"{size},", f"{step},", why) if part.strip(","))
