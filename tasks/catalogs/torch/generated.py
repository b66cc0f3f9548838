"""Generated samples of the torch catalog: an op's own samples with other sizes, values and layouts.

An op's signature is learned from its own samples: which arguments are tensors, which of their sizes are equal, which
range their values keep to. A generated sample takes one of them as its template and follows, by its index, a theme of
values (`tasks.arrays.inputs.choose_array_theme`) and one of PLANS. It is accepted if the op takes it in float64; otherwise the
same plan is tried with fewer of its sizes changed, then with another template.
"""

from __future__ import annotations

import fnmatch
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays import inputs, layouts, torch_tree
from tasks.arrays.layouts import CONTIGUOUS, EXPANDED
from tasks.catalogs.base import CANDIDATES, Failure, Sample
from tasks.catalogs.torch.templates import (
    ELEMENTS,
    IN_LIST,
    Path,
    SampleTemplates,
    Shapes,
    Sizes,
    list_template_tensors,
    rebuild_template,
)
from tasks.judge import op_classes
from tasks.model import Group, OpClass, get_numpy_dtype, is_complex_dtype, is_inexact_dtype, label_op

#: What sample number ``index`` varies beside its values: PLANS[index % 7]. A number prime to that of the themes.
PLANS = ("blocks", "transposed", "broadcast", "long", "offset", "expanded", "degenerate")

#: Sizes around powers of two and the blocks that kernels work in.
BLOCKS = (127, 128, 129, 255, 256, 257, 1025)
ODD = (2, 3, 7, 31, 32, 33)
#: Orders of the matrices that are factored.
ORDERS = (2, 3, 7, 15, 16, 17)
#: Lengths of a long reduction; the last one for every third such sample.
LONG = (10007, 65537, 1000003)
#: Distributions at whose values libraries differ by convention (the sign of NaN, the angle of −0): no second oracle.
UNCONVENTIONAL = ("boundary", "nan")
#: Templates tried for one sample.
TRIES = 3
#: Most elements of the outputs of a sample, and of a sample with a long reduction.
OUTPUTS = 1 << 17
ELEMENTS_LONG = 3 << 20
#: Samples of a group at most: after so many, themes, plans and templates have all met.
MOST = 84
#: Layout of the tensors of a plan, where that is not the contiguous one.
_LAYOUTS = {"transposed": "transposed", "offset": "offset", "expanded": EXPANDED, "long": "steps"}
#: Largest size of a value of whatever may multiply it more than once, or take a step for every unit of it (polygamma).
MODERATE = 1024.0
#: How much of a template is changed, in the order in which it is tried: what the plan bends beside the sizes; the sizes
#: of a lone tensor one by one; all sizes, equal ones alike; one size; one that also stands in lists of integers; none.
LEVELS = ("bent", "lone", "all", "one", "lists", "none")

#: Ops that are given no generated samples (globs over name and variant). jiterator: CUDA only; _segment_reduce: leaves
#: what its offsets do not cover uninitialised, resize_ what was not there before; pinv: an error of its singular
#: vectors, of a size for the whole matrix; mvlgamma: its domain depends on another argument.
OWN_ALONE = "jiterator_* _segment_reduce* resize_* linalg.pinv* pinverse mvlgamma*"
#: Ops whose error at unusual values is that of a step inside which the noise floor, moving inputs alone, does not see:
#: coordinates of a grid, differences that telescope, recurrences that grow and cancel, powers of a matrix, long
#: products (which overflow or not with the order of their factors), transforms (whose error at every output is that of
#: the whole); and the rank of a matrix, which is counted against a tolerance made of the dtype's ε. What a number
#: beyond the range of an integer becomes is not defined (`tasks.catalogs.torch.every_input.NOT`).
REGULAR_ALONE = """
prod cumprod masked.prod masked.cumprod *.prod fft.* stft istft nn.functional.hinge_embedding_loss
grid_sampler_* nn.functional.grid_sample trapz trapezoid cumulative_trapezoid special.*_polynomial_* linalg.matrix_power*
linalg.matrix_rank* byte char short int long
"""
#: Ops whose result follows the layout of their argument: they read its memory by strides of their own, or share it.
OF_MEMORY = "as_strided* view view_as"
#: Ops with an argument that has to be sorted.
SORTED = ("searchsorted", "bucketize")


