"""Fuzzed samples of a kernel: sizes between a dimension's smallest and largest candidate, values of any kind but NaN.

What is drawn is decided by `tasks.draw.choices`, so that a seed, a kept list or Hypothesis makes the same sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.arrays import inputs
from tasks.catalogs.user import input_layouts, kernel_samples, reference_gradients
from tasks.catalogs.user.ops import DECLARED, UserOp
from tasks.draw.choices import DrawnChoices
from tasks.draw.seeds import derive_seed
from tasks.model import WITHOUT_NOISE, get_numpy_dtype, get_wide_dtype, is_inexact_dtype

#: Counts up whenever a seed makes other sizes or values than before.
GENERATOR = 7
#: Most elements of all inputs together; of those that are differenced, each of which costs eleven evaluations: twice as
#: many as the smallest sizes have where these have more already, or no size but the smallest would be drawn.
MOST, MOST_DIFFERENCED = 1 << 18, 64
#: Distribution and theme of the values (`tasks.arrays.inputs`), with how often each is drawn; the simplest first.
KINDS: tuple[tuple[tuple[str, str], int], ...] = (
    (("regular", "regular"), 5),
    (("boundary", "steps"), 1),
    (("boundary", "limits"), 1),
    (("adversarial", "ties"), 1),
    (("adversarial", "offset"), 1),
    (("adversarial", "saturating"), 1),
    (("adversarial", "magnitudes"), 1),
    (("adversarial", "squares"), 2),
)
#: Factors of the values of a theme, with how often each is drawn: an ε beside a sum of squares shows where these are
#: small, one beside its root where they are smaller by far; with both of the steps' (powers of four, halves) something
#: is halfway after any multiplication by a power of two.
SCALES: dict[str, tuple[tuple[float, int], ...]] = {
    "regular": ((1.0, 3), (2.0**-6, 1), (2.0**-11, 1), (2.0**-30, 1)),
    "steps": ((1.0, 1), (0.5, 1)),
}
#: One of so many samples has the largest size of every dimension; one a dimension of size 0, where the reference takes
#: that.
ALL_LARGEST, EMPTY = 8, 24


def derive_kernel_case_seed(seed: int, index: int) -> int:
    """The seed of one case of a run's seed, 64 bits: the same for every op, dtype and check."""
    return derive_seed(seed, f"iter_{index}")


