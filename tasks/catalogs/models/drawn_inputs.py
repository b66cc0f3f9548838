"""Inputs of a model of the user's that are drawn: from "x=float32[4,8]", or from the types of an ONNX model's own inputs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.arrays import inputs
from tasks.catalogs.user.kernel_samples import draw_uniform_input
from tasks.graphs.given_model import GivenError
from tasks.model import DTYPES, is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import DTYPE_OF_ELEMENT, get_integer_range
from tasks.nearest import suggest_nearest_names

#: How an input is written.
FORM = "NAME=DTYPE[SIZES], e.g. x=float32[4,8], ids=int64[2,16]<100, sr=int64[]"
#: Most elements of an input.
MOST = 2**31
_INPUT = re.compile(r"([^=<\[\]\s]+)\s*(?:=\s*([^\[\]<]*?)\s*(\[[^\[\]]*\]?)?\s*)?(?:<\s*(.*))?")


@dataclass(frozen=True)
class DrawnInput:
    """An input that is drawn: its name, its dtype and shape where they are said, and the end of its values.

    below: values are from 0 on and below it, uniform; None: regular values of `tasks.arrays.inputs`.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    below: float | None = None


def parse_drawn_input(text: str) -> DrawnInput:
    """An input as it is written on a command line. Raises ValueError, which says what is wrong and how to write it."""
    found = _INPUT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no input: write {FORM}")
    name, dtype, shape, below = found.groups()
    if dtype and (dtype not in DTYPES or dtype == "str"):
        raise ValueError(
            f"{text!r}: unknown dtype {dtype!r}{suggest_nearest_names(dtype, [x for x in DTYPES if x != 'str'])}"
        )
    return DrawnInput(name, dtype or "", _parse_input_shape(shape, text), _parse_input_bound(below, dtype or "", text))


def _parse_input_shape(given: str | None, text: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    inside = given[1:-1].strip() if given.endswith("]") else "?"
    sizes = [x.strip() for x in inside.split(",")] if inside else []
    for size in sizes:
        if not re.fullmatch(r"\d+", size):
            what = "the bracket is not closed" if not given.endswith("]") else f"{size!r} is no size"
            raise ValueError(f"{text!r}: {what}: sizes are whole numbers between commas, [4,8], and [] is a scalar")
    shape = tuple(map(int, sizes))
    if int(np.prod(shape, dtype=object)) > MOST:
        raise ValueError(f"{text!r}: more than {MOST} elements")
    return shape


def _parse_input_bound(given: str | None, dtype: str, text: str) -> float | None:
    if given is None:
        return None
    try:
        below = float(given)
    except ValueError:
        raise ValueError(
            f"{text!r}: {given!r} is no number that values can be below, e.g. ids=int64[2,16]<100"
        ) from None
    if dtype == "bool" or (dtype and is_complex_dtype(dtype)):
        raise ValueError(f"{text!r}: values of {dtype} have no end: leave out <{given}")
    if not 0 < below < np.inf:
        raise ValueError(
            f"{text!r}: values are from 0 on and below {given}: there are none; a number above 0 is needed"
        )
    if dtype and not is_inexact_dtype(dtype) and (below != int(below) or below - 1 > get_integer_range(dtype)[1]):
        raise ValueError(f"{text!r}: {given} is no whole number, or more than {dtype} can hold")
    return below


def draw_model_inputs(given: Iterable[DrawnInput], index: int, seed: int) -> dict[str, np.ndarray]:
    """The inputs of sample ``index`` of a run's seed: the same whatever the machine, each by its name alone."""
    made = {}
    for one in given:
        assert one.shape is not None
        dtype = one.dtype or "float32"
        g = np.random.default_rng([zlib.crc32(one.name.encode()), index, seed % 2**64])
        if one.below is None:
            made[one.name] = inputs.fill_array(one.shape, dtype, "regular", g, mild=True)
        else:
            high: Any = one.below if is_inexact_dtype(dtype) else int(one.below)
            made[one.name] = draw_uniform_input(one.shape, dtype, 0, high, g)
    return made


def list_onnx_inputs(model: Any) -> list[str]:
    """The inputs of an ONNX model that are to be given."""
    return list(_read_onnx_inputs(model))


def _read_onnx_inputs(model: Any) -> dict[str, Any]:
    defaults = {x.name for x in model.graph.initializer}
    return {x.name: x.type.tensor_type for x in model.graph.input if x.name not in defaults}


def draw_inputs_of_graph(model: Any, given: Mapping[str, DrawnInput], where: str) -> list[DrawnInput]:
    """What is drawn for an ONNX model: ``given``, and of the rest of its inputs what the model itself says.

    Raises GivenError for a name that it does not have, another dtype, and sizes that neither says."""
    wanted = _read_onnx_inputs(model)
    for name in given:
        if name not in wanted:
            raise GivenError(f"{where}: the model has no input {name!r}{suggest_nearest_names(name, list(wanted))}")
    return [_complete_drawn_input(given.get(name, DrawnInput(name)), kind, where) for name, kind in wanted.items()]


def _complete_drawn_input(one: DrawnInput, kind: Any, where: str) -> DrawnInput:
    dtype = DTYPE_OF_ELEMENT.get(kind.elem_type, "")
    if not dtype or dtype == "str":
        raise GivenError(f"{where}: the input {one.name!r} is no tensor of numbers: that cannot be drawn")
    if one.dtype and one.dtype != dtype:
        raise GivenError(f"{where}: {one.name!r} is {one.dtype}, the model takes {dtype}")
    shape = one.shape
    if shape is None:
        axes = [x.dim_value if x.HasField("dim_value") else None for x in kind.shape.dim]
        if not kind.HasField("shape") or None in axes:
            shown = ",".join("?" if n is None else str(n) for n in axes)
            raise GivenError(
                f"{where}: the model leaves sizes of {one.name!r} open ([{shown}]): give them, "
                f"--input '{one.name}={dtype}[{shown.replace('?', '4')}]'"
            )
        shape = tuple(int(n) for n in axes if n is not None)
    return replace(one, dtype=dtype, shape=shape)
