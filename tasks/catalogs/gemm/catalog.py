"""The `gemm` catalog: matrix products at the edges of tiles, in every transposition, with gaps between rows, down to float8 and int8."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays import layouts, noise
from tasks.arrays.block_scaled import FORMATS
from tasks.arrays.tree import TensorSpec, read_tensor_spec
from tasks.catalogs.base import Catalog, Entry, Failure, Sample, spread_sample_indices
from tasks.catalogs.gemm import block_scaled, grouped, onnx_form
from tasks.catalogs.gemm.onnx_form import ALPHA, BETA, SCALES, TRANSPOSED
from tasks.model import EPS, Group, Leaf, OpClass, get_numpy_dtype, is_inexact_dtype
from tasks.model.dtypes import name_numpy_dtype
from tasks.passport import ARITHMETIC, SumTerms, choose_sum_elements

#: Counts up whenever the bytes of a sample, a reference or a noise floor change.
CATALOG_VERSION = "2"

FLOATS = ("float32", "float16", "bfloat16", "float64")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
BATCH = 3

#: (rows, columns, summed): each edge of a tile of 16, 32, 64 and 128 met, missed and passed by one, then vectors and
#: long sums.
SHAPES: tuple[tuple[int, int, int], ...] = (
    *(
        (t + m, t + n, t + k)
        for t in (16, 32, 64, 128)
        for m, n, k in ((0, 0, 0), (-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1), (1, -1, 1))
    ),
    *(
        (1, 128, 64),
        (128, 1, 64),
        (128, 64, 1),
        (1, 1, 257),
        (257, 255, 65),
        (1, 96, 4096),
        (2, 2, 2048),
        (33, 257, 129),
    ),
)
#: What the kernels of float8 and int8 ask for on GPUs: more than 16 rows, all else a multiple of 16.
ALIGNED: tuple[tuple[int, int, int], ...] = tuple(
    (m, n, k) for m in (17, 32, 127, 128) for n in (16, 48, 128) for k in (16, 64, 272)
)
#: (rows, columns, summed) of the float8 products of which it is known where the terms of results lie, for reading a
#: device's arithmetic: as those kernels ask for, within what accumulators are kept in (128 terms on a Hopper) and
#: beyond it.
SUMMED: tuple[tuple[int, int, int], ...] = (
    *((32, 16, terms) for terms in (32, 48, 64, 96, 128, 144, 256, 272)),
    (17, 16, 64),
    (256, 16, 64),
)
#: How a matrix lies in memory: (elements between the end of a row and the next, elements before the first).
LAYOUTS = ((0, 0), (3, 0), (0, 1), (8, 4))


@dataclass(frozen=True)
class OwnProduct:
    """A product whose operands are not two matrices alone. make_arrays: of a generator, one of the op's shapes, a variant
    and a dtype; multiply: the exact product of a variant's arrays, in float64; call: torch's, of a variant and
    tensors."""

    make_arrays: Callable[[np.random.Generator, Any, str, str], list[np.ndarray]]
    multiply: Callable[[str, Sequence[np.ndarray]], np.ndarray]
    call: Callable[..., Any]


@dataclass(frozen=True)
class GemmOp:
    """op_class: how its result is judged; dtypes; variants; shapes of its samples; output: dtype of the result by
    variant and dtype under test. own: its product, where that is not of two matrices alone; of: the dtypes of some
    variants, where not all have all."""

    dtypes: tuple[str, ...]
    variants: tuple[str, ...]
    shapes: tuple[Any, ...]
    output: Callable[[str, str], str]
    op_class: OpClass = OpClass.CONTRACTION
    own: OwnProduct | None = None
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def dtypes_of(self, variant: str) -> tuple[str, ...]:
        return self.of.get(variant, self.dtypes)


OPS: Mapping[str, GemmOp] = {
    "addmm": GemmOp(FLOATS, TRANSPOSED, SHAPES, lambda variant, dtype: dtype),
    "block_scaled_mm": GemmOp(
        FORMATS["mx"].elements,
        tuple(FORMATS),
        block_scaled.SHAPES,
        lambda variant, dtype: "float32",
        own=OwnProduct(block_scaled.make_arrays, block_scaled.multiply, block_scaled.call),
        of={name: kind.elements for name, kind in FORMATS.items()},
    ),
    "bmm": GemmOp(FLOATS, TRANSPOSED, SHAPES, lambda variant, dtype: dtype),
    "grouped_mm": GemmOp(
        ("float32", "float16", "bfloat16"),
        grouped.VARIANTS,
        grouped.SHAPES,
        lambda variant, dtype: dtype,
        own=OwnProduct(grouped.make_arrays, grouped.multiply, grouped.call),
    ),
    "int_mm": GemmOp(("int8",), ("",), ALIGNED, lambda variant, dtype: "int32", OpClass.EXACT),
    "mm": GemmOp(FLOATS, TRANSPOSED, SHAPES, lambda variant, dtype: dtype),
    "scaled_mm": GemmOp(FLOAT8, ("bfloat16", "float32"), ALIGNED, lambda variant, dtype: variant),
}


class Gemm(Catalog):
    """Samples are shapes, those asked for spread over the list; layouts take turns. A matrix of a transposed one is
    given as it is stored, and the call transposes it."""

    name = "gemm"
    forms = ("torch", "onnx")

    def version(self) -> str:
        return f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}"

    def entries(self) -> list[Entry]:
        return [
            Entry(
                f"{self.name}:{name}",
                v,
                op.dtypes_of(v),
                (checks.FORWARD, *(ARITHMETIC,) * _are_gemm_sums_read(name, v)),
            )
            for name, op in OPS.items()
            for v in op.variants
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Raises ValueError for an op, variant or dtype that the catalog does not have."""
        op = self._op(group)
        if group.check == ARITHMETIC:
            return (Sample(k) if k in skip else self._summed_sample(op, group, k, draws) for k in range(group.samples))
        places = spread_sample_indices(len(op.shapes), group.samples)
        return (Sample(i) if k in skip else self._sample(op, group, i, draws) for k, i in enumerate(places))

    def remade(self, group: Group, given: Sample, draws: int) -> Sample:
        specs: list[TensorSpec] = [read_tensor_spec(x) for x in given.args["v"]]  # type: ignore[call-overload]
        return _build_gemm_sample(self._op(group), group, given.index, given.arrays, specs, draws)

    def call(self, group: Group) -> Callable[..., Any]:
        op = self._op(group)
        return functools.partial(op.own.call if op.own else _CALLS[group.op_name], group.variant)

    def _op(self, group: Group) -> GemmOp:
        op = OPS.get(group.op_name)
        if (
            group.catalog != self.name
            or op is None
            or group.variant not in op.variants
            or group.dtype not in op.dtypes_of(group.variant)
        ):
            raise ValueError(f"the catalog gemm has no op {group.label!r} in {group.dtype}")
        return op

    def _sample(self, op: GemmOp, group: Group, index: int, draws: int) -> Sample:
        seed = (zlib.crc32(group.label.encode()), zlib.crc32(group.dtype.encode()), index, group.seed % 2**64)
        rng = np.random.default_rng(seed)
        arrays, specs = [], []
        if op.own:
            arrays = op.own.make_arrays(rng, op.shapes[index], group.variant, group.dtype)
            specs = [TensorSpec(number) for number in range(len(arrays))]
        for number, shape in enumerate(() if op.own else _compute_stored_shapes(group, op.shapes[index])):
            array, spec = _lay_out_matrix(
                _draw_matrix_values(rng, shape, group.dtype), number, LAYOUTS[(index + number) % len(LAYOUTS)]
            )
            arrays.append(array)
            specs.append(spec)
        try:
            return _build_gemm_sample(op, group, index, arrays, specs, draws)
        except Exception as error:
            return Sample(index, failure=Failure.of(error, "reference"))

    def _summed_sample(self, op: GemmOp, group: Group, index: int, draws: int) -> Sample:
        """A product with where the terms of its first and its last result lie."""
        shape = SUMMED[index]
        rng = np.random.default_rng((zlib.crc32(group.label.encode()), zlib.crc32(group.dtype.encode()), index))
        arrays = [_draw_matrix_values(rng, x, group.dtype) for x in _compute_stored_shapes(group, shape)]
        sample = _build_gemm_sample(op, group, index, arrays, [TensorSpec(0), TensorSpec(1)], draws)
        rows, columns, count = shape
        k = np.arange(count)
        sample.terms = tuple(
            SumTerms(
                row * columns + column,
                (0, tuple((row * count + k).tolist())),
                (1, tuple((k * columns + column).tolist())),
                fill=(1.0, 1.0),
                where=where,
                scale=SCALES[0] * SCALES[1],
            )
            for row, column, where in choose_sum_elements(rows, columns)
        )
        return sample


