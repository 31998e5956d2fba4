"""The target protocol: wire models read themselves back and refuse strangers, and the protocol is structural."""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from feedback import target
from feedback.target import (
    PROTOCOL_VERSION,
    Description,
    OperatorInfo,
    Parameter,
    Progress,
    Request,
    Role,
    Scored,
    Session,
    Sharded,
    StepReport,
    Target,
    Wire,
)

MODELS = sorted(
    (item for item in vars(target).values() if isinstance(item, type) and issubclass(item, Wire) and item is not Wire),
    key=lambda item: item.__name__,
)
SCALARS = {
    int: st.integers(1, 2**31),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
    Role: st.sampled_from(Role),
    Any: st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, at least one of each sequence so that no field is left untried."""
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, Wire):
        return instances(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of(*map(values, arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), min_size=1, max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), min_size=1, max_size=2)
    raise NotImplementedError(f"no strategy for {kind}")


def instances(model: type[Wire]) -> st.SearchStrategy[Any]:
    """Instances of a wire model from its fields alone: a new field is tried without being named here."""
    return st.builds(model, **{name: values(field.annotation) for name, field in model.model_fields.items()})


def test_every_wire_model_is_tried() -> None:
    assert {"Request", "StepReport", "Scored", "OperatorInfo", "OperatorPlan", "Shardings", "Description"} <= {
        model.__name__ for model in MODELS
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
class TestWire:
    @given(data=st.data())
    def test_it_reads_itself_back_through_plain_values_and_json(self, model: type[Wire], data: st.DataObject) -> None:
        item = data.draw(instances(model))
        assert model.model_validate(item.model_dump()) == item
        assert model.model_validate(item.model_dump(mode="json")) == item
        assert model.model_validate_json(item.model_dump_json()) == item

    @given(data=st.data())
    def test_an_unknown_field_is_an_error(self, model: type[Wire], data: st.DataObject) -> None:
        item = data.draw(instances(model)).model_dump()
        with pytest.raises(ValidationError, match="Extra inputs"):
            model.model_validate({**item, "seconds": 1.0})

    @given(data=st.data())
    def test_it_does_not_change(self, model: type[Wire], data: st.DataObject) -> None:
        item = data.draw(instances(model))
        name = next(iter(model.model_fields))
        with pytest.raises(ValidationError, match="frozen"):
            setattr(item, name, getattr(item, name))


class TestRefusals:
    def test_nothing_carries_a_time_or_a_verdict(self) -> None:
        """The parent's clock counts: no wire model has room for a target's own seconds."""
        names = {name for model in MODELS for name in model.model_fields}
        assert not [name for name in names if "second" in name or "time" in name or "latency" in name]

    @pytest.mark.parametrize(
        ("model", "fields"),
        [
            (Request, {"id": "a", "max_tokens": 0}),
            (Progress, {"id": "a", "token_ids": (1,), "finish_reason": "tired"}),
            (Parameter, {"name": "a", "kind": "int", "values": (), "default": 1, "doc": ""}),
            (StepReport, {"steps": 1, "progress": ({"id": "a"},), "unfinished": 0}),
            (Scored, {"logprob": (0.1,), "best": (1.5,), "best_logprob": (0.1,)}),
            (OperatorInfo, {**dict.fromkeys(("name", "role", "doc", "selected"), "a"), "tensors": (), "cases": ()}),
            (Description, {"name": "a", "profile_path": "p", "launch_space": (), "workloads": ()}),
        ],
    )  # fmt: skip
    def test_what_makes_no_sense_is_refused(self, model: type[Wire], fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            model.model_validate(fields)


class TestStructure:
    """A target satisfies the protocol without importing it."""

    def test_a_class_that_never_heard_of_the_protocol_satisfies_it(self) -> None:
        methods = dict.fromkeys(_methods(Target), lambda self: None)
        assert isinstance(type("Foreign", (), methods)(), Target)
        assert isinstance(type("Started", (), dict.fromkeys(_methods(Session), lambda self: None))(), Session)

    @pytest.mark.parametrize("protocol", [Target, Session, Sharded])
    def test_a_missing_method_is_seen(self, protocol: type) -> None:
        for absent in _methods(protocol):
            rest = dict.fromkeys(_methods(protocol) - {absent}, lambda self: None)
            assert not isinstance(type("Partial", (), rest)(), protocol), absent

    def test_the_promised_methods_are_there(self) -> None:
        assert {"describe", "validate_config", "files", "operators", "start"} <= _methods(Target)
        assert {"submit", "step", "score", "spans", "metrics", "close"} <= _methods(Session)
        assert PROTOCOL_VERSION == 2

    def test_what_version_2_adds_is_not_asked_of_a_target_of_version_1(self) -> None:
        assert not _methods(Target) & _methods(Sharded)
        old = type("Old", (), dict.fromkeys(_methods(Target), lambda self: None))()
        assert isinstance(old, Target)
        assert not isinstance(old, Sharded)


def _methods(protocol: type) -> set[str]:
    return {name for name, item in vars(protocol).items() if callable(item) and not name.startswith("_")}
