"""The comparison at higher precision that separates rounding from logic. Pure: what is asked is a parameter.

The same combining code runs again with float64 in place of what the launch configuration chose. A deviation that stays
when every operator is its float64 reference is in the logic of the combination. One that vanishes is in an operator:
the one with whose float64 reference alone it vanishes. That operator rounds if it is right on float64 inputs; if it
cannot run on them, or rounds whatever it is given, the size of the error decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Cause = Literal["logic", "precision", "undecided"]

#: `ask(exact operators, wide inputs)` is the largest error as a multiple of what is allowed; None: it did not run.
Ask = Callable[[tuple[str, ...], bool], float | None]

ALL = "*"

#: No rounding to 8 or more significant bits, chained as often as here, makes a relative error as large as this.
LARGEST_ROUNDING = 2.0**-5


@dataclass(frozen=True)
class Attribution:
    """Rounding or logic; `operators` are those that are to blame, none for the combination itself."""

    cause: Cause
    text: str
    operators: tuple[str, ...] = ()
    measured: tuple[tuple[str, float | None], ...] = ()


def attribute(ask: Ask, used: Sequence[str], relative: float) -> Attribution:
    """Ask what is needed, and say it. `used` are the operators that the combining code ran; `relative` is the error of
    the deviating run over the size of the results.
    """
    everything = ask((ALL,), True)
    measured: list[tuple[str, float | None]] = [("all operators in float64", everything)]
    if everything is None:
        text = "the comparison with float64 operators did not run: rounding or logic is not decided"
        return Attribution("undecided", text, measured=tuple(measured))
    if everything > 1.0:
        text = "stays with float64 operators: logic of the combination, not precision"
        return Attribution("logic", text, measured=tuple(measured))
    wide = ask((), True)
    measured.append(("float64 inputs", wide))
    blamed = []
    for operator in used:
        found = ask((operator,), False)
        measured.append((f"a float64 {operator}", found))
        if found is not None and found <= 1.0:
            blamed.append(operator)
    told = f"a float64 {' or '.join(blamed)}" if blamed else "float64 operators"
    if not blamed and len(used) > 1:
        blamed = _together(ask, used, measured)
        told = f"float64 {' and '.join(blamed)} together" if blamed else told
    if wide is not None and wide <= 1.0:
        return Attribution("precision", f"vanishes with {told}: precision, not logic", tuple(blamed), tuple(measured))
    inside = f" of {' or '.join(blamed)}" if blamed else ""
    if relative > LARGEST_ROUNDING:
        text = f"vanishes with {told}, larger than rounding: logic{inside}, not precision"
        return Attribution("logic", text, tuple(blamed), tuple(measured))
    if wide is None:
        text = f"vanishes with {told}, as small as rounding: precision, not logic"
        return Attribution("precision", text, tuple(blamed), tuple(measured))
    text = f"vanishes with {told}, stays with float64 inputs, as small as rounding: rounds on purpose or logic{inside}"
    return Attribution("undecided", text, tuple(blamed), tuple(measured))


def _together(ask: Ask, used: Sequence[str], measured: list[tuple[str, float | None]]) -> list[str]:
    """The operators that all have to be float64 references for the deviation to vanish; none where that does not do."""
    needed = list(used)
    for operator in (None, *used):
        fewer = [other for other in needed if other != operator]
        found = ask(tuple(fewer), False)
        measured.append((f"float64 {' and '.join(fewer)}", found))
        if found is not None and found <= 1.0:
            needed = fewer
        elif operator is None:
            return []
    return needed
