"""Samples of the opsets check: a model exported at an operator set, or converted to it, and proved to be the same in float64."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tasks import catalogs
from tasks.catalogs.base import Sample
from tasks.model import Group, OpClass, Vacuous
from tasks.model.errors import find_error_text
from tasks.prepare.derived.parts import (
    Spoilt,
    explain_graphs_differ,
    explain_model_differs,
    list_part_feeds,
    list_part_inputs,
)

#: Bytes of a model that is kept in every opset.
LARGEST = 64 << 20
#: Who converts what nobody exports.
CONVERTER = "onnx.version_converter"
#: What the converter says of a model that cannot be said in an opset: no such operator, no such type or attribute
#: there.
_NOT_THERE = re.compile(
    r"No Previous Version of|is unallowed for|cannot be downgraded|must be .* for conversion to opset|No schema registered"
)


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample ``base`` in the opset ``number``, with the same expected outputs: exported at that opset where its
    catalog can do so, else converted.

    Flags: ``by`` is who made the model, ``not`` who was tried before in vain. Raises Spoilt where nobody makes one that
    is the same function, with what each of them said; Vacuous where that opset cannot say it.
    """
    import onnx

    assert base.model is not None
    if len(base.model) > LARGEST:
        raise Vacuous(f"a model of {len(base.model) >> 20} MiB is not kept in seven opsets")
    model = onnx.load_model_from_string(base.model)
    own = next((x.version for x in model.opset_import if x.domain in ("", "ai.onnx")), 0)
    flags = f"opset={number} own={own}"
    if own == number:
        return replace(base, index=number, columns=base.columns | {"flags": flags})
    said: dict[str, str] = {}
    culprit = ""
    for by, make in _iterate_converters(base, number, group, model, own):
        try:
            made, proved = make()
        except Vacuous as error:
            raise Vacuous("; ".join([*said.values(), str(error)])) from None
        except Spoilt as error:
            said[by], culprit = str(error), error.culprit
            continue
        flags += f" by={by}" + f" not={','.join(said)}" * bool(said) + " converted=unproved" * (not proved)
        content = made.SerializeToString(deterministic=True)
        return replace(base, index=number, model=content, columns=base.columns | {"flags": flags})
    raise Spoilt(culprit, "; ".join(said.values()))


def _iterate_converters(
    base: Sample, number: int, group: Group, model: Any, own: int
) -> Iterator[tuple[str, Callable[[], tuple[Any, bool]]]]:
    """(who makes the model, what makes it and says whether it is proved to be the same function); the latter raises
    Spoilt, Vacuous."""
    for by, found in catalogs.get_catalog(group.catalog).at_opset(group, base, number):
        yield by, functools.partial(_check_exported_opset, found, base, f"by torch's {by} exporter at opset {number}")

    def convert_model() -> tuple[Any, bool]:
        made = _convert_opset(model, own, number)
        _check_model_inputs(made, "converter", f"converted from opset {own} to {number}", base)
        return made, base.op_class is OpClass.RANDOM or _is_proved_same(model, made, base, own, number)

    yield CONVERTER, convert_model


def _check_exported_opset(found: bytes | Exception, base: Sample, how: str) -> tuple[Any, bool]:
    """The ModelProto that an exporter made, and whether it is proved to be the module: False where that cannot be told.

    Raises Spoilt where it raised, made no valid model, or one of another function.
    """
    import onnx

    try:
        if isinstance(found, Exception):
            raise found
        made = onnx.load_model_from_string(found)
        onnx.checker.check_model(made, full_check=False)
    except Exception as error:
        raise Spoilt("exporter", f"{how}: {find_error_text(error)}") from None
    _check_model_inputs(made, "exporter", how, base)
    # Its constants may be rounded otherwise than those of the other export: a part of a unit, not of a spacing of
    # float64.
    if different := explain_model_differs(found, base):
        raise Spoilt("exporter", f"{how} it is another function in float64: {different}")
    return made, base.op_class is OpClass.RANDOM or different is not None


def _convert_opset(model: Any, own: int, number: int) -> Any:
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
        raise Spoilt("converter", f"{CONVERTER} does not take it from opset {own} to {number}: {text}") from None
    return converted


def _check_model_inputs(made: Any, culprit: str, how: str, base: Sample) -> None:
    """Raises Spoilt where a model declares an input that what is given for it does not fit."""
    declared = list_part_inputs(made)
    if len(declared) != len(base.args):  # a tracer leaves out what nothing reads
        raise Spoilt(culprit, f"{how} it takes {len(declared)} inputs, and not {len(base.args)}")
    for name, value in list_part_feeds(base, made).items():
        tensor = declared[name].type.tensor_type
        if not isinstance(value, np.ndarray) or not tensor.HasField("shape"):
            continue
        # A negative length is how some converters say an open one.
        sizes = [x.dim_value if x.HasField("dim_value") and x.dim_value >= 0 else None for x in tensor.shape.dim]
        if len(sizes) != value.ndim or any(n not in (None, given) for n, given in zip(sizes, value.shape)):
            raise Spoilt(culprit, f"{how} it takes {name} in the shape {sizes}, and not {list(value.shape)}")


def _is_proved_same(model: Any, converted: Any, base: Sample, own: int, number: int) -> bool:
    """Whether the converted graph is the same in float64; False where that cannot be told. Raises Spoilt."""
    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.widening import NoOracle

    try:
        found = [EvaluatedGraph(x).run(list_part_feeds(base, x)) for x in (model, converted)]
    except (NoOracle, KeyError):
        return False
    if different := explain_graphs_differ(*found):
        raise Spoilt(
            "converter", f"converted from opset {own} to {number} it is another function: {different} in float64"
        )
    return True