def _are_gemm_sums_read(op: str, variant: str) -> bool:
    """Whether the sums of an op are read: of float8 products with all bits of their results. What adds numbers of other
    dtypes the catalog critical has."""
    return op == "scaled_mm" and variant == "float32"


def _compute_stored_shapes(group: Group, shape: tuple[int, int, int]) -> list[tuple[int, ...]]:
    """Shapes of the matrices as they are stored."""
    m, n, k = shape
    flips = group.variant if group.variant in TRANSPOSED else "nn"
    a, b = ((k, m) if flips[0] == "t" else (m, k)), ((n, k) if flips[1] == "t" else (k, n))
    if group.op_name == "bmm":
        return [(BATCH, *a), (BATCH, *b)]
    return [(m, n), a, b] if group.op_name == "addmm" else [a, b]


def _draw_matrix_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    return rng.standard_normal(shape).astype(get_numpy_dtype(dtype))


def _lay_out_matrix(values: np.ndarray, number: int, layout: tuple[int, int]) -> tuple[np.ndarray, TensorSpec]:
    """The storage of a matrix with gaps between its rows, and the view of it."""
    gap, lead = layout
    if not (gap or lead):
        return values, TensorSpec(number)
    return layouts.store_strided_array(
        values, layouts.dense((*values.shape[:-1], values.shape[-1] + gap)), lead, number
    )


