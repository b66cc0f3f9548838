"""`tasks.model.stored_at_once`: the constructor is the dataclass's own in all but its time."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from tasks.model.stored_at_once import store_at_once


@dataclass(frozen=True)
class Plain:
    first: int
    second: str = "b"
    third: dict[str, Any] = field(default_factory=dict)


@store_at_once
@dataclass(frozen=True)
class Stored:
    first: int
    second: str = "b"
    third: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize("given", [((1,), {}), ((1, "c"), {"third": {"k": 2}}), ((), {"first": 3, "second": ""})])
def test_fields_are_those_of_the_dataclass(given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    args, kwargs = given
    assert vars(Stored(*args, **kwargs)) == vars(Plain(*args, **kwargs))


@pytest.mark.parametrize("given", [((), {}), ((1, "b", {}, 4), {}), ((1,), {"fourth": 4}), ((1,), {"first": 1})])
def test_wrong_arguments_are_refused_as_by_the_dataclass(given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    args, kwargs = given
    said = []
    for kind in (Plain, Stored):
        with pytest.raises(TypeError) as error:
            kind(*args, **kwargs)
        said.append(str(error.value).replace(kind.__name__, ""))
    assert said[0] == said[1]


def test_each_has_a_default_of_its_own() -> None:
    assert Stored(1).third is not Stored(1).third


def test_it_is_frozen_compared_copied_and_replaced() -> None:
    one = Stored(1)
    with pytest.raises(FrozenInstanceError):
        one.first = 2  # type: ignore[misc]
    assert one == Stored(1) == copy.copy(one) == pickle.loads(pickle.dumps(one)) != replace(one, first=2)
    assert list(inspect.signature(Stored).parameters) == list(inspect.signature(Plain).parameters)


def test_a_class_whose_constructor_does_more_is_refused() -> None:
    @dataclass(frozen=True)
    class Checked:
        first: int

        def __post_init__(self) -> None:
            raise AssertionError

    with pytest.raises(TypeError, match="Checked has a __post_init__"):
        store_at_once(Checked)
