"""A kernel is declared once: a config, the decorator, the client and the docs have the same keys, words and defaults."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pydantic
import pytest

import farm
from farm.plan.config_schema import Config
from tasks.catalogs.user import declaration_keys
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp

KERNEL = {"name": "op", "kernel": "k:f", "reference": "k:g", "inputs": {"x": ["n"]}, "dims": {"n": [1, 5]}}


def read(**given: Any) -> Config:
    """A config with one kernel."""
    kernel = {k: v for k, v in (KERNEL | given).items() if v is not MISSING}
    return Config.model_validate({"catalogs": [{"name": "user", "kernels": [kernel]}], "backends": ["torch-cpu"]})


def scale(x: Any) -> Any:
    return 2 * x


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("dtypes", "float32", "'float32' is no list; give ['float32']"),
        ("kwargs", 3, "3 is not a mapping of names, e.g. {name: …}"),
        ("aliases", "no", "'no' is neither true nor false"),
        ("repeats", 2.5, "2.5: a whole number of at least 1"),
        ("steps", 3, "3 is not a text"),
        ("backward", ["k:f"], "['k:f'] is neither a function nor the name of one (module:function)"),
    ],
)
def test_a_value_of_another_kind_is_told_in_the_same_words(key: str, value: Any, says: str) -> None:
    assert [((key,), says)] == list(list_declaration_mistakes(UserOp(**KERNEL | {key: value})))
    with pytest.raises(pydantic.ValidationError) as caught:
        read(**{key: value})
    (error,) = caught.value.errors()
    assert error["loc"] == ("catalogs", 0, "kernels", 0, key) and error["msg"] == f"Value error, {says}"
    if key not in ("dtypes", "backward"):  # whose meaning is the call's
        with pytest.raises(farm.ClientError) as told:
            farm.fuzz(scale, scale, {"x": ["n"]}, {"n": (1, 5)}, results=None, **{key: value})
        assert str(told.value) == f"scale: {key}: {says}"


def test_every_mistake_of_a_config_is_placed() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        read(reference=MISSING, klass="exact", samples=3)
    assert {error["loc"][4]: error["msg"].removeprefix("Value error, ") for error in caught.value.errors()} == {
        "klass": "unknown key; did you mean class or aliases or kwargs?",
        "samples": "it is a key of the catalog, not of a kernel",
        "reference": "Field required: add the key reference",
    }


def test_a_record_of_an_earlier_release_is_read_and_a_new_one_says_what_is_not_by_default() -> None:
    whole = {
        one.name: declaration_keys.find_declared_default(one)
        for one in fields(UserOp)
        if declaration_keys.find_declared_default(one) is not MISSING
    }
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in whole.items()} | KERNEL | {"op_class": "exact"}
    (op,) = read(**plain).catalogs[0].kernels
    assert op.op_class == "exact" and op.layouts is None
    config = read(**{"class": "exact", "repeats": 2})
    assert config.model_dump(mode="json")["catalogs"][0]["kernels"] == [KERNEL | {"class": "exact"}]
    assert Config.model_validate(config.model_dump(mode="json")) == config


def test_every_key_says_what_it_is() -> None:
    for one in fields(UserOp):
        assert one.metadata["about"] and isinstance(one.metadata["kind"], declaration_keys.KeyKind), one.name
        assert (
            declaration_keys.describe_declared_default(one) or declaration_keys.find_declared_default(one) is MISSING
        ), one.name
