"""Inputs of a kernel: sizes from its dimensions' candidates, arrays of the shapes that its schema builds from them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tasks.arrays import inputs
from tasks.catalogs.user.dims import evaluate_dim_shape, evaluate_dim_size
from tasks.catalogs.user.ops import UserOp
from tasks.draw import structure
from tasks.draw.seeds import derive_seed
from tasks.model import STRUCTURED, WITHOUT_NOISE, Group, OpClass, get_numpy_dtype, is_complex_dtype, is_inexact_dtype


def list_sample_sizes(
    op: UserOp, seed: int, count: int, fits: Callable[[Mapping[str, int]], bool] = lambda dims: True
) -> list[dict[str, int]]:
    """The sizes of the first ``count`` samples: all smallest, all largest, then every candidate of every dimension
    soon.

    No combination comes again before all have come; the list is the same whatever the dtype and the count. Only those
    that ``fits`` accepts are taken; if the smallest is not one of them, there are none.
    """
    found = _iterate_sample_sizes(op, seed)
    return list(islice(filter(fits, found), count)) if fits(next(_iterate_sample_sizes(op, seed))) else []


def _iterate_sample_sizes(op: UserOp, seed: int) -> Iterator[dict[str, int]]:
    candidates = {name: sorted(set(values)) for name, values in op.dims.items()}
    total = 1
    for values in candidates.values():
        total *= len(values)
    g = np.random.default_rng([zlib.crc32(op.name.encode()), seed % 2**64])
    passes: dict[str, list[int]] = {name: [] for name in candidates}
    while True:
        seen: set[tuple[int, ...]] = set()
        for end in (0, -1):
            made = {name: values[end] for name, values in candidates.items()}
            if tuple(made.values()) not in seen:
                seen.add(tuple(made.values()))
                yield made
        while len(seen) < total:
            for name, values in candidates.items():
                passes[name] = passes[name] or [values[i] for i in g.permutation(len(values))]
            made = {name: passes[name].pop() for name in candidates}
            if tuple(made.values()) not in seen:
                seen.add(tuple(made.values()))
                yield made


def derive_kernel_sample_seed(group: Group, index: int) -> tuple[int, ...]:
    """Seed of a sample's arrays: of the op, dtype, distribution, place and the run's seed."""
    return (
        *(zlib.crc32(text.encode()) for text in (group.op, group.dtype, group.distribution)),
        index,
        group.seed % 2**64,
    )


def make_sample_arrays(op: UserOp, dims: Mapping[str, int], group: Group, index: int) -> dict[str, np.ndarray]:
    """The inputs of a sample, in the dtypes that the kernel is given."""
    distribution = op.values if group.distribution in ("own", STRUCTURED) else group.distribution
    theme = inputs.choose_array_theme(distribution, index)
    mild = op.op_class not in WITHOUT_NOISE  # a square or a sum may overflow in every implementation
    g = np.random.default_rng(derive_kernel_sample_seed(group, index))
    made = {}
    for name, given in op.inputs.items():
        spec = given if isinstance(given, Mapping) else {"shape": given}
        dtype = spec.get("dtype") or group.dtype
        shape = evaluate_dim_shape(spec["shape"], dims)
        if "data" in spec:
            made[name] = np.resize(read_given_data(spec["data"]), shape).astype(get_numpy_dtype(dtype))
            continue
        what = describe_kernel_input(name, spec, dims, group.dtype)
        if what.low is not None and what.high is not None:
            made[name] = draw_uniform_input(shape, dtype, what.low, what.high, g)
        else:
            made[name] = inputs.fill_array(shape, dtype, distribution, g, theme, mild)
        made[name] = draw_input_of_its_kind(
            what, made[name], derive_seed(group.seed, f"{group.op}/{group.dtype}/{name}/{index}")
        )
    return made


def find_kernel_input_bounds(spec: Mapping[str, Any], dims: Mapping[str, int]) -> tuple[Any, Any]:
    """The lowest value of an input, and the first above all of them (of floats the highest); None and None where it has
    none."""
    if "below" in spec:
        return 0 if "low" not in spec else evaluate_dim_size(spec["low"], dims), evaluate_dim_size(spec["below"], dims)
    return (
        (evaluate_dim_size(spec["low"], dims), evaluate_dim_size(spec["high"], dims)) if "low" in spec else (None, None)
    )


def describe_kernel_input(
    name: str, spec: Mapping[str, Any], dims: Mapping[str, int], dtype: str
) -> structure.StructuredInput:
    """What an input is: as declared, else as its dtype, bounds and name suggest."""
    declared = spec.get("is", "")
    given = structure.StructuredInput(
        declared,
        evaluate_dim_shape(spec["shape"], dims),
        spec.get("dtype") or dtype,
        *find_kernel_input_bounds(spec, dims),
        declared=bool(declared),
    )
    return given if declared else structure.infer_structure(name, given)


def draw_input_of_its_kind(what: structure.StructuredInput, plain: np.ndarray, seed: int) -> np.ndarray:
    """Ordinary values of an input; where a kind is declared of which not every value is one, values of that kind."""
    if not what.declared or not structure.KINDS[what.kind].constrained:
        return plain
    made = structure.draw_structure(what, structure.PLAIN, seed, plain)
    return plain if made is None else made


#: Samples of its own distribution that an op has before the first with a structure: all its smallest, all its largest
#: sizes.
FIRST = 2
#: Of the kinds that count or select: how many structures come for each of the floats'.
DISCRETE_FIRST = 2


def list_kernel_structures(
    op: UserOp, dims: Mapping[str, int], dtype: str, check: str, free: bool
) -> list[tuple[str, str]]:
    """(input, structure) of everything that can be structured in a sample of these sizes, the most telling first. free:
    whether the values of floats are ordinary ones, which an order may be given to."""
    if op.op_class in (OpClass.RANDOM, OpClass.UNINITIALISED):
        return []
    kinds = {name: what for name, what in _describe_kernel_inputs(op, dims, dtype).items()}
    discrete, floats = [], []
    for name, what in kinds.items():
        found = [(name, one) for one in structure.list_structures(what)]
        if structure.KINDS[what.kind].discrete or not is_inexact_dtype(what.dtype):
            discrete.append(found)
        elif free and check == "forward":  # at ties a gradient need not be defined
            floats.append(found)
    first, rest = _take_lists_in_turn(discrete), _take_lists_in_turn(floats)
    made = []
    while first or rest:
        made += first[:DISCRETE_FIRST] + rest[:1]
        first, rest = first[DISCRETE_FIRST:], rest[1:]
    return made


def _take_lists_in_turn(lists: list[list[tuple[str, str]]]) -> list[tuple[str, str]]:
    return [x[k] for k in range(max(map(len, lists), default=0)) for x in lists if k < len(x)]


def _describe_kernel_inputs(op: UserOp, dims: Mapping[str, int], dtype: str) -> dict[str, structure.StructuredInput]:
    """What each input is whose values are not given."""
    specs = {name: given if isinstance(given, Mapping) else {"shape": given} for name, given in op.inputs.items()}
    return {name: describe_kernel_input(name, x, dims, dtype) for name, x in specs.items() if "data" not in x}


def structure_sample_input(
    op: UserOp, dims: Mapping[str, int], dtype: str, plain: Mapping[str, np.ndarray], name: str, which: str, seed: int
) -> StructuredKernelInputs | None:
    """The inputs of a sample with one of them in a structure; None where its shape or range has none such."""
    what = _describe_kernel_inputs(op, dims, dtype)[name]
    made = structure.draw_structure(what, which, seed, plain[name])
    if made is None or made.tobytes() == plain[name].tobytes():
        return None
    return StructuredKernelInputs({**plain, name: made}, name, which, what)


@dataclass(frozen=True)
class StructuredKernelInputs:
    """Inputs of which one, ``name``, has a structure; what: that input."""

    arrays: dict[str, np.ndarray]
    name: str
    which: str
    what: structure.StructuredInput

    @property
    def label(self) -> str:
        return structure.write_structure_label(self.name, self.which)

    @property
    def has_unintended_ties(self) -> bool:
        """Whether floats are equal of which nobody said that they may be: of several maxima the index is not
        defined."""
        return not self.what.declared and self.which in structure.KINDS[self.what.kind].tied


def make_structured_inputs(
    op: UserOp, dims: Mapping[str, int], group: Group, index: int, plain: Mapping[str, np.ndarray]
) -> StructuredKernelInputs | None:
    """The structured inputs of a sample, None where it is an ordinary one. Every other sample has a structure: of the
    op's own distribution after the first two, one of any input; of a generated one but nan, one of an input that
    selects or counts; of the structured distribution every sample."""
    own, every = group.distribution == "own", group.distribution == STRUCTURED
    if not every and group.distribution not in _TURNS:
        return None
    if not every and (index % 2 == (1 if own else 0) or (own and index < FIRST)):
        return None
    found = list_kernel_structures(op, dims, group.dtype, group.check, free=(own or every) and op.values == "regular")
    turn = index if every else index // 2 - own + _TURNS.index(group.distribution) * _STRIDE
    turn += group.seed
    for k in range(len(found)):
        name, which = found[(turn + k) % len(found)]
        seed = derive_seed(group.seed, f"{group.op}/{group.dtype}/{name}/{which}/{index}")
        if made := structure_sample_input(op, dims, group.dtype, plain, name, which, seed):
            return made
    return None


#: Distributions whose samples are structured; by how many places each begins further on in the list of structures.
_TURNS, _STRIDE = ("own", "regular", "boundary", "adversarial"), 3


def read_given_data(given: Any) -> np.ndarray:
    """The values that an input is given: those of a list, or of an .npy file. Raises OSError, ValueError."""
    return np.load(given, allow_pickle=False) if isinstance(given, str) else np.asarray(given)


def count_kernel_elements(op: UserOp, dims: Mapping[str, int], names: Collection[str] | None = None) -> int:
    """How many elements the inputs have together, or those of ``names``."""
    total = 0
    for name, given in op.inputs.items():
        if names is None or name in names:
            shape = given["shape"] if isinstance(given, Mapping) else given
            total += int(np.prod(evaluate_dim_shape(shape, dims), dtype=np.int64))
    return total


def find_declared_contradiction(op: UserOp, dims: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> str:
    """How the first input that is declared to be of a kind has values that are not; "" where there is none."""
    for name, given in op.inputs.items():
        if isinstance(given, Mapping) and "is" in given and "data" not in given and name in arrays:
            what = describe_kernel_input(name, given, dims, arrays[name].dtype.name)
            if said := structure.find_structure_contradiction(what, arrays[name]):
                return f"{name} is declared as {what.kind}, and {said}"
    return ""


def explain_values_outside(op: UserOp, dims: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> str:
    """How the first input whose values are not those that it is declared with contradicts that; "" where there is
    none."""
    for name, given in op.inputs.items():
        if isinstance(given, Mapping) and "data" not in given and "is" not in given:
            x, (low, high) = arrays[name], find_kernel_input_bounds(given, dims)
            if low is None:
                continue
            low, high = (np.asarray(end).astype(x.dtype) for end in (low, high))
            parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
            if not all(((low <= y) & ((y < high) if x.dtype.kind in "iu" else (y <= high))).all() for y in parts):
                return f"{name} has values that are not between its low and high"
    return find_declared_contradiction(op, dims, arrays)


def draw_uniform_input(shape: tuple[int, ...], dtype: str, low: Any, high: Any, g: np.random.Generator) -> np.ndarray:
    if is_complex_dtype(dtype):
        return (g.uniform(low, high, shape) + 1j * g.uniform(low, high, shape)).astype(get_numpy_dtype(dtype))
    if is_inexact_dtype(dtype):
        return np.asarray(g.uniform(low, high, shape)).astype(get_numpy_dtype(dtype))
    return np.asarray(g.integers(low, high, shape)).astype(get_numpy_dtype(dtype))
