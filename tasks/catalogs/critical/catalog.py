"""The `critical` catalog: the ops that current models live on, at their shapes, against NumPy references in float64."""

from __future__ import annotations

import importlib.metadata
import itertools
import types
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays import inputs, noise
from tasks.arrays.tree import TensorSpec, decode_argument_tree, read_tensor_spec
from tasks.catalogs.base import ROUNDING, Catalog, Entry, Failure, Sample
from tasks.catalogs.critical import DTYPES as DTYPES
from tasks.catalogs.critical.ops import OPS, Call, CriticalOp
from tasks.draw import structure
from tasks.draw.seeds import derive_seed
from tasks.judge import op_classes
from tasks.model import EPS, STRUCTURED, Group, Leaf, OpClass, Oracle, get_numpy_dtype
from tasks.passport import ARITHMETIC, SHAPES

#: Counts up whenever the bytes of a sample, a reference or a noise floor change.
CATALOG_VERSION = "4"

#: Ops of which torch's own float64 evaluation is no oracle (see `tasks.catalogs.torch.reference.SETTLED`).
NOT_SECOND = ("gelu", "gelu_tanh")

#: The catalog's own inputs are regular already.
DISTRIBUTIONS = ("own", *(name for name in inputs.THEMES if name != "regular"))


