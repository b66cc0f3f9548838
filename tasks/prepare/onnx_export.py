"""Torch calls to ONNX models with torch.onnx.export (dynamo): static shapes, one model a sample."""

from __future__ import annotations
import __future__

import contextlib
import functools
import gc
import inspect
import io
import logging
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import decode_argument_tree, list_tensor_specs, map_leaves
from tasks.model import EPS, PART, Leaf, OpClass, Vacuous, get_numpy_dtype, is_inexact_dtype
from tasks.model.dtypes import ELEMENT_TYPE
from tasks.model.errors import format_error_essence
from tasks.prepare.cases import PreparedSample

#: An exported graph with an output off by more than this share (and a thousand noise floors) computes something else.
GROSS = 0.05


def read_exporter_version() -> str:
    return f"torch {metadata.version('torch')} onnxscript {metadata.version('onnxscript')}"


@functools.cache
def load_onnx_exporter() -> None:
    """Import the exporter, and let it keep what it builds anew at each call: its function registry and lists of
    decompositions.

    Measured on 40 ops: 0.56 s an export without, 0.15 s with; `_skip_annotations` and `_collect_afterwards` halve that.
    """
    import torch._export.utils as export_utils
    import torch._ops
    from torch.onnx._internal.exporter import _registration

    registry = _registration.ONNXRegistry
    make = registry.from_torchlib.__func__  # type: ignore[attr-defined]
    cached = functools.cache(lambda *args, **kwargs: make(registry, *args, **kwargs))
    registry.from_torchlib = classmethod(lambda cls, *args, **kwargs: cached(*args, **kwargs))  # type: ignore[assignment,method-assign]
    collect = export_utils._collect_all_valid_cia_ops
    kept = functools.cache(collect)
    for module in list(sys.modules.values()):
        if getattr(module, "_collect_all_valid_cia_ops", None) is collect:
            module._collect_all_valid_cia_ops = kept  # type: ignore[attr-defined]
    torch._ops.OperatorBase.py_impl = _skip_annotations(torch._ops.OperatorBase.py_impl)  # type: ignore[method-assign]
    logging.getLogger("torch.onnx").setLevel(logging.CRITICAL)
    logging.getLogger("onnxscript").setLevel(logging.CRITICAL)
    logging.getLogger("torch.export").setLevel(logging.CRITICAL)


def _skip_annotations(function: Any) -> Any:
    """A function of a module as its own source says, compiled so that no annotation in it is evaluated; itself where
    its source is not there. torch's decorator that registers a kernel of an op makes an annotated function each time:
    an export registers 11,000 kernels, and these annotations were a quarter of it."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:
        return function
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    code = compile(source, inspect.getfile(function), "exec", flags, dont_inherit=True)
    exec(code, function.__globals__, made)
    return functools.wraps(function)(made[function.__name__])


@contextlib.contextmanager
def _collect_afterwards() -> Iterator[None]:
    """Garbage is collected afterwards, of what has been made meanwhile: else each export has the collector go several
    times through all that the exporter keeps, which takes longer than the rest of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            gc.collect(0)


