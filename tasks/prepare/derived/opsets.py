"""Samples of the opsets check: a model converted by onnx.version_converter, and proved to be the same in float64."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.catalogs.base import Sample
from tasks.model import Group, OpClass, Vacuous
from tasks.prepare.derived.parts import Spoilt, apart, feeds_of, inputs_of

#: Bytes of a model that is kept in every opset.
LARGEST = 64 << 20
#: What the converter says of a model that cannot be said in an opset: no such operator, no such type or attribute there.
_NOT_THERE = re.compile(
    r"No Previous Version of|is unallowed for|cannot be downgraded|must be .* for conversion to opset|No schema registered"
)


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample ``base`` in the opset ``number``, with the same expected outputs. Raises Spoilt, Vacuous."""
    import onnx

    assert base.model is not None
    if len(base.model) > LARGEST:
        raise Vacuous(f"a model of {len(base.model) >> 20} MiB is not kept in seven opsets")
    model = onnx.load_model_from_string(base.model)
    own = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
    flags = f"opset={number} own={own}"
    if own == number:
        return replace(base, index=number, columns=base.columns | {"flags": flags})
    converted = _converted(model, own, number)
    _takes_the_same(converted, base, own, number)
    if base.op_class is not OpClass.RANDOM:
        proved = _proved(model, converted, base, own, number)
        flags += "" if proved else " converted=unproved"
    made = converted.SerializeToString(deterministic=True)
    return replace(base, index=number, model=made, columns=base.columns | {"flags": flags})


def _converted(model: Any, own: int, number: int) -> Any:
    """The model in another opset.

    Raises Spoilt: the converter does not take it, or makes no valid model of it; Vacuous: that opset has no such thing.
    """
    import onnx
    from onnx import version_converter

    try:
        converted = version_converter.convert_version(model, number)
        onnx.checker.check_model(converted, full_check=False)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        if _NOT_THERE.search(text):
            raise Vacuous(f"opset {number} cannot say it: {text}") from None
        raise Spoilt(
            "converter", f"onnx.version_converter does not take it from opset {own} to {number}: {text}"
        ) from None
    return converted


def _takes_the_same(converted: Any, base: Sample, own: int, number: int) -> None:
    """Raises Spoilt where the converted model declares an input that what is given for it does not fit."""
    declared = inputs_of(converted)
    for name, value in feeds_of(base, converted).items():
        tensor = declared[name].type.tensor_type
        if not isinstance(value, np.ndarray) or not tensor.HasField("shape"):
            continue
        # A negative length is how some converters say an open one.
        sizes = [x.dim_value if x.HasField("dim_value") and x.dim_value >= 0 else None for x in tensor.shape.dim]
        if len(sizes) != value.ndim or any(n not in (None, given) for n, given in zip(sizes, value.shape)):
            raise Spoilt(
                "converter",
                f"converted from opset {own} to {number} it takes {name} in the shape {sizes}, and not {list(value.shape)}",
            )


def _proved(model: Any, converted: Any, base: Sample, own: int, number: int) -> bool:
    """Whether the converted graph is the same in float64; False where that cannot be told. Raises Spoilt."""
    from tasks.graphs.evaluate import Graph
    from tasks.graphs.widening import NoOracle

    try:
        found = [Graph(x).run(feeds_of(base, x)) for x in (model, converted)]
    except (NoOracle, KeyError):
        return False
    if different := apart(*found):
        raise Spoilt(
            "converter", f"converted from opset {own} to {number} it is another function: {different} in float64"
        )
    return True