class Critical(Catalog):
    """The ops of `tasks.catalogs.critical.ops`; any number of samples each, all of one shape, from independent
    streams."""

    name = "critical"
    forms = ("torch",)
    exports = ("onnx",)
    #: By name; another table's in a catalog that makes its samples in the same way.
    ops: Mapping[str, CriticalOp] = OPS

    def version(self) -> str:
        """The catalog's own version, NumPy's, whose generator and kernels decide the bytes, and the second oracle's."""
        return f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}+torch{_find_torch_version()}"

    def entries(self) -> list[Entry]:
        """One entry per op, without variants. Gradients need torch, which differentiates."""
        offered = (checks.FORWARD, *(("backward", "double_backward") if _find_torch_version() is not None else ()))
        return [
            Entry(
                f"{self.name}:{name}",
                "",
                DTYPES,
                (*offered, *(ARITHMETIC,) * (op.sums is not None)),
                DISTRIBUTIONS + (STRUCTURED,) * op.selects,
            )
            for name, op in sorted(self.ops.items())
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Samples 0 … group.samples − 1 of an op in a dtype.

        Floating arrays are made in float64 and rounded to the dtype; the reference is computed on what they
        became, and so is the noise floor (`tasks.arrays.noise`) of ``draws`` draws. Raises
        ValueError for an op, variant or dtype that the catalog does not have.
        """
        op = self._op(group)
        if group.dtype not in DTYPES:
            raise ValueError(f"{self.name}: {group.op} has no dtype {group.dtype!r}; it has {', '.join(DTYPES)}")
        make = _make_summed_sample if group.check == ARITHMETIC else _make_critical_sample
        return (Sample(i) if i in skip else make(op, group, i, draws) for i in range(group.samples))

    def remade(self, group: Group, given: Sample, draws: int) -> Sample:
        def array(kind: str, node: dict[str, Any]) -> Any:
            return given.arrays[read_tensor_spec(node).id]

        args, kwargs = (decode_argument_tree(tree, array) for tree in (given.args, given.kwargs))
        return _build_critical_sample(self._op(group), (args, kwargs), group, given.index, draws)

    def __init__(self) -> None:
        self.imports = () if _find_torch_version() is None else ("torch",)

    def call(self, group: Group) -> Callable[..., Any]:
        """The op on torch tensors. Raises ValueError for an op that the catalog does not have."""
        op = self._op(group)
        import torch

        return op.torch_form(torch)

    def _op(self, group: Group) -> CriticalOp:
        if group.catalog != self.name or group.op_name not in self.ops or group.variant:
            raise ValueError(f"the catalog {self.name} has no op {group.label!r}")
        return self.ops[group.op_name]


def _make_critical_sample(op: CriticalOp, group: Group, index: int, draws: int) -> Sample:
    try:
        seed = (zlib.crc32(group.op.encode()), zlib.crc32(group.dtype.encode()), index, group.seed % 2**64)
        made = op.inputs(np.random.default_rng(seed))
        columns = {}
        if group.distribution == STRUCTURED:
            made, columns["structure"] = _structure_critical_call(made, index, group)
        elif group.distribution != "own":
            made = _redraw_critical_values(
                made, group, index, np.random.default_rng((*seed, zlib.crc32(group.distribution.encode())))
            )
        stored = _round_critical_arguments(made, get_numpy_dtype(group.dtype))
    except Exception as error:
        return Sample(index, failure=Failure.of(error, "sample"))
    sample = _build_critical_sample(op, stored, group, index, draws)
    sample.columns |= columns
    return sample


def _make_summed_sample(op: CriticalOp, group: Group, index: int, draws: int) -> Sample:
    """A sample of which it is known where the terms of some results lie, of the rows and terms of a row of `SHAPES`."""
    assert op.sums is not None, "an op that adds nothing is not asked"
    rows, terms = SHAPES[index]
    seed = (zlib.crc32(group.op.encode()), zlib.crc32(group.dtype.encode()), index, group.seed % 2**64)
    try:
        made = op.sums(np.random.default_rng(seed), rows, terms)
        stored = _round_critical_arguments((made.args, made.kwargs), get_numpy_dtype(group.dtype))
    except Exception as error:
        return Sample(index, failure=Failure.of(error, "sample"))
    sample = _build_critical_sample(op, stored, group, index, draws)
    sample.terms = made.terms
    return sample


def _structure_critical_call(made: Call, index: int, group: Group) -> tuple[Call, str]:
    """The call with a structure of its first input that has one, and its label. Raises ValueError where none has."""
    args, kwargs = made
    for name, x in (*((f"argument{k}", x) for k, x in enumerate(args)), *kwargs.items()):
        if not isinstance(x, np.ndarray):
            continue
        for turn in range(index, index + len(structure.WORDS)):
            found = structure.draw_structure_like(x, turn, derive_seed(group.seed, f"{group.op}/{name}/{turn}"))
            if found is not None:
                changed = _map_critical_arguments(made, lambda y, x=x, new=found[1]: new if y is x else y)  # type: ignore[misc]
                return changed, structure.write_structure_label(name, found[0])
    raise ValueError("no input selects or counts")


def _build_gradient_sample(op: CriticalOp, stored: Call, group: Group, index: int, draws: int) -> Sample:
    """The sample of a check of gradients: of the op's torch form, made as those of torch's own ops are."""
    import torch

    from tasks.arrays import torch_tree
    from tasks.catalogs.torch.differentiable import PROCESS, make_output_processing
    from tasks.catalogs.torch.gradient_samples import GradientSampleMaker

    def tensor(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        made = torch_tree.tensor_from_numpy(x)
        return made.requires_grad_(made.is_floating_point())

    call = op.torch_form(torch)
    (first, *rest), kwargs = _map_critical_arguments(stored, tensor)
    info = types.SimpleNamespace(name=op.name, variant_test_name="", op=call, ref=None)
    source = types.SimpleNamespace(
        input=first, args=tuple(rest), kwargs=kwargs, **{PROCESS: make_output_processing(info, None)}
    )
    return GradientSampleMaker(info, group, draws, call).make(index, source)


def _build_critical_sample(op: CriticalOp, stored: Call, group: Group, index: int, draws: int) -> Sample:
    """The sample of a call, its arrays in the dtype under test."""
    if checks.get_check_or_default(group.check).gradient:
        return _build_gradient_sample(op, stored, group, index, draws)
    try:
        expected = _compute_critical_reference(op, stored, group, draws)
    except Exception as error:
        return Sample(index, failure=Failure.of(error, "reference"))
    arrays: list[np.ndarray] = []

    def place(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        arrays.append(value)
        return TensorSpec(id=len(arrays) - 1)

    args, kwargs = _map_critical_arguments(stored, place)
    others = _compute_second_oracle(op, stored, group.dtype)
    return Sample(
        index,
        args,
        kwargs,
        arrays,
        [expected],
        op_class=op_classes.find_op_class(group.op).op_class,
        oracle="numpy-float64",
        others=others,
    )


def _compute_second_oracle(op: CriticalOp, stored: Call, dtype: str) -> list[Oracle]:
    """torch's float64 evaluation of its form of the op; none without torch, for an op of NOT_SECOND or where it
    raises."""
    if _find_torch_version() is None or op.name in NOT_SECOND:
        return []
    import torch

    args, kwargs = _map_critical_arguments(
        _widen_critical_arguments(stored, get_numpy_dtype(dtype)),
        lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x,
    )
    try:
        with torch.no_grad():
            result = op.torch_form(torch)(*args, **kwargs).numpy()
    except Exception:
        return []
    return [Oracle("torch-float64", [np.array(result, order="C")], rounding=ROUNDING)]


def _find_torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _redraw_critical_values(arguments: Call, group: Group, index: int, rng: np.random.Generator) -> Call:
    """The call with the values of its first floating array, the activations, drawn from the group's distribution.

    An array without negative values stays one: its op may be defined there alone.
    """
    simple = op_classes.find_op_class(group.op).op_class in (OpClass.EXACT, OpClass.ELEMENTARY)
    done: list[bool] = []

    def redraw_first(x: Any) -> Any:
        if done or not _is_floating_argument(x):
            return x
        done.append(True)
        theme = inputs.choose_array_theme(group.distribution, index)
        values = inputs.fill_array(x.shape, group.dtype, group.distribution, rng, theme, mild=not simple).astype(
            np.float64
        )
        return np.abs(values) if x.size and x.min() >= 0 else values

    return _map_critical_arguments(arguments, redraw_first)


def _map_critical_arguments(arguments: Call, function: Callable[[Any], Any]) -> Call:
    args, kwargs = arguments
    return tuple(function(x) for x in args), {k: function(x) for k, x in kwargs.items()}


def _is_floating_argument(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _round_critical_arguments(arguments: Call, dtype: np.dtype) -> Call:
    """The call with its float64 arrays rounded to ``dtype``, to nearest even; all arrays contiguous."""
    return _map_critical_arguments(
        arguments, lambda x: np.asarray(x, dtype, order="C") if _is_floating_argument(x) else x
    )


def _widen_critical_arguments(arguments: Call, dtype: np.dtype) -> Call:
    """The call with its arrays of ``dtype`` in float64."""
    return _map_critical_arguments(
        arguments, lambda x: x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) and x.dtype == dtype else x
    )


def _compute_critical_reference(op: CriticalOp, stored: Call, group: Group, draws: int) -> Leaf:
    """The exact result of the stored inputs with its noise floor."""
    dtype = group.dtype
    args, kwargs = op.narrow(*stored[0], **stored[1]) if op.narrow else stored
    exact = _widen_critical_arguments((args, kwargs), get_numpy_dtype(dtype))
    reference = _evaluate_critical_reference(op, exact)

    def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
        for draw in drawn:
            yield [_evaluate_critical_reference(op, _perturb_critical_arguments(exact, EPS[dtype], draw))]

    elements = sum(x.size for x in (*exact[0], *exact[1].values()) if isinstance(x, np.ndarray))
    (delta,) = noise.compute_noise_floor(
        [reference], evaluate, op_classes.find_op_class(group.op).op_class, draws, elements
    )
    name = dtype if reference.dtype == np.float64 else reference.dtype.name
    (shared,) = noise.measure_shared_noise([reference], evaluate)
    return Leaf(name, reference.shape, reference, delta, shared=shared)


def _perturb_critical_arguments(exact: Call, eps: float, draw: int) -> Call:
    places = itertools.count(1)
    return _map_critical_arguments(
        exact, lambda x: noise.perturb_by_noise(x, eps, draw, next(places)) if _is_floating_argument(x) else x
    )


def _evaluate_critical_reference(op: CriticalOp, arguments: Call) -> np.ndarray:
    args, kwargs = arguments
    with np.errstate(all="ignore"):  # overflow and NaN of a reference are results, not accidents
        result = np.asarray(op.reference(*args, **kwargs), order="C")
    if result.dtype not in (np.float64, np.int64):
        raise TypeError(f"the reference of {op.name} returned {result.dtype}, not float64 or int64")
    return result
