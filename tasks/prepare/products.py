"""Whether a sample is made of products, and how far its result moves when their factors are those of a coarser precision.

A matrix unit that takes float32 for TF32 rounds the factors of each product, whatever op that is a part of. So a
sample's computation is run once, and asked (`tasks.graphs.products`, `tasks.graphs.coarse_products`). Where several steps make a
result of products, the noise floor of its inputs is no measure of what rounding each factor does, and a floor of its
own is drawn.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks import catalogs, checks
from tasks.arrays import noise
from tasks.arrays.tree import NotEncodable, decode_argument_tree, read_tensor_spec
from tasks.catalogs.base import Sample
from tasks.graphs import products, traced_program
from tasks.graphs.products import Change
from tasks.model import EPS, WITHOUT_NOISE, Group, OpClass, get_wide_dtype

#: Dtypes whose products matrix units compute in less: float32, and complex numbers of two of them.
DTYPES = ("float32", "complex64")
#: The precision in which floors are drawn; those of another follow in proportion.
PRECISION = "tfloat32"
#: Classes whose results are no sums of products, or are judged by what defines them; and those whose are of the inputs
#: themselves.
_NONE = (*WITHOUT_NOISE, OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE)
_MADE_OF = (OpClass.CONTRACTION, OpClass.LINEAR_ALGEBRA)

#: A run of a sample's computation, each factor of a product being what a change makes of it, in wide numbers or (False)
#: in any: (outputs, names of the products and Fourier transforms).
Run = Callable[["Change | None", bool], "tuple[list[np.ndarray], list[str]]"]


def may_have_products(group: Group) -> bool:
    """Whether a matrix unit might take products of a group's samples coarser than their dtype."""
    return group.dtype in DTYPES


def fill_in_products(sample: Sample, group: Group, draws: int) -> None:
    """Fill in ``sample.products`` and, of a chain of products, the leaves' ``of_products``.

    A sample that nobody can look inside is what its class says: the numbers of a kernel in Triton whose reference is a
    script are in question where it is declared a contraction, and there alone.
    """
    if sample.failure or not may_have_products(group) or sample.op_class in _NONE:
        return
    sample.products = sample.op_class in _MADE_OF
    if sample.op_class is OpClass.MODEL:
        sample.products = True
        with contextlib.suppress(Exception):  # a runtime may take what onnx cannot read
            sample.products = sample.model is None or _has_product_nodes(sample.model)
        return
    try:
        run = _make_products_run(sample, group)
        found = [] if run is None else run(None, False)[1]
    except Exception:  # what its reference takes, a look inside need not: sparse tensors, scripts
        return
    if run is None:
        return
    transforms = [x for x in found if products.is_fourier_operation(x)]
    seen = len(found) > len(transforms)
    sample.products = seen or (sample.products and not transforms)
    alone = sample.op_class in _MADE_OF or sample.definition or checks.get_check(group.check).gradient
    if seen and not alone:
        floors = [
            x
            for part in _split_sample_sets(sample)
            for x in draw_product_floors(_make_products_run(part, group), part, draws)
        ]
        sample.expected = [replace(leaf, of_products=delta) for leaf, delta in zip(sample.expected, floors)]


def _split_sample_sets(sample: Sample) -> list[Sample]:
    """A sample for each of its sets of inputs, with the outputs that are expected of it."""
    count = max(len(sample.sets), 1)
    arrays, leaves = len(sample.arrays) // count, len(sample.expected) // count
    return [
        replace(
            sample,
            arrays=sample.arrays[k * arrays : (k + 1) * arrays],
            expected=sample.expected[k * leaves : (k + 1) * leaves],
            sets=(),
        )
        for k in range(count)
    ]


def draw_product_floors(run: Run | None, sample: Sample, draws: int) -> list[np.ndarray | None]:
    """Per output how far it moves when each factor of each product moves by ε of PRECISION: the largest distance over
    as many draws as where nobody has computed the result (`tasks.arrays.noise`). None where a draw is refused, or
    outputs have other shapes."""
    if run is None:
        return [None] * len(sample.expected)

    def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
        for draw in drawn:
            yield run(functools.partial(_perturb_product_input, draw), True)[0]

    elements = sum(x.size for x in sample.arrays)
    try:
        exact = run(None, True)[0]
        if [y.shape for y in exact] != [tuple(leaf.shape) for leaf in sample.expected]:
            return [None] * len(sample.expected)
        found = noise.compute_noise_floor(exact, evaluate, sample.op_class, draws, elements)
    except (ArithmeticError, RuntimeError, ValueError):
        return [None] * len(sample.expected)
    return [np.zeros(y.shape) if delta is None else delta for y, delta in zip(exact, found)]


