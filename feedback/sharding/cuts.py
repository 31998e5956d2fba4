"""What there is to check: every operator of the plan under every cut, once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from feedback.operators.checks import tolerance_for
from feedback.target import OperatorInfo, PlanRow, ShardingInfo, Shardings, Tolerance


@dataclass(frozen=True)
class Cut:
    """One operator under one cut over `ranks`; `roles` are the places of the model that run it so."""

    info: OperatorInfo
    sharding: ShardingInfo
    ranks: int
    roles: tuple[str, ...]

    @property
    def name(self) -> str:
        """`kda_chunk: context over cp 4`."""
        return f"{self.info.name}: {self.sharding.name} over {self.sharding.axis} {self.ranks}"

    @property
    def combines(self) -> bool:
        """Whether ranks exchange anything."""
        return self.sharding.collective != "none"


def cuts(
    rows: Sequence[PlanRow], infos: Iterable[OperatorInfo], shardings: Callable[[str], Shardings]
) -> tuple[list[Cut], list[str]]:
    """Every cut of the plan in its order, and what the plan cuts without a description: one phrase each, for gaps."""
    known = {info.name: info for info in infos}
    roles: dict[tuple[str, str, int], list[str]] = {}
    for row in rows:
        if row.sharding is not None:
            found = roles.setdefault((row.operator, row.sharding, row.ranks), [])
            if row.role not in found:
                found.append(row.role)
    checked, missing = [], []
    for (operator, name, ranks), places in roles.items():
        info = known.get(operator)
        described = {item.name: item for item in shardings(operator).shardings}
        if info is None or name not in described:
            missing.append(f"{operator} under {name}, which the target does not describe")
        else:
            checked.append(Cut(info, described[name], ranks, tuple(places)))
    return checked, missing


def allowed(cut: Cut, dtype: str) -> Tolerance | None:
    """How far the pieces may be from the float64 reference of the whole: as far as the operator may be by itself, and
    as far as cutting it may take it. None where either is not stated for the compute type.
    """
    own, more = tolerance_for(cut.info, dtype), cut.sharding.tolerance.get(dtype)
    if own is None or more is None:
        return None
    return Tolerance(
        atol=own.atol + more.atol,
        rtol=own.rtol + more.rtol,
        reason=f"the operator alone: {own.reason}; its cut: {more.reason}",
    )