def draw_kernel_sizes(op: UserOp, choose: DrawnChoices, gradient: bool) -> dict[str, int]:
    """A size for every dimension; where the inputs would get too large, the largest are halved. Of an op that promises
    no others, candidates."""

    def promised(name: str, size: int) -> int:
        return max(n for n in op.dims[name] if n <= size) if op.sizes == DECLARED else size

    ends = {name: (min(given), max(given)) for name, given in op.dims.items()}
    # What overflows, or does not fit, does so where all are largest, which sizes that are drawn one by one hardly ever
    # are.
    with choose.span("sizes"), choose.leaning(1, ALL_LARGEST):
        made = {name: promised(name, _draw_kernel_size(choose, *both)) for name, both in ends.items()}
    smallest = kernel_samples.count_kernel_elements(op, {name: low for name, (low, _) in ends.items()}, op.gradient)
    most = max(MOST_DIFFERENCED, min(2 * smallest, reference_gradients.MOST)) if gradient and op.differenced else MOST
    while (
        kernel_samples.count_kernel_elements(op, made) > MOST
        or kernel_samples.count_kernel_elements(op, made, op.gradient) > most
    ):
        larger = [name for name in made if made[name] > ends[name][0]]
        if not larger:
            break
        name = max(larger, key=made.__getitem__)
        made[name] = promised(name, max(ends[name][0], made[name] // 2))
    return made


def _draw_kernel_size(choose: DrawnChoices, low: int, high: int) -> int:
    """Any power of two as often as another; every third time it, the next, or the last before another. The same choices
    whatever the size, in each of which less is smaller: Hypothesis takes fewer choices for the smaller case."""
    powers = range(low.bit_length(), high.bit_length() + 1)
    ends = [(max(low, 1 << bits >> 1), min(high, (1 << bits) - 1)) for bits in powers]
    ninth = 1 + max(last - first for first, last in ends) // 6
    first, last = ends[choose.int(0, len(ends) - 1)]
    place, count = choose.int(0, 9 * ninth - 1) if high > low else 0, last - first + 1
    if count < 12:
        return first + place * count // (9 * ninth)
    if place < 2 * ninth:
        return first + place // ninth
    return last if place >= 8 * ninth else first + max(1, (place - 2 * ninth) * count // (6 * ninth))


def draw_kernel_arrays(op: UserOp, dims: Mapping[str, int], dtype: str, choose: DrawnChoices) -> dict[str, np.ndarray]:
    """The inputs, in the dtypes that the kernel is given: each of one kind of values, most of them regular."""
    mild = op.op_class not in WITHOUT_NOISE
    made = {}
    for name, given in op.inputs.items():
        spec: Mapping[str, Any] = given if isinstance(given, Mapping) else {"shape": given}
        own, shape = spec.get("dtype") or dtype, kernel_samples.evaluate_dim_shape(spec["shape"], dims)
        with choose.span(name):
            if "data" in spec:
                made[name] = np.resize(kernel_samples.read_given_data(spec["data"]), shape).astype(get_numpy_dtype(own))
                continue
            distribution, theme = choose.weighted(KINDS)
            scale = choose.weighted(SCALES[theme]) if theme in SCALES else 1.0
            seed = choose.int(0, 2**32 - 1)
            g = np.random.default_rng(seed)
        what = kernel_samples.describe_kernel_input(name, spec, dims, dtype)
        if what.low is not None and what.high is not None:
            made[name] = kernel_samples.draw_uniform_input(shape, own, what.low, what.high, g)
        else:
            made[name] = inputs.fill_array(shape, own, distribution, g, theme, mild, scale=scale)
            if theme == "steps" and is_inexact_dtype(own):
                made[name] = (made[name].astype(get_wide_dtype(own)) * scale).astype(get_numpy_dtype(own))
        made[name] = kernel_samples.draw_input_of_its_kind(what, made[name], seed)
    return made


def draw_kernel_structure(
    op: UserOp, dims: Mapping[str, int], dtype: str, check: str, choose: DrawnChoices, plain: Mapping[str, np.ndarray]
) -> kernel_samples.StructuredKernelInputs | None:
    """The inputs with one of them in a structure, in half of the cases; None for ordinary ones, the simplest."""
    found = (
        kernel_samples.list_kernel_structures(op, dims, dtype, check, free=True)
        if all(x.size for x in plain.values())
        else []
    )
    if not found:
        return None
    with choose.span("structure"):
        place = choose.int(0, 2 * len(found) - 1)
        if not 0 < place <= len(found):
            return None
        seed = choose.int(0, 2**32 - 1)
    name, which = found[place - 1]
    return kernel_samples.structure_sample_input(op, dims, dtype, plain, name, which, seed)


def draw_empty_kernel_dim(
    op: UserOp, dims: dict[str, int], arrays: dict[str, np.ndarray], choose: DrawnChoices, taken: Callable[..., Any]
) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Sizes and inputs that are drawn, or, at times, the same with one dimension of size 0.

    taken: evaluates the reference on sizes and inputs; where it raises, nothing is said of empty inputs, and these stay
    as they were.
    """
    with choose.span("empty"):
        if not choose.chance(1, EMPTY):
            return dims, arrays
        name = choose.of(sorted(dims) or [""])
    fewer = {**dims, name: 0}
    try:
        shapes = {
            k: kernel_samples.evaluate_dim_shape(x["shape"] if isinstance(x, Mapping) else x, fewer)
            for k, x in op.inputs.items()
        }
        made = {k: np.array(x[tuple(slice(0, n) for n in shapes[k])]) for k, x in arrays.items()}
        if all(x.size for x in made.values()) or any(x.shape != shapes[k] for k, x in made.items()):
            return dims, arrays
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a mean of nothing
            taken(fewer, made)
    except Exception:
        return dims, arrays
    return fewer, made


@dataclass(frozen=True)
class FuzzedKernelCase:
    """Inputs of a case: ordinary ones, how they lie in memory, and the same with one of them in a structure, if that
    was drawn."""

    dims: dict[str, int]
    plain: dict[str, np.ndarray]
    places: input_layouts.Places
    structured: kernel_samples.StructuredKernelInputs | None

    def lay(self, structured: bool) -> input_layouts.Lay:
        """How the inputs lie in memory; elements at one address would hold other values than a structure's."""
        lay: input_layouts.Lay = lambda _: self.places  # noqa: E731
        return (
            input_layouts.exclude_expanded_layouts(lay, self.structured.name) if structured and self.structured else lay
        )


def draw_fuzzed_kernel_case(
    op: UserOp, dtype: str, check: str, choose: DrawnChoices, taken: Callable[..., Any]
) -> FuzzedKernelCase:
    """A case by its choices, in their order: sizes, values, emptiness, layouts, and a structure last, which a case that
    was kept before there were structures does not have. taken: see `draw_empty_kernel_dim`."""
    dims = draw_kernel_sizes(op, choose, check != "forward")
    plain = draw_kernel_arrays(op, dims, dtype, choose)
    if not op.gradient and op.sizes != DECLARED:
        dims, plain = draw_empty_kernel_dim(op, dims, plain, choose, taken)
    places = input_layouts.draw_layouts(op, choose)(plain)
    return FuzzedKernelCase(dims, plain, places, draw_kernel_structure(op, dims, dtype, check, choose, plain))