@_collect_afterwards()
def export_sample_to_onnx(sample: PreparedSample) -> tuple[bytes, list[int], list[int]]:
    """(serialized ModelProto, which tensors of the sample its inputs are by order of appearance, paired outputs).

    Raises Vacuous for a graph without a node, NotFaithful for one that computes something else than the op,
    and whatever the exporter raises.
    """
    import torch

    load_onnx_exporter()
    form = sample.form("torch")
    assert form.call is not None
    call: Callable[..., Any] = form.call
    leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu")
    args, kwargs = decode_argument_tree(form.args, leaf), decode_argument_tree(form.kwargs, leaf)
    tensors: list[Any] = []

    def collect(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(x)
        return x

    map_leaves((args, kwargs), collect)
    if len(tensors) != len(list_tensor_specs(form.args) + list_tensor_specs(form.kwargs)):
        raise ValueError("the tensors of the arguments could not be told apart")
    if kept := [x for x in sample.record.written if not x.startswith("inputs.")]:
        raise ValueError(f"forward writes to {kept[0].removeprefix('model.')}, and an ONNX graph keeps nothing")
    if any(t.layout != torch.strided for t in tensors):
        raise ValueError("ONNX has no sparse tensors of this layout")
    if any(t.dtype is torch.complex32 for t in tensors):
        raise ValueError("ONNX has no complex32, and the exporter no pairs of float16 for it")

    class Op(torch.nn.Module):
        def forward(self, *inputs: Any) -> Any:
            left = iter(inputs)
            new = map_leaves((args, kwargs), lambda x: next(left) if isinstance(x, torch.Tensor) else x)
            return tuple(torch_tree.list_output_tensors(call(*new[0], **new[1])))

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter's own code
        program = torch.onnx.export(Op(), tuple(tensors), dynamo=True, verbose=False, optimize=True)
    assert program is not None
    model = program.model_proto
    if not model.graph.node:
        raise Vacuous("the exported graph has no node")
    names = {f"inputs_{i}": i for i in range(len(tensors))}
    order = []
    for place, value in enumerate(model.graph.input):
        order.append(names.get(value.name, place))
    if len(order) != len(tensors) or sorted(order) != list(range(len(tensors))):
        raise ValueError(
            f"the graph's inputs {[v.name for v in model.graph.input]} are not the op's {len(tensors)} tensors"
        )
    expected = sample.expected()
    paired = _set_output_dtypes(model, expected)
    arrays = [
        torch_tree.tensor_to_numpy(torch.view_as_real(t).contiguous() if t.is_complex() else t.contiguous())
        for t in tensors
    ]
    # Of a whole model the judge sees it, and who is to blame for it is searched for.
    unchecked = (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.MODEL)
    if sample.op_class not in unchecked and not sample.record.definition:
        _check_by_evaluator(model, [arrays[i] for i in order], expected, paired)
    return model.SerializeToString(), order, paired


def explain_invalid_graph(model: bytes) -> str:
    """Why ONNX's type rules forbid a graph, on one line; "" if they do not."""
    from onnx import shape_inference

    try:
        shape_inference.infer_shapes(model, check_type=True)
    except Exception as error:
        return " ".join(str(error).split())[:300]
    return ""


class NotFaithful(Exception):
    """The exported graph does not compute the op: no runtime may be blamed for its results."""


def _set_output_dtypes(model: Any, expected: list[Leaf]) -> list[int]:
    """Give every output the op's dtype; returns which outputs are complex numbers as pairs.

    The exporter sometimes leaves a sum in the float32 it was accumulated in, where the op rounds it to the dtype
    of its input: the missing Cast is appended. Raises NotFaithful where the outputs are not the op's.
    """
    from onnx import TensorProto, helper

    outputs = list(model.graph.output)
    if len(outputs) != len(expected):
        raise NotFaithful(f"the exported graph has {len(outputs)} outputs, the op {len(expected)}")
    paired = []
    for place, (value, leaf) in enumerate(zip(outputs, expected)):
        kind = value.type.tensor_type
        real = PART.get(leaf.dtype)
        if real:
            paired.append(place)
        wanted = ELEMENT_TYPE.get(real or leaf.dtype)
        if wanted is None or kind.elem_type == wanted:
            continue
        floating = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
        if kind.elem_type not in floating or wanted not in floating:
            name = TensorProto.DataType.Name(kind.elem_type)
            raise NotFaithful(f"output {place} of the exported graph is {name}, the op's is {leaf.dtype}")
        if wanted == TensorProto.DOUBLE:
            # A Cast would add digits that nothing has computed, and a runtime would be blamed for their absence.
            name = TensorProto.DataType.Name(kind.elem_type)
            raise NotFaithful(f"the exported graph computes output {place} in {name}, the op returns {leaf.dtype}")
        inner = f"{value.name}_uncast"
        model.graph.node.append(helper.make_node("Cast", [value.name], [inner], to=wanted))
        value.name = inner
        kind.elem_type = wanted
    return paired


def _check_by_evaluator(model: Any, inputs: list[Any], expected: list[Leaf], paired: list[int]) -> None:
    """Raise NotFaithful if onnx's own evaluator says that the graph computes something grossly else than the op.

    The evaluator is no oracle for the last digits, but it tells a graph with a wrong meaning, of which every runtime
    would return the same wrong numbers. In 16 bits the same graph in float64 must say so too. What it cannot run is not
    checked.
    """
    from onnx.reference import ReferenceEvaluator

    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.widening import NoOracle

    if any(a.size == 0 for a in inputs) and any(node.op_type == "ReduceMean" for node in model.graph.node):
        # ReduceMean: "Reduction over an empty set of values yields undefined"; in ONNX's evaluator it is NaN by chance.
        raise NotFaithful("the exported graph takes the mean of an empty tensor, which ONNX leaves undefined")
    names = [v.name for v in model.graph.input]
    try:
        with np.errstate(all="ignore"):
            got = ReferenceEvaluator(model).run(None, dict(zip(names, inputs)))
    except Exception:
        return
    odd = _describe_gross_difference(got, inputs, expected, paired)
    if odd and any(leaf.dtype in ("float16", "bfloat16") for leaf in expected):
        # The evaluator adds in the dtype itself: a mean of 3,072 bfloat16 numbers is its own loss, not the graph's
        # meaning.
        try:
            wide = EvaluatedGraph(model).run(dict(zip(names, inputs)))
            odd = _describe_gross_difference([wide[v.name] for v in model.graph.output], inputs, expected, paired)
        except (NoOracle, KeyError):
            pass
    if odd:
        raise NotFaithful(
            f"the exported graph computes something else than the op: {odd} already in onnx's own evaluator"
        )


def _describe_gross_difference(got: Sequence[Any], inputs: list[Any], expected: list[Leaf], paired: list[int]) -> str:
    """How outputs of a graph differ grossly from what is expected; "" if they do not."""
    for place, (a, leaf) in enumerate(zip(got, expected)):
        y = leaf.reference
        if y is None or y.dtype == object:
            continue
        a = np.asarray(a)
        if place in paired and a.shape == (*leaf.shape, 2):
            a = a[..., 0].astype(np.float64) + 1j * a[..., 1].astype(np.float64)
        if a.shape != tuple(leaf.shape):
            raise NotFaithful(
                f"output {place} of the exported graph has shape {a.shape}, the op's has {tuple(leaf.shape)}"
            )
        with np.errstate(all="ignore"):
            cast = y.astype(get_numpy_dtype(leaf.dtype)) if is_inexact_dtype(leaf.dtype) else y
            a, cast = (x.astype(np.complex128 if y.dtype.kind == "c" else np.float64) for x in (a, cast))
            odd = np.isfinite(a) != np.isfinite(cast)
            if leaf.dtype not in ("float32", "float64"):
                # In 16 bits the evaluator overflows where a runtime that accumulates in 32 does not: only NaN tells.
                odd = (np.isnan(a) & ~np.isnan(cast)) | (np.isfinite(a) & np.isnan(cast))
            both = np.isfinite(a) & np.isfinite(cast)
            size = np.abs(cast[both])
            # A double result of float32 inputs: a graph that casts at the end only has not computed its digits.
            widened = leaf.dtype == "float64" and any(x.dtype == np.float32 for x in inputs)
            limit = (EPS["float32"] / 1024 if widened else GROSS) * size
            if leaf.noise is not None:
                odd &= np.isfinite(leaf.noise)
                limit += 1000 * leaf.noise[both]
            # What cancels to nothing says nothing.
            off = (np.abs(a[both] - cast[both]) > limit) & (size > 1e-9 * size.max(initial=0.0))
        if odd.any() or off.any():
            count = int(odd.sum() + off.sum())
            return f"{count} of {a.size} elements of output {place} are grossly different"
    return ""


def explain_export_failure(error: BaseException) -> str:
    """One line that says why an export failed."""
    return f"not exported: {format_error_essence(error)}"
