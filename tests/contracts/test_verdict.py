"""The verdict contract: what it refuses, that it reads itself back, and that its identity is its content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from feedback.verdict import (
    SCHEMA_VERSION,
    TIMING_LAYERS,
    Confidence,
    Location,
    Predicate,
    Status,
    Verdict,
    canonical_json,
    digest_of,
)

LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1).filter(str.strip)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FINITE | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def locations() -> st.SearchStrategy[Location]:
    fields = {name: st.none() | LINE for name in Location.model_fields if name != "line"}
    return (
        st.fixed_dictionaries({**fields, "line": st.none() | st.integers(1, 10**6)})
        .filter(lambda item: any(value is not None for value in item.values()))
        .map(lambda item: Location.model_validate(item))
    )


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    """Any verdict that the contract allows."""
    predicate = draw(
        st.builds(Predicate, layer=LINE, statement=LINE, parameters=st.dictionaries(LINE, JSON, max_size=3))
    )
    layer = draw(st.sampled_from([*sorted(TIMING_LAYERS), "static", "operators", "smoke"]))
    status = draw(st.sampled_from(Status))
    timed: dict[str, Any] = {}
    if draw(st.booleans()):
        low, effect, high = sorted(draw(st.tuples(*[st.floats(1e-3, 1e3)] * 3)))
        timed = {
            "effect": effect,
            "interval": (low, high),
            "margin": draw(st.floats(0.5, 2)),
            "minimal_detectable_effect": draw(st.floats(0, 2)),
            "noise_floor": draw(st.floats(0, 2)),
            "n": draw(st.integers(0, 50)),
        }
    return Verdict(
        hypothesis=draw(LINE),
        layer=layer,
        status=status,
        predicate=predicate.statement,
        predicate_digest=predicate.digest,
        observed=draw(LINE),
        at=tuple(draw(st.lists(locations(), max_size=3))),
        confidence=draw(st.sampled_from(Confidence)),
        gaps=tuple(draw(st.lists(LINE, min_size=1 if status is Status.UNSUPPORTED else 0, max_size=2))),
        cost_seconds=draw(st.floats(0, 1e6)),
        next=draw(st.none() | LINE),
        evidence=draw(st.none() | LINE),
        metrics=draw(st.dictionaries(LINE, FINITE, min_size=1, max_size=3)),
        **timed,
    )


def plain(**changes: Any) -> Verdict:
    """A small verdict with `changes`."""
    values: dict[str, Any] = {
        "hypothesis": "h1",
        "layer": "static",
        "status": Status.CONFIRMED,
        "predicate": "p",
        "predicate_digest": "0" * 16,
        "observed": "3 files parse",
        "confidence": Confidence.PROOF,
        "cost_seconds": 0.1,
    }
    return Verdict(**(values | changes))


TIMED = {
    "layer": "load",
    "confidence": Confidence.STATISTICAL,
    "effect": 1.2,
    "interval": (1.1, 1.3),
    "margin": 1.02,
    "minimal_detectable_effect": 0.03,
    "noise_floor": 0.01,
    "n": 2,
}


class TestRoundTrip:
    @given(verdicts())
    def test_parse_reads_to_json_back(self, verdict: Verdict) -> None:
        again = Verdict.parse(verdict.to_json())
        assert again == verdict
        assert again.id == verdict.id
        assert again.to_json() == verdict.to_json()

    @given(verdicts())
    def test_the_line_is_one_line_and_says_the_status(self, verdict: Verdict) -> None:
        line = verdict.line()
        assert line.startswith(f"{verdict.status.value} [{verdict.layer}] {verdict.observed}")
        assert verdict.next is None or line.endswith(f"next: {verdict.next}")

    @given(locations())
    def test_a_location_reads_itself_back_and_has_a_label(self, place: Location) -> None:
        assert Location.model_validate_json(place.model_dump_json()) == place
        assert place.label() or place.model_dump(exclude_none=True).keys() == {"line"}

    def test_schema_version_is_part_of_the_text(self) -> None:
        assert json.loads(plain().to_json())["schema_version"] == SCHEMA_VERSION == 1


class TestIdentity:
    @given(verdicts(), verdicts())
    def test_equal_content_is_one_verdict_and_other_content_another(self, one: Verdict, other: Verdict) -> None:
        assert (one.id == other.id) == (one == other)

    @given(verdicts(), LINE)
    def test_an_edited_verdict_is_told(self, verdict: Verdict, text: str) -> None:
        data = json.loads(verdict.to_json())
        data["observed"] = text + verdict.observed
        with pytest.raises(ValueError, match="edited or damaged"):
            Verdict.parse(json.dumps(data))

    def test_a_text_without_an_id_is_read(self) -> None:
        data = json.loads(plain().to_json())
        del data["id"]
        assert Verdict.parse(json.dumps(data)) == plain()

    def test_verdicts_do_not_change(self) -> None:
        with pytest.raises(ValidationError):
            plain().observed = "other"  # type: ignore[misc]


class TestRules:
    @pytest.mark.parametrize("missing", ["interval", "margin", "minimal_detectable_effect", "noise_floor", "n"])
    @pytest.mark.parametrize("status", [Status.CONFIRMED, Status.REFUTED, Status.INCONCLUSIVE])
    def test_an_effect_without_its_noise_floor_cannot_be_judged(self, status: Status, missing: str) -> None:
        changes = {name: value for name, value in TIMED.items() if name != missing}
        with pytest.raises(ValidationError, match=rf"an effect needs {missing}\b"):
            plain(status=status, **changes)

    def test_it_can_be_invalid(self) -> None:
        assert plain(status=Status.INVALID, **{**TIMED, "noise_floor": None}).effect == 1.2

    def test_a_confirmed_timing_verdict_carries_what_it_measured(self) -> None:
        with pytest.raises(ValidationError, match="must carry what it measured"):
            plain(layer="load")
        assert plain(layer="load", metrics={"output_throughput_tok_s": 3.0})
        assert plain(layer="load", status=Status.REFUTED)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"observed": "  "}, "silence is never a pass"),
            ({"observed": "a\nb"}, "one line"),
            ({"status": Status.UNSUPPORTED}, "must name in gaps"),
            ({**TIMED, "interval": (1.3, 1.1)}, "reversed"),
            ({**TIMED, "effect": 1.4}, "outside its own interval"),
            ({**TIMED, "effect": 0.0}, "greater than 0"),
            ({"cost_seconds": -1.0}, "greater than or equal to 0"),
            ({"cost_seconds": float("nan")}, "finite"),
            ({"color": "red"}, "Extra inputs"),
        ],
    )
    def test_what_says_nothing_or_contradicts_itself_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            plain(**changes)

    def test_an_empty_location_is_refused(self) -> None:
        with pytest.raises(ValidationError, match="empty location"):
            Location()


class TestPredicate:
    @given(LINE, LINE, st.dictionaries(st.text(max_size=5), JSON, max_size=4))
    def test_the_digest_follows_the_content_not_the_order(self, layer: str, said: str, numbers: dict[str, Any]) -> None:
        one = Predicate(layer=layer, statement=said, parameters=numbers)
        turned = Predicate(layer=layer, statement=said, parameters=dict(reversed(numbers.items())))
        assert one.digest == turned.digest
        assert one.digest != Predicate(layer=layer, statement=said + ".", parameters=numbers).digest

    @given(JSON)
    def test_canonical_json_is_one_text_per_value(self, value: Any) -> None:
        assert json.loads(canonical_json(value)) == value
        assert digest_of(json.loads(canonical_json(value))) == digest_of(value)

    def test_numbers_that_json_lacks_are_refused(self) -> None:
        with pytest.raises(ValueError, match="Out of range"):
            canonical_json({"x": float("nan")})