def _perturb_product_input(draw: int, x: np.ndarray, place: int) -> np.ndarray:
    return noise.perturb_by_noise(x, EPS[PRECISION], draw, place)


def _make_products_run(sample: Sample, group: Group) -> Run | None:
    if sample.model is not None:
        return _make_products_of_graph(sample)
    if sample.op_class is OpClass.MODEL:
        return None
    if sample.program is not None:
        return _make_products_of_torch(traced_program.decode_program(sample.program), sample)
    if not checks.get_check(group.check).gradient:
        group = replace(group, check=checks.FORWARD)
    traced = catalogs.get_catalog(group.catalog).traced(group)
    if traced is None:
        return None
    framework, function = traced
    return _make_products_of_torch(function, sample) if framework == "torch" else _make_numpy_run(function, sample)


def _make_products_of_graph(sample: Sample) -> Run:
    import onnx

    from tasks.graphs.coarse_products import CoarseProducts

    model = onnx.load_from_string(sample.model)

    def run(change: Change | None, exactly: bool) -> tuple[list[np.ndarray], list[str]]:
        graph = CoarseProducts(model, change)
        found = graph.run(dict(zip(graph.inputs, sample.arrays)))
        return [np.asarray(found[name]) for name in graph.outputs], graph.found

    return run


def _has_product_nodes(model: bytes | None) -> bool:
    import onnx

    from tasks.graphs import graph_nodes

    block, _ = graph_nodes.read_graph_nodes(onnx.load_from_string(model))
    return any(node.operator.multiplies for node in block.walk())


def _make_products_of_torch(function: Callable[..., Any], sample: Sample) -> Run:
    import torch

    from tasks.arrays import torch_tree
    from tasks.arrays.widened import compute_in_float64

    args, kwargs = _encode_sample_trees(sample)
    leaf = torch_tree.make_tensor_decoder(lambda number: sample.arrays[number], "cpu")

    def widest(kind: str, node: dict[str, Any]) -> Any:
        x = leaf(kind, node)
        if not isinstance(x, torch.Tensor):
            return x
        return x.to(torch.float64 if x.is_floating_point() else torch.complex128 if x.is_complex() else x.dtype)

    def run(change: Change | None, exactly: bool) -> tuple[list[np.ndarray], list[str]]:
        given = [decode_argument_tree(tree, widest if exactly else leaf) for tree in (args, kwargs)]
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            # The first of two modes to be entered is the last to be asked: a factor is changed where no other mode sees
            # how.
            products.watch_products_in_torch(change, stepwise=exactly) as found,
            compute_in_float64() if exactly else contextlib.nullcontext(),
        ):
            made = function(*given[0], **given[1])
        outputs = torch_tree.list_output_tensors(made) if exactly else ()
        return [torch_tree.make_output_array(torch_tree.dense(x)) for x in outputs], found

    return run


def _make_numpy_run(function: Callable[..., Any], sample: Sample) -> Run:
    args, kwargs = _encode_sample_trees(sample)

    def run(change: Change | None, exactly: bool) -> tuple[list[np.ndarray], list[str]]:
        seen = products.ProductsInNumpy(change)

        def widest(kind: str, node: dict[str, Any]) -> Any:
            array = read_tensor_spec(node).view(sample.arrays[read_tensor_spec(node).id])
            return seen.watch(array.astype(get_wide_dtype(array.dtype.name)))

        with np.errstate(all="ignore"):
            made = function(*decode_argument_tree(args, widest), **decode_argument_tree(kwargs, widest))
        outputs = made if isinstance(made, (tuple, list)) else [made]
        return [np.asarray(x).view(np.ndarray) for x in outputs], seen.found

    return run


def _encode_sample_trees(sample: Sample) -> tuple[Any, Any]:
    try:
        return sample.encoded()
    except NotEncodable as error:
        raise ValueError(str(error)) from None
