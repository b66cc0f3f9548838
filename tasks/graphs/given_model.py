"""A model of the user's and its inputs from files: what is wrong with them is said in one line, with what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.model import Refusal, get_numpy_dtype
from tasks.model.dtypes import DTYPE_OF_ELEMENT
from tasks.model.errors import format_error_essence
from tasks.nearest import suggest_nearest_names


class GivenError(Refusal):
    """A model or inputs that cannot be used."""


def read_given_case(model: Path, inputs: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """(ModelProto with its external data, an array for every input of it) from an .onnx and an .npz file. Raises
    GivenError."""
    return check_given_inputs(read_given_model(model), read_given_arrays(inputs), str(inputs))


def read_given_model(path: Path) -> Any:
    """A ModelProto that onnx's checker takes, its external data read, of operator sets that there are. Raises
    GivenError."""
    import onnx

    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(str(path))  # by path: a model of 2 GiB and more has no bytes
    except FileNotFoundError as error:
        if not path.exists():
            raise GivenError(f"{path}: no such file") from None
        raise GivenError(
            f"{path}: its weights lie beside it, and a file is missing: {error.filename or error}"
        ) from None
    except onnx.checker.ValidationError as error:
        text = " ".join(str(error).split())
        beside = "external data" in text or "data_location" in text or "should be stored in" in text
        why = "its weights lie beside it, and a file is missing or another" if beside else "no valid ONNX model"
        raise GivenError(f"{path}: {why}: {text[:300]}") from None
    except MemoryError:
        raise GivenError(f"{path}: larger than the memory of this machine: give it on one that has more") from None
    except Exception as error:  # protobuf's own
        raise GivenError(f"{path}: no ONNX model ({format_error_essence(error)})") from None
    if unknown := find_unknown_opset(model):
        raise GivenError(f"{path}: no valid ONNX model: {unknown}")
    return model


def find_unknown_opset(model: Any) -> str:
    """Which operator set of ONNX's own domains a ModelProto asks for and the installed onnx does not know; "" for none.
    Its checker takes such a model, each operator as its newest version, and so do some runtimes: but nobody has said
    what it computes."""
    import onnx

    known = onnx.defs.C.schema_version_map()
    for asked in model.opset_import:
        domain = asked.domain if asked.domain != "ai.onnx" else ""
        newest = known.get(domain, (0, asked.version))[1]
        if asked.version > newest:
            return (
                f"operator set {asked.version} of {domain or 'ai.onnx'} is not known to onnx {onnx.__version__}, whose newest is {newest}: "
                "name one that there is (opset_import), or install an onnx that knows it"
            )
    return ""


def read_given_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises GivenError."""
    try:
        found: Any = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise GivenError(f"{path}: one array without a name; write it with numpy.savez(path, NAME=array, …)")
        with found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise GivenError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise GivenError(f"{path}: no .npz file of plain arrays ({error}); write it with numpy.savez") from None


def check_given_inputs(model: Any, feeds: Mapping[str, np.ndarray], where: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The model and the arrays in its inputs' dtypes. Raises GivenError for other names, shapes or dtypes."""
    defaults = {x.name for x in model.graph.initializer}
    wanted = {x.name: x for x in model.graph.input if x.name not in defaults}
    lacking = [name for name in wanted if name not in feeds]
    if lacking:
        has = f"; it has {', '.join(feeds)}" if feeds else ""
        raise GivenError(f"{where}: no array for the model's input {lacking[0]!r}{has}")
    if further := [name for name in feeds if name not in wanted]:
        raise GivenError(
            f"{where}: the model has no input {further[0]!r}{suggest_nearest_names(further[0], list(wanted))}"
        )
    return model, {name: _fit_given_array(value, feeds[name], where) for name, value in wanted.items()}


def _fit_given_array(value: Any, array: np.ndarray, where: str) -> np.ndarray:
    kind = value.type.tensor_type
    name = DTYPE_OF_ELEMENT.get(kind.elem_type, "")
    if not value.type.HasField("tensor_type") or not name or name == "str":
        raise GivenError(f"{where}: the input {value.name!r} is no tensor of numbers: that cannot be given yet")
    dtype = get_numpy_dtype(name)
    if array.dtype != dtype:  # .npz has no bfloat16: it may be given wider
        if not (array.dtype.kind == "f" and dtype.kind in "fV" and array.dtype.itemsize > dtype.itemsize):
            raise GivenError(
                f"{where}: {value.name!r} is {array.dtype}, the model takes {name}: convert it with .astype"
            )
        array = array.astype(dtype)
    if kind.HasField("shape"):
        axes = [x.dim_value if x.HasField("dim_value") else None for x in kind.shape.dim]
        if len(axes) != array.ndim or any(n is not None and n != m for n, m in zip(axes, array.shape)):
            shown = "x".join("?" if n is None else str(n) for n in axes) or "scalar"
            raise GivenError(
                f"{where}: {value.name!r} has the shape {'x'.join(map(str, array.shape)) or 'scalar'}, the model takes {shown}"
            )
    return array
