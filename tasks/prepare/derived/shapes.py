"""Samples of the shapes check: a model whose dimensions are open, with inputs and references of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.layouts import make_array_contiguous
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.judge.weak_samples import compare_two_oracles
from tasks.model import Group, Leaf, OpClass, Vacuous, is_inexact_dtype
from tasks.older_python import zip_equal
from tasks.prepare.derived.parts import list_part_feeds, list_part_inputs

#: Name of every open dimension of every input: input → one name per axis, "" for one of fixed length.
Open = dict[str, list[str]]
#: Classes whose outputs no reference says, at whatever size.
_UNSAID = (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE)


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample ``base`` at its own size, twice and half as large; arrays and expected outputs one size after another.

    What the model itself leaves open is varied, dimensions of one name together; of a model that leaves nothing open,
    the first dimension of its first input and of those of the same shape, of the first alone, of all, or all dimensions
    (those of one length together). A size counts where the model with it is valid and has a float64 evaluation. Raises
    Vacuous where no other size does.
    """
    model, open_, sizes = vary_sample_sizes(base)
    return _make_shape_sample(base, number, open_derived_dimensions(model, open_), sizes, draws)


def vary_sample_sizes(base: Sample) -> tuple[Any, Open, list[dict[str, np.ndarray]]]:
    """The ModelProto of a sample, which of its dimensions are open, and its inputs at each size, its own first; what is
    expected of the sample is not asked for. Raises Vacuous."""
    import onnx

    if base.definition or base.op_class in _UNSAID:
        raise Vacuous("what is expected at another size cannot be said")
    model = onnx.load_model_from_string(base.model)
    own = list_part_feeds(base, model)
    if not all(isinstance(x, np.ndarray) for x in own.values()) or len(own) != len(base.args):
        raise Vacuous("an input is no tensor")
    for open_ in _list_open_dimensions(model, own):
        sizes = [own]
        for change in (_double_size, _halve_size):
            feeds = resize_sample_inputs(own, open_, change)
            if any(feeds[x].shape != own[x].shape for x in own) and _is_valid_at(model, feeds):
                sizes.append(feeds)
        if len(sizes) > 1:
            return model, open_, sizes
    raise Vacuous("no dimension of it can be another")


def resize_sample_inputs(
    own: Mapping[str, np.ndarray], open_: Open, change: Callable[[int], int]
) -> dict[str, np.ndarray]:
    """Inputs with the open dimensions at another length: their own elements, mirrored where they grow, the last ones
    left where they shrink."""
    made = {}
    for name, array in own.items():
        for axis, symbol in enumerate(open_[name]):
            size = array.shape[axis]
            if symbol and size:
                wanted = change(size)
                places = np.r_[np.arange(size), np.arange(size)[::-1]][:wanted] if wanted > size else np.arange(size)
                array = np.take(array, places[-wanted:], axis=axis)
        made[name] = make_array_contiguous(array)
    return made


def open_derived_dimensions(model: Any, open_: Open) -> Any:
    """A copy of a ModelProto with open dimensions, and with nothing said of the shapes of other tensors."""
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    for name, value in list_part_inputs(made).items():
        _set_declared_shape(value, [symbol or size for symbol, size in zip(open_[name], _list_model_dims(value))])
    del made.graph.value_info[:]
    for number, value in enumerate(made.graph.output):
        if value.type.tensor_type.HasField("shape"):
            sizes = range(len(value.type.tensor_type.shape.dim))
            _set_declared_shape(value, [f"output_{number}_{axis}" for axis in sizes])
    return made


def fix_derived_shapes(model: Any, feeds: Mapping[str, np.ndarray]) -> Any:
    """A copy of a ModelProto with inputs of these shapes, and with nothing said of those of other tensors."""
    made = open_derived_dimensions(model, {name: [""] * x.ndim for name, x in feeds.items()})
    for name, value in list_part_inputs(made).items():
        _set_declared_shape(value, feeds[name].shape)
    return made


def _double_size(size: int) -> int:
    return 2 * size