def _build_gemm_sample(
    op: GemmOp, group: Group, index: int, arrays: Sequence[np.ndarray], specs: Sequence[TensorSpec], draws: int
) -> Sample:
    """A sample with its float64 reference and noise floor: how far the result moves when each element of the matrices
    moves by ε of the result's dtype. What float8 and int8 hold is exactly given: their own ε would excuse anything."""
    values = [spec.view(array) for spec, array in zip(specs, arrays)]
    output = op.output(group.variant, group.dtype)
    exact = [x.astype(np.float64 if is_inexact_dtype(name_numpy_dtype(x.dtype)) else np.int64) for x in values]
    reference = _multiply_matrices_exactly(group, exact)
    noise_floor = None
    if op.op_class is not OpClass.EXACT:

        def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
            for draw in drawn:
                places = itertools.count(1)
                yield [
                    _multiply_matrices_exactly(
                        group, [_perturb_matrix(x, EPS[output], draw, next(places)) for x in exact]
                    )
                ]

        elements = sum(x.size for x in exact)
        (noise_floor,) = noise.compute_noise_floor([reference], evaluate, op.op_class, draws, elements)
    else:
        reference = reference.astype(get_numpy_dtype(output))
    return Sample(
        index,
        tuple(specs),
        arrays=list(arrays),
        expected=[Leaf(output, reference.shape, reference, noise_floor)],
        op_class=op.op_class,
        oracle="numpy-float64" if op.op_class is not OpClass.EXACT else "exact",
        model=onnx_form.make_gemm_model(
            group.op_name, group.variant, group.dtype, [x.shape for x in values], reference.shape
        ),
    )


def _perturb_matrix(x: np.ndarray, eps: float, draw: int, place: int) -> np.ndarray:
    """What is no number of the product (where its groups end) stands still."""
    return noise.perturb_by_noise(x, eps, draw, place) if x.dtype.kind == "f" else x


def _multiply_matrices_exactly(group: Group, matrices: Sequence[np.ndarray]) -> np.ndarray:
    if own := OPS[group.op_name].own:
        return np.ascontiguousarray(own.multiply(group.variant, matrices))
    *rest, a, b = matrices
    flips = group.variant if group.variant in TRANSPOSED else "nn"
    a, b = (np.swapaxes(x, -1, -2) if flip == "t" else x for x, flip in zip((a, b), flips))
    made: np.ndarray = np.matmul(a, b)
    if group.op_name == "addmm":
        made = ALPHA * made + BETA * rest[0]
    if group.op_name == "scaled_mm":
        made = made * (SCALES[0] * SCALES[1])
    return np.ascontiguousarray(made)


def _transpose_operands(variant: str, a: Any, b: Any) -> tuple[Any, Any]:
    return (a.mT if variant[0] == "t" else a), (b.mT if variant[1] == "t" else b)


def _call_mm(variant: str, a: Any, b: Any) -> Any:
    import torch

    return torch.mm(*_transpose_operands(variant, a, b))


def _call_bmm(variant: str, a: Any, b: Any) -> Any:
    import torch

    return torch.bmm(*_transpose_operands(variant, a, b))


def _call_addmm(variant: str, c: Any, a: Any, b: Any) -> Any:
    import torch

    return torch.addmm(c, *_transpose_operands(variant, a, b), alpha=ALPHA, beta=BETA)


def _call_int_mm(variant: str, a: Any, b: Any) -> Any:
    import torch

    return torch._int_mm(a, b)


def _call_scaled_mm(variant: str, a: Any, b: Any) -> Any:
    """torch wants the first by rows and the second by columns, both without gaps."""
    import torch

    first, second = (torch.tensor(x, dtype=torch.float32, device=a.device) for x in SCALES)
    columns = b.t().contiguous().t()
    return torch._scaled_mm(a.contiguous(), columns, first, second, out_dtype=getattr(torch, variant))


_CALLS: Mapping[str, Callable[..., Any]] = {
    "addmm": _call_addmm,
    "bmm": _call_bmm,
    "int_mm": _call_int_mm,
    "mm": _call_mm,
    "scaled_mm": _call_scaled_mm,
}
