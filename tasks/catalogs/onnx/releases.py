"""Catalogs "onnx-1.13" and "onnx-1.16": the node cases of older releases of ONNX, out of their own wheels."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tasks.cache import default_cache
from tasks.catalogs.base import CatalogError, Entry, Failure, Sample
from tasks.catalogs.models import wheels
from tasks.catalogs.onnx.node_suite import OnnxNode
from tasks.model import Group, OpClass, Oracle, Unavailable, get_numpy_dtype
from tasks.model.dtypes import DTYPE_OF_ELEMENT

_PLATFORM = "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
_FOLDER = "onnx/backend/test/data/node/"
#: What ONNX's own loader allows of every node case.
_RTOL, _ATOL = 1e-3, 1e-7


@dataclass(frozen=True)
class _NodeCase:
    """A node case as `onnx.backend.test` has them: a ModelProto, and pairs of inputs and outputs."""

    model: Any
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float = _RTOL
    atol: float = _ATOL


class OnnxRelease(OnnxNode):
    """The node cases of a release, which are data in its wheel: no environment of that release is needed to read them.

    They keep the opset and the expected outputs of their time; reference and noise floor are those of the catalog
    "onnx". Where the installed onnx has the case with the same inputs, its stored outputs are a further oracle: a
    release that has changed its mind is nobody's fault.
    """

    wheel: wheels.PinnedWheel

    def version(self) -> str:
        return f"{super().version()}, {self.wheel.sha256[:16]}"

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        for sample in super().samples(group, draws, skip):
            if sample.failure is None and sample.arrays and sample.model:
                sample.failure = _explain_release_misfit(sample)
                sample.others += _find_installed_case(sample, group)
            yield sample

    def _every(self) -> list[Entry]:
        return []  # an operator of today is none of that release

    def _cases(self) -> Mapping[str, _NodeCase]:
        """Every case by name. Raises CatalogError where the wheel cannot be had."""
        try:
            return _read_wheel_cases(self.wheel)
        except Unavailable as error:
            raise CatalogError(f"the catalog {self.name} is made of {self.wheel.requirement}: {error}") from None

    def _case(self, name: str, op_type: str) -> _NodeCase:
        try:
            return self._cases()[name]
        except KeyError:
            raise KeyError(f"{self.wheel.requirement} has no node case {name!r}") from None


class Onnx113(OnnxRelease):
    name = "onnx-1.13"
    wheel = wheels.PinnedWheel(
        f"onnx-1.13.1-{_PLATFORM}", "fb7951ed7c13383223bc57c4aacd2c07f3b35c8e6b3959c0e56b19f4bf22d193", "Apache-2.0"
    )


class Onnx116(OnnxRelease):
    name = "onnx-1.16"
    wheel = wheels.PinnedWheel(
        f"onnx-1.16.2-{_PLATFORM}", "7b98aa9733bd4b781eb931d33b4078ff2837e7d68062460726d6dd011f332bd4", "Apache-2.0"
    )


def _explain_release_misfit(sample: Sample) -> Failure | None:
    """Why a sample is none of its model: a release may have stored an input of another rank than it declares."""
    import onnx

    inputs = onnx.load_model_from_string(sample.model).graph.input
    for value, array in zip(inputs, sample.arrays if len(inputs) == len(sample.arrays) else ()):
        declared = value.type.tensor_type
        if declared.HasField("shape") and len(declared.shape.dim) != array.ndim:
            text = (
                f"input {value.name} is declared with {len(declared.shape.dim)} dimensions and stored with {array.ndim}"
            )
            return Failure("invalid", "sample", "", text)
    return None


def _find_installed_case(sample: Sample, group: Group) -> list[Oracle]:
    """What the installed onnx stores for the same case; nothing where it has other inputs, or no such case."""
    try:
        now = next(iter(OnnxNode().samples(replace(group, op=f"onnx:{group.op_name}", samples=1), 0)))
    except (KeyError, StopIteration):
        return []
    same = len(now.arrays) == len(sample.arrays) and all(
        a.dtype == b.dtype and a.shape == b.shape and (a == b).all() for a, b in zip(now.arrays, sample.arrays)
    )
    references = [leaf.reference for leaf in now.expected if leaf.reference is not None]
    rounded = now.oracle == "stored" and sample.op_class is not OpClass.EXACT
    if now.failure or not same or len(references) != len(sample.expected):
        return []
    return [Oracle(f"onnx {importlib.metadata.version('onnx')}", references, rounded=rounded)]


@functools.lru_cache(maxsize=2)
def _read_wheel_cases(wheel: wheels.PinnedWheel) -> dict[str, _NodeCase]:
    """The cases of a wheel by name, sorted; data sets in their order."""
    import onnx

    found: dict[str, _NodeCase] = {}
    with zipfile.ZipFile(wheels.fetch_wheel(wheel, default_cache())) as archive:
        files = sorted(x for x in archive.namelist() if x.startswith(_FOLDER) and not x.endswith("/"))
        for path in files:
            name, _, inside = path.removeprefix(_FOLDER).partition("/")
            if inside == "model.onnx":
                model = onnx.load_model_from_string(archive.read(path))
                found[name] = _NodeCase(model, [])
        values: dict[tuple[str, int], dict[tuple[str, int], Any]] = {}
        for path in files:
            name, _, inside = path.removeprefix(_FOLDER).partition("/")
            place = re.fullmatch(r"test_data_set_(\d+)/(input|output)_(\d+)\.pb", inside)
            if place is None or name not in found:
                continue
            graph = found[name].model.graph
            typed = (graph.input if place[2] == "input" else graph.output)[int(place[3])]
            value = _decode_stored_value(archive.read(path), typed.type)
            values.setdefault((name, int(place[1])), {})[place[2], int(place[3])] = value
    for (name, _), parts in sorted(values.items()):
        sides = [[x for (side, _), x in sorted(parts.items()) if side == wanted] for wanted in ("input", "output")]
        found[name].data_sets.append((sides[0], sides[1]))
    return {name: case for name, case in found.items() if case.data_sets}


def _decode_stored_value(data: bytes, declared: Any) -> Any:
    """A stored input or output of a TypeProto: an array or TensorProto, a list of them, or None for an empty optional.

    A bfloat16 or float8 was stored as an unsigned integer of the same bits.
    """
    import onnx
    from onnx import numpy_helper

    kind = declared.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    tensor = onnx.TensorProto.FromString(data)
    element = declared.tensor_type.elem_type
    if element != tensor.data_type and element in DTYPE_OF_ELEMENT:
        stored, dtype = numpy_helper.to_array(tensor), get_numpy_dtype(DTYPE_OF_ELEMENT[element])
        return stored.view(dtype) if stored.dtype.itemsize == dtype.itemsize else stored.astype(dtype)
    return tensor