def _halve_size(size: int) -> int:
    return max(1, size // 2)


def _list_open_dimensions(model: Any, own: Mapping[str, np.ndarray]) -> list[Open]:
    """Which dimensions may be open, the best choice first."""
    inputs = list_part_inputs(model)
    declared = {name: _name_open_dimensions(inputs[name], x) for name, x in own.items()}
    names = list(dict.fromkeys(symbol for symbols in declared.values() for symbol in symbols if symbol))
    if names:  # some are open in name only: a network's height may be one that its pools need
        some = [names, *([x for x in names if x != left] for left in names), *([x] for x in names)]
        return [
            {name: [x if x in chosen else "" for x in symbols] for name, symbols in declared.items()}
            for chosen in dict.fromkeys(map(tuple, some))
            if chosen
        ]
    by_length = {name: [f"length_{n}" if n > 1 else "" for n in x.shape] for name, x in own.items()}
    floating = {name: by_length[name] if is_inexact_dtype(x.dtype.name) else [""] * x.ndim for name, x in own.items()}
    firsts = {name: ["first" if axis == 0 else "" for axis in range(x.ndim)] for name, x in own.items()}
    lead = next(iter(own))
    # Ids and their mask are one batch: of one alone a graph may still make sense, which nobody means.
    batch = {n: symbols if own[n].shape == own[lead].shape else [""] * len(symbols) for n, symbols in firsts.items()}
    first = {name: symbols if name == lead else [""] * len(symbols) for name, symbols in firsts.items()}
    return [batch, first, firsts, floating, by_length]


def _name_open_dimensions(value: Any, array: np.ndarray) -> list[str]:
    """What a model calls the open dimensions of an input; those without a name are each by itself."""
    shape = value.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape") or len(shape.dim) != array.ndim:
        return [""] * array.ndim
    return ["" if dim.dim_value > 0 else dim.dim_param or f"{value.name}_{axis}" for axis, dim in enumerate(shape.dim)]


def _list_model_dims(value: Any) -> list[int | str]:
    dims = value.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in dims]


def _set_declared_shape(value: Any, sizes: Any) -> None:
    del value.type.tensor_type.shape.dim[:]
    value.type.tensor_type.shape.SetInParent()
    for size in sizes:
        dim = value.type.tensor_type.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        else:
            dim.dim_value = int(size)


def _is_valid_at(model: Any, feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether the model is valid at these sizes: onnx infers its shapes without a contradiction, none of them empty,
    and it has a finite float64 evaluation."""
    import onnx

    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.widening import NoOracle

    try:
        sized = fix_derived_shapes(model, feeds)
        inferred = onnx.shape_inference.infer_shapes(sized, check_type=True, strict_mode=True, data_prop=True)
        said = {name for node in model.graph.node if node.op_type == "Constant" for name in node.output}
        if any(_has_empty_dim(value) for value in inferred.graph.value_info if value.name not in said):
            return False
        found = EvaluatedGraph(sized).run(feeds).values()
    except (NoOracle, onnx.shape_inference.InferenceError, KeyError, ValueError, TypeError, IndexError):
        return False
    return all(x.dtype.kind not in "fc" or np.isfinite(x).all() for x in map(np.asarray, found))


def _has_empty_dim(value: Any) -> bool:
    return any(dim.HasField("dim_value") and dim.dim_value <= 0 for dim in value.type.tensor_type.shape.dim)


def _make_shape_sample(base: Sample, number: int, model: Any, sizes: list[dict[str, np.ndarray]], draws: int) -> Sample:
    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.noise_floor import reference_and_floor

    expected: list[Leaf] = []
    for feeds in sizes:
        found = reference_and_floor(EvaluatedGraph(fix_derived_shapes(model, feeds)), feeds, draws)
        references = found.references
        if not expected and not compare_two_oracles(references, base.expected, base.op_class)["classic"]:
            raise Vacuous("at its own size its float64 evaluation is not what is expected there")
        for leaf, y, delta, jumps in zip_equal(base.expected, references, found.steady, found.jumps):
            noise = delta if delta.any() else None
            expected.append(replace(leaf, shape=y.shape, reference=y, noise=noise, jumps=jumps))
    arrays = [x for feeds in sizes for x in feeds.values()]
    return Sample(
        number,
        tuple(TensorSpec(k) for k in range(len(base.args))),
        arrays=arrays,
        expected=expected,
        op_class=base.op_class,
        model=model.SerializeToString(deterministic=True),
        state=base.state,
        alike=base.alike,
        writes=base.writes,
        columns=base.columns | {"flags": f"sizes={len(sizes)}"},
    )