def list_generated_distributions(op: str, variant: str, random: bool) -> tuple[str, ...]:
    """The distributions that can be generated for an op: for random and uninitialised ones, its own alone.

    Factorisations and solvers get well-conditioned values alone: what they do beyond that, no two libraries share. So
    do the ops of REGULAR_ALONE.
    """
    name = op.partition(":")[2]
    if (
        random
        or op_classes.find_op_class(op, variant).op_class is OpClass.UNINITIALISED
        or _matches_op_pattern(OWN_ALONE, name, variant)
    ):
        return ("own",)
    if _does_op_factorise(op, variant) or _matches_op_pattern(REGULAR_ALONE, name, variant):
        return ("own", "regular")
    return ("own", *inputs.THEMES)


def _matches_op_pattern(patterns: str, name: str, variant: str) -> bool:
    called = label_op(name, variant)
    return any(fnmatch.fnmatchcase(called, p) for p in patterns.split())


#: Beginnings of the names of factorisations, among the ops that are defined up to a choice.
_FACTORISATIONS = ("linalg.", "svd", "qr", "lu", "geqrf", "symeig", "lobpcg")


def _does_op_factorise(op: str, variant: str) -> bool:
    op_class = op_classes.find_op_class(op, variant).op_class
    return op_class is OpClass.LINEAR_ALGEBRA or (
        op_class is OpClass.CHOICE and op.partition(":")[2].startswith(_FACTORISATIONS)
    )


def samples(
    group: Group,
    own: list[Any],
    make: Callable[[int, Any], Sample],
    info: Any,
    skip: Collection[int] = (),
    first: int = 0,
) -> Iterator[Sample]:
    """Up to CANDIDATES × group.samples generated samples, made by ``make`` from an index and a source (input, args,
    kwargs).

    own: the op's own samples; info: its OpInfo; skip: places, counted from ``first``,
    whose sample is yielded bare. A single vacuous sample says why where nothing is accepted.
    """
    if checks.get_check_or_default(group.check).gradient and group.distribution == "nan":
        yield Sample(-1, failure=Failure.vacuous("what a gradient is where an input is NaN or Inf, nothing defines"))
        return
    if (
        not checks.get_check_or_default(group.check).gradient
        and group.check != "forward"
        and group.distribution != "regular"
    ):
        yield Sample(-1, failure=Failure.vacuous(f"the check {group.check} is asked on own and regular values"))
        return
    found = SampleTemplates(group, own, info)
    for index in range(min(CANDIDATES * group.samples, MOST)):
        if index + first in skip:
            yield Sample(index)
            continue
        made, refused = _find_accepted_sample(group, index, found, make)
        if made is None:
            yield Sample(index, failure=Failure.vacuous(f"no generated sample is accepted: {refused}"))
            return
        yield made


def _find_accepted_sample(
    group: Group, index: int, found: SampleTemplates, make: Callable[[int, Any], Sample]
) -> tuple[Sample | None, str]:
    """The first candidate that the op accepts, or None and why the last one was refused."""
    if not found.list:
        return None, found.reason
    reason = ""
    for attempt in range(TRIES):
        template = found.of(index, attempt)
        seen: list[Any] = []
        for level in LEVELS:
            candidate = _CandidateSample(group, index, attempt, template, found)
            sizes, shapes = candidate.shapes(level)
            if (sizes if level == "lists" else shapes) in seen:
                continue
            seen += [shapes] if level != "lists" else []
            try:
                source = candidate.source(shapes, sizes if level == "lists" else {})
            except (ValueError, RuntimeError, TypeError) as error:
                reason = str(error)
                continue
            if too_large := _explain_too_large(found.call, source):
                reason = too_large
                continue
            sample = make(index, source)
            if sample.failure is None:
                if group.distribution in UNCONVENTIONAL:
                    sample.others = []
                return sample, ""
            reason = sample.failure.error
    return None, " ".join(reason.split())[:300]


def _explain_too_large(call: Callable[..., Any], source: Any) -> str:
    """Why a sample's outputs would be too large to keep, "" if they are not; sizes come from the meta device."""
    import torch

    def meta(path: Path, x: Any) -> Any:
        return x.to("meta") if isinstance(x, torch.Tensor) else x

    elements = sum(x.numel() for x in list_template_tensors(source).values())
    try:
        shadow = rebuild_template(source, meta)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = torch_tree.list_output_tensors(call(shadow.input, *shadow.args, **shadow.kwargs))
        size = sum(x.numel() for x in outputs if isinstance(x, torch.Tensor))
    except Exception:
        size = elements**2 if elements < ELEMENTS_LONG else 0  # what joins every element with every other one
        size = size if size > (OUTPUTS << 4) else 0
    return f"its outputs would have {size} elements" if size > OUTPUTS else ""


@dataclass
class _CandidateSample:
    """One attempt at a sample: a template with a generator of its own."""

    group: Group
    index: int
    attempt: int
    template: Any
    found: SampleTemplates

    def __post_init__(self) -> None:
        import torch

        group = self.group
        name = f"{group.label}/{group.dtype}/{group.distribution}"
        self.seed = (zlib.crc32(name.encode()), self.index, group.seed % 2**64, self.attempt)
        self.rng = np.random.default_rng(self.seed)
        self.plan = PLANS[self.index % len(PLANS)]
        self.theme = inputs.choose_array_theme(group.distribution, self.index)
        self.op_class = op_classes.find_op_class(group.op, group.variant, self.template.kwargs, group.dtype).op_class
        self.factorises = _does_op_factorise(group.op, group.variant)
        self.tensors = list_template_tensors(self.template)
        dtype = getattr(torch, group.dtype)
        self.values = [p for p, x in self.tensors.items() if x.dtype == dtype]
        #: Index tensors stay as they are, and so do the sizes they share with others.
        self.fixed = {
            p
            for p, x in self.tensors.items()
            if p not in self.values and not x.is_floating_point() and x.dtype != torch.bool
        }

    def shapes(self, level: str) -> tuple[Sizes, Shapes]:
        """(sizes that others stand for, shape of every tensor) of a level of LEVELS. 1 stays 1: it may broadcast."""
        own = {p: tuple(x.shape) for p, x in self.tensors.items()}
        if level == "lone":
            return {}, own | self._lone()
        sizes = self._sizes(level)
        shapes = {p: tuple(sizes.get(n, n) for n in shape) for p, shape in own.items()}
        return sizes, self._bent(shapes) if level == "bent" else shapes

    def _lone(self) -> Shapes:
        """New sizes, each by itself, for the only tensor of a template."""
        if len(self.tensors) != 1 or self.plan == "degenerate":
            return {}
        [(path, x)] = self.tensors.items()
        places = [k for k, n in enumerate(x.shape) if n > 1]
        if not places or _classify_sample_matrix(x) or self.factorises:
            return {}
        chosen = places[-1] if self.rng.random() < 0.5 else places[int(self.rng.integers(len(places)))]
        shape = [int(self.rng.choice(ODD)) if n > 1 else n for n in x.shape]
        bound, wanted = self._limit_sizes()
        for size in wanted:
            shape[chosen] = size
            if np.prod(shape, dtype=np.float64) <= bound:
                return {path: tuple(shape)}
        return {}

    def _limit_sizes(self) -> tuple[int, list[int]]:
        """(most elements, sizes in the order in which they are tried)."""
        if self.factorises:
            return ELEMENTS, [
                int(n) for n in self.rng.permutation(ORDERS)
            ]  # the error grows with the order, the noise floor does not
        rest = sorted(BLOCKS, reverse=True) + sorted(ODD, reverse=True)
        if self.plan == "long" and self.op_class in (OpClass.REDUCTION, OpClass.NORMALISATION, OpClass.COMPOSITE):
            turn = self.index // len(PLANS)
            longest = [LONG[-1]] if turn % 3 == 2 and self.op_class is OpClass.REDUCTION else []
            return ELEMENTS_LONG if longest else ELEMENTS_LONG >> 3, [*longest, LONG[1 - turn % 2], LONG[0], *rest]
        return ELEMENTS, [int(n) for n in self.rng.permutation(BLOCKS)] + rest

    def _sizes(self, level: str) -> Sizes:
        frozen = {n for p in self.fixed for n in self.tensors[p].shape}
        old = list(
            dict.fromkeys(n for p in self.values for n in reversed(self.tensors[p].shape) if n > 1 and n not in frozen)
        )
        if level == "none" or not old:
            return {}
        every = level in ("bent", "all")
        chosen = old[0] if every or self.rng.random() < 0.5 else old[int(self.rng.integers(len(old)))]
        if self.plan == "degenerate":
            return {chosen: 0} if self._empty and level != "none" else {}
        made = (
            {n: int(self.rng.choice(ORDERS if self.factorises else ODD)) for n in old if n != chosen} if every else {}
        )
        bound, wanted = self._limit_sizes()
        for size in wanted:
            if self._elements(made | {chosen: size}) <= bound:
                return made | {chosen: size}
        return {}

    @property
    def _empty(self) -> bool:
        return self.index // len(PLANS) % 2 == 0

    def _elements(self, sizes: Sizes) -> float:
        return float(sum(np.prod([sizes.get(n, n) for n in x.shape], dtype=np.float64) for x in self.tensors.values()))

    def _bent(self, shapes: Shapes) -> Shapes:
        """Shapes that broadcast against each other, or have no dimensions, where the plan says so."""
        shapes = dict(shapes)
        if self.plan == "degenerate" and not self._empty:
            return shapes | {path: () for path in self.values}
        if self.plan != "broadcast" or not self.found.broadcasts:
            return shapes
        for first, second in zip(self.values, self.values[1:]):
            shape = shapes[first]
            if not shape or shape != shapes[second]:
                continue
            at = int(self.rng.integers(len(shape)))
            shapes[second] = tuple(1 if k == at else n for k, n in enumerate(shape))
            if at == 0 and len(shape) > 1 and self.rng.random() < 0.5:
                shapes[second] = shape[1:]
            if len(shape) > 1:
                shapes[first] = tuple(1 if k == (at + 1) % len(shape) else n for k, n in enumerate(shape))
            break
        return shapes

    def source(self, shapes: Shapes, listed: Sizes) -> Any:
        """The template with new shapes, values and layouts; ``listed``: sizes to put into lists of integers as well."""
        import torch

        planted = self.values[self.index // 4 % len(self.values)] if self.group.distribution == "nan" else None

        def fill_leaf(path: Path, x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                if path in self.fixed:
                    return x.detach()
                if path not in self.values:
                    return self._other(x, shapes[path])
                quiet = planted not in (None, path)
                theme, distribution = ("regular", "regular") if quiet else (self.theme, self.group.distribution)
                made = self._laid_out(self._fill_tensor(path, x, shapes[path], distribution, theme), path)
                return made.detach().requires_grad_(x.requires_grad)
            return listed.get(x, x) if type(x) is int and str(path[-1]).startswith(IN_LIST) else x

        return rebuild_template(self.template, fill_leaf)

    def _other(self, x: Any, shape: tuple[int, ...]) -> Any:
        """A tensor of another dtype than that under test: masks and floating ones."""
        import torch

        if tuple(x.shape) == shape:
            return x.detach()
        if x.dtype == torch.bool:
            return torch.from_numpy(np.asarray(self.rng.random(shape) < 0.75))
        return torch_tree.tensor_from_numpy(
            inputs.fill_array(shape, torch_tree.name_torch_dtype(x.dtype), "regular", self.rng)
        )

    def _fill_tensor(self, path: Path, x: Any, shape: tuple[int, ...], distribution: str, theme: str) -> Any:
        dtype, seen = self.group.dtype, self.found.ranges[path]
        kind = _classify_sample_matrix(x)
        if self.factorises and not kind and len(shape) > 1 and shape[-1] == shape[-2] and shape[-1] > 1:
            kind = "regular"
        if kind:
            return _make_matrix_like(kind, shape, dtype, self.rng)
        simple = self.op_class in (OpClass.EXACT, OpClass.ELEMENTARY)
        if seen.choices and is_inexact_dtype(dtype) and not is_complex_dtype(dtype):
            return torch_tree.tensor_from_numpy(
                np.asarray(self.rng.choice(seen.choices, shape)).astype(get_numpy_dtype(dtype))
            )
        values = inputs.fill_array(shape, dtype, distribution, self.rng, theme, mild=not simple, most=self._most())
        if not simple or distribution == "regular" or not is_inexact_dtype(dtype):
            values = seen.fold(values, dtype)
        if self.group.op_name in SORTED and shape and _is_tensor_sorted(x):
            values = np.sort(values, axis=-1)
        return torch_tree.tensor_from_numpy(np.ascontiguousarray(values).reshape(shape))

    def _most(self) -> float:
        """Largest size of a value (`most` of `inputs.fill`): nothing inside the op is to overflow or to take for
        ever."""
        summed = (
            self.op_class in (OpClass.REDUCTION, OpClass.NORMALISATION)
            and "norm" not in self.group.op_name.split(".")[-1]
        )
        return np.inf if summed and self.group.check == "forward" else MODERATE

    def _laid_out(self, x: Any, path: Path) -> Any:
        layout = _LAYOUTS.get(self.plan, CONTIGUOUS)
        if _matches_op_pattern(OF_MEMORY, self.group.op_name, self.group.variant):
            layout = CONTIGUOUS
        if layout == "offset" and x.dim() in (4, 5):
            layout = "channels_last"
        if layout == EXPANDED and path != self.values[0]:
            layout = "steps"
        return lay_out_generated_tensor(x, layout)


def lay_out_generated_tensor(x: Any, layout: str) -> Any:
    """The contiguous tensor ``x`` in another layout (`tasks.arrays.layouts`); as it is where its shape has none
    such."""
    storage, spec = layouts.lay_out_array(torch_tree.tensor_to_numpy(x), layout)
    if spec.strides is None:
        return x
    return torch_tree.tensor_from_numpy(storage).as_strided(spec.shape, spec.strides, spec.offset)


def _is_tensor_sorted(x: Any) -> bool:
    return x.dim() > 0 and x.shape[-1] > 1 and bool((x.diff() >= 0).all())


def _classify_sample_matrix(x: Any) -> str:
    """What kind of square matrix a floating tensor holds, where it is a special one: "positive", "symmetric", "lower",
    "upper"."""
    import torch

    if (
        x.dim() < 2
        or x.shape[-1] != x.shape[-2]
        or x.shape[-1] < 2
        or not x.numel()
        or not (x.is_floating_point() or x.is_complex())
    ):
        return ""
    wide = x.detach().to(torch.complex128 if x.is_complex() else torch.float64)
    if not torch.isfinite(wide.abs()).all():
        return ""
    if torch.allclose(wide, wide.mH, rtol=1e-2, atol=1e-6):
        return "positive" if bool((torch.linalg.eigvalsh(wide) > 0).all()) else "symmetric"
    if bool((wide.triu(1) == 0).all()):
        return "lower"
    return "upper" if bool((wide.tril(-1) == 0).all()) else ""


def _make_matrix_like(kind: str, shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    """A well-conditioned matrix, or a batch of them, of a special kind. Raises ValueError where ``shape`` has no
    squares."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError("a square matrix was made oblong")
    n = shape[-1]
    made = rng.standard_normal(shape)
    if is_complex_dtype(dtype):
        made = made + 1j * rng.standard_normal(shape)
    if kind == "positive":
        made = made @ np.conj(np.swapaxes(made, -1, -2)) / max(n, 1) + np.eye(n)
    elif kind == "symmetric":
        made = (made + np.conj(np.swapaxes(made, -1, -2))) / 2
    elif kind == "regular":
        made = made / (2 * n**0.5) + np.eye(n)
    else:
        made = (np.tril if kind == "lower" else np.triu)(made / max(n, 1) ** 0.5)
        made = made + np.eye(n) * (1.5 - np.diagonal(made, axis1=-2, axis2=-1)[..., None])
    return torch_tree.tensor_from_numpy(np.ascontiguousarray(made.astype(get_numpy_dtype(dtype))))
