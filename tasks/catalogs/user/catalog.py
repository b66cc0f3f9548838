"""The `user` catalog: kernels of a config or of `@farm.op`, each against its own reference in float64."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays import layouts, noise
from tasks.arrays.tree import (
    TensorSpec,
    decode_tree_specs,
    encode_argument_tree,
    make_contiguous_tensor,
    read_tensor_spec,
)
from tasks.catalogs import user_definitions
from tasks.catalogs.base import Catalog, CatalogError, Entry, Failure, Sample
from tasks.catalogs.user import (
    baselines,
    every_input_of_kernels,
    fuzzed_samples,
    input_layouts,
    inside_precision,
    kernel_promises,
    kernel_samples,
    kernel_sessions,
    load_kernels,
    of_numpy,
    of_torch,
    reference_gradients,
    reference_scripts,
    refused_calls,
)
from tasks.catalogs.user import dims as sizes
from tasks.catalogs.user.declaration_schema import read_invariant_key
from tasks.catalogs.user.load_kernels import DeclaredKernel
from tasks.catalogs.user.ops import ANY, BETWEEN, UserOp
from tasks.draw import structure
from tasks.draw.choices import DrawnChoices
from tasks.graphs.cast_roundings import CastRoundings, Read, Round
from tasks.judge import definitions
from tasks.model import (
    DISTRIBUTIONS,
    EXHAUSTIVE,
    FUZZ,
    PART,
    WITHOUT_NOISE,
    Group,
    Leaf,
    OpClass,
    OwnKernel,
    Unsupported,
    errors,
    get_numpy_dtype,
    get_wide_dtype,
    is_complex_dtype,
    is_inexact_dtype,
)

#: Counts up whenever the bytes of a sample, a reference or a noise floor change.
CATALOG_VERSION = "9"
#: Where an op's values may come from; of all inputs, if `every` offers it.
_DISTRIBUTIONS = tuple(d for d in DISTRIBUTIONS if d != EXHAUSTIVE)
#: Draws of the noise floor of the gradient of a script (`noise.TIMES` as many are made): each differences every element
#: anew, at about a millisecond an evaluation.
SCRIPT_DRAWS = 1
#: Elements of inputs larger than any that is declared, where those have fewer.
MOST_BEYOND = 1 << 16
#: Fewest elements of which none can be finite only because the reference or its inputs are wrong.
TELLING = 16

Arrays = Mapping[str, np.ndarray]


class User(Catalog):
    """The kernels that this process was told of (`tasks.catalogs.user.load_kernels`); any number of samples each.

    A kernel is called with its inputs and kwargs by name. The expected output is the reference's, on the inputs
    rounded to their dtype and widened to float64 (complex128), with the noise floor of the same reference.
    """

    name = "user"
    forms = ("torch",)
    exports = ("onnx",)
    lacking = dict.fromkeys(
        ("backward", "double_backward"),
        "no gradient is declared: name its inputs, gradient: [x] (backward=True of the client)",
    )

    def __init__(self) -> None:
        self.imports = (*(["torch"] if importlib.util.find_spec("torch") else []), __name__)

    def version(self) -> str:
        """The catalog's own version, its generator's, NumPy's and torch's, which decide the bytes."""
        own = f"{CATALOG_VERSION}.{fuzzed_samples.GENERATOR}+numpy{importlib.metadata.version('numpy')}"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            own += f"+torch{importlib.metadata.version('torch')}"
        return own

    def list_version(self) -> str:
        return f"{self.version()} {load_kernels.digest_user_listing()}"

    def group_version(self, group: Group) -> str:
        return self._op(group).digest()

    def entries(self) -> list[Entry]:
        """One entry per kernel. Raises CatalogError if one cannot be had or takes other arguments than declared."""
        found = load_kernels.load_user_ops()
        for one in found.values():
            if not one.op.is_task:
                load_kernels.check_kernel_call(one, "kernel")
            load_kernels.check_kernel_call(one, "backward")
            load_kernels.check_kernel_call(one, "baseline")
            if one.script is None:
                load_kernels.check_kernel_call(one, "reference")
            elif not one.script.is_file():
                raise one.mistake("reference", f"no such file {one.script}")
        return [
            Entry(
                f"{self.name}:{name}",
                "",
                tuple(one.op.dtypes),
                list_kernel_checks(one.op),
                DISTRIBUTIONS if every_input_of_kernels.takes_kernel_every_input(one.op) else _DISTRIBUTIONS,
            )
            for name, one in sorted(found.items())
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Samples 0 … group.samples − 1: sizes by `tasks.catalogs.user.kernel_samples.list_sample_sizes`, values of the group's
        distribution.

        Raises ValueError for an op or a dtype that is not declared.
        """
        one = self._op(group)
        if group.dtype not in one.op.dtypes:
            raise ValueError(f"user: {group.op} has no dtype {group.dtype!r}; it has {', '.join(one.op.dtypes)}")
        if group.check == refused_calls.REFUSES:
            return refused_calls.make_refused_samples(one, group, _try_kernel_reference)
        if group.distribution == EXHAUSTIVE:
            return iter([_make_every_input_of_kernel(one, group, draws)])
        if group.distribution == FUZZ:
            return (
                Sample(i) if i in skip else _build_fuzzed_sample(one, group, i, draws) for i in range(group.samples)
            )
        fits: Callable[[Mapping[str, int]], bool] = lambda dims: True  # noqa: E731
        if checks.get_check_or_default(group.check).gradient and one.op.differenced:
            fits = lambda dims: reference_gradients.count_elements(one.op, dims) <= reference_gradients.MOST  # noqa: E731
        sizes = kernel_samples.list_sample_sizes(one.op, group.seed, group.samples, fits)
        if not sizes:
            text = f"its smallest inputs exceed the {reference_gradients.MOST} elements allowed for differences"
            return iter([Sample(-1, failure=Failure.vacuous(text))])
        return (
            Sample(i) if i in skip else _make_kernel_sample(one, dims, group, i, draws) for i, dims in enumerate(sizes)
        )

    def remade(self, group: Group, given: Sample, draws: int) -> Sample:
        one = self._op(group)
        specs = decode_tree_specs(given.kwargs)
        arrays = {name: make_contiguous_tensor(given.arrays[specs[name].id], specs[name]) for name in one.op.inputs}
        places = {name: specs[name] for name in one.op.inputs if specs[name].strides is not None}
        dims = sizes.solve_kernel_dims(one.op, arrays)
        if outside := kernel_samples.explain_values_outside(one.op, dims, arrays):
            raise ValueError(outside)
        return make_sample_of_inputs(one, dims, lambda: arrays, group, given.index, draws, lambda _: places)

    def ordinary(self, group: Group, given: Sample, labels: str, seed: int) -> dict[int, np.ndarray]:
        op, names = self._op(group).op, structure.parse_structure_labels(labels)
        specs = {name: read_tensor_spec(node) for name, node in given.kwargs["v"] if name in op.inputs}
        dims = sizes.solve_kernel_dims(
            op, {name: make_contiguous_tensor(given.arrays[spec.id], spec) for name, spec in specs.items()}
        )
        plain = kernel_samples.make_sample_arrays(
            op, dims, replace(group, distribution="regular", seed=group.seed + seed), 0
        )
        return {spec.id: plain[name] for name, spec in specs.items() if name in names or not names}

    def resized(self, group: Group, given: Sample, beyond: bool, seed: int, draws: int) -> tuple[Sample, bool] | None:
        one, specs = self._op(group), decode_tree_specs(given.kwargs)
        op, least = one.op, sizes.find_smallest_kernel_dims(one.op)
        most = max(
            MOST_BEYOND,
            kernel_samples.count_kernel_elements(op, {name: max(values) for name, values in op.dims.items()}),
        )
        dims = sizes.find_dims_beyond(op) if beyond else sizes.find_kernel_dims_between(op)
        strided = any(spec.strides is not None for spec in specs.values() if isinstance(spec, TensorSpec))
        if not dims or kernel_samples.count_kernel_elements(op, dims) > most or strided:
            return None
        if sizes.evaluate_keyword_sizes(op.kwargs, dims) != sizes.evaluate_keyword_sizes(op.kwargs, least):
            return None
        plain = replace(group, distribution="regular", seed=seed)
        made = make_sample_of_inputs(
            one,
            dims,
            lambda: kernel_samples.make_sample_arrays(op, dims, plain, given.index),
            group,
            given.index,
            draws,
        )
        return made, op.sizes == ANY or (op.sizes == BETWEEN and not beyond)

    def chosen(self, group: Group, choose: DrawnChoices, draws: int) -> Sample:
        return _build_fuzzed_sample(self._op(group), group, 0, draws, choose)

    def call(self, group: Group) -> Callable[..., Any]:
        """The kernel on torch tensors, its promises checked (`tasks.catalogs.user.kernel_promises`). Raises Unsupported where
        its module imports what this environment lacks: another one has prepared it."""
        try:
            one = self._op(group)
            return kernel_promises.guard_kernel_promises(one.op, one.function("kernel"), one.backward)
        except CatalogError as error:
            if not error.lacks or user_definitions.are_kernels_of_submission():
                raise
            raise Unsupported(str(error)) from None

    def own_kernel(self, group: Group) -> OwnKernel:
        one = self._op(group)
        session = functools.partial(kernel_sessions.OpenedKernel, one.session()) if one.op.steps else None
        own = kernel_promises.make_own_kernel(one.op, one.function("kernel"), session)
        if one.op.steps:
            return own
        baseline = functools.partial(baselines.find_kernel_baseline, one, group.dtype)
        return replace(own, baseline=baseline, work=functools.partial(baselines.find_declared_work, one.op))

    def invariants(self, group: Group) -> list[tuple[str, Any]]:
        if (one := load_kernels.find_user_op(group.op_name)) is None:  # a sample that nobody declares
            return []
        told, first = [read_invariant_key(x) for x in one.op.invariants], next(iter(one.op.inputs))
        return [(name, argument or first if name == "shape_preserved" else argument) for name, argument in told]

    def traced(self, group: Group) -> tuple[str, Callable[..., Any]] | None:
        """The reference: what a kernel computes inside shows nobody."""
        one = self._op(group)
        return None if one.script else (one.op.reference_framework, one.function("reference"))

    def _op(self, group: Group) -> DeclaredKernel:
        found = load_kernels.find_user_op(group.op_name)
        if group.catalog != self.name or found is None or group.variant:
            raise ValueError(f"the catalog user has no op {group.label!r}: its kernels are those of the run's config")
        return found


def _make_every_input_of_kernel(one: DeclaredKernel, group: Group, draws: int) -> Sample:
    """The one sample of all values; of a dtype or a check that has none, why."""
    try:
        if group.check != "forward":
            raise ValueError(f"the {group.check} check is not asked of every input of a kernel")
        dims, arrays = every_input_of_kernels.make_every_input_of_kernel(one.op, group.dtype, group.seed)
    except ValueError as error:
        return Sample(-1, failure=Failure.vacuous(str(error)))
    return make_sample_of_inputs(one, dims, lambda: arrays, group, 0, draws)


def list_kernel_checks(op: UserOp) -> tuple[str, ...]:
    """The checks that an op has samples for."""
    gradients = ("backward", "double_backward") if op.gradient else ()
    return ("forward", *gradients, *["steps"] * bool(op.steps), *[refused_calls.REFUSES] * bool(op.refuses))


def _try_kernel_reference(one: DeclaredKernel, arrays: Arrays) -> None:
    """The reference on some inputs. Raises what it raises."""
    exact = {name: x.astype(get_wide_dtype(x.dtype.name)) for name, x in arrays.items()}
    with make_reference_evaluator(one) as evaluate:
        evaluate(exact)


def draw_kernel_case(one: DeclaredKernel, group: Group, choose: DrawnChoices) -> fuzzed_samples.FuzzedKernelCase:
    """The inputs that choices make for a group (`tasks.catalogs.user.fuzzed_samples`)."""

    def try_arrays(dims: Mapping[str, int], arrays: Arrays) -> None:
        _try_kernel_reference(_bind_kernel_dims(one, dims), arrays)

    return fuzzed_samples.draw_fuzzed_kernel_case(one.op, group.dtype, group.check, choose, try_arrays)


def takes_structure(
    one: DeclaredKernel, group: Group, dims: Mapping[str, int], structured: kernel_samples.StructuredKernelInputs
) -> bool:
    """Whether a structure is declared, or the reference takes it."""
    if structured.what.declared:
        return True
    one = _bind_kernel_dims(one, dims)
    try:
        with make_reference_evaluator(one) as evaluate:
            leaves = _compute_kernel_reference(one, evaluate, structured.arrays, dims, group, 0)
    except (Exception, SystemExit):
        return False
    return _is_reference_defined(leaves, OpClass(one.op.op_class), structured)


def _bind_kernel_dims(one: DeclaredKernel, dims: Mapping[str, int]) -> DeclaredKernel:
    """A kernel whose keywords are those of some sizes."""
    return replace(one, op=replace(one.op, kwargs=sizes.evaluate_keyword_sizes(one.op.kwargs, dims)))


def _build_fuzzed_sample(
    one: DeclaredKernel, group: Group, index: int, draws: int, choose: DrawnChoices | None = None
) -> Sample:
    """A sample whose sizes and values both come from its seed, or from given choices."""
    choose = choose or DrawnChoices.from_seed(fuzzed_samples.derive_kernel_case_seed(group.seed, index))
    case = draw_kernel_case(one, group, choose)
    lay = case.lay(structured=case.structured is not None)
    made = _make_structured_of_kernel(one, case.dims, case.plain, case.structured, group, index, draws, lay)
    made.columns["choices"] = choose.taken
    return made


def _make_kernel_sample(one: DeclaredKernel, dims: Mapping[str, int], group: Group, index: int, draws: int) -> Sample:
    try:
        plain = kernel_samples.make_sample_arrays(one.op, dims, group, index)
        structured = kernel_samples.make_structured_inputs(one.op, dims, group, index, plain)
    except Exception as error:
        return Sample(
            index, failure=Failure("invalid", "sample", type(error).__name__, _describe_reference_error(error))
        )
    lay = input_layouts.choose_layouts_in_turn(one.op, group, index)
    if structured:  # elements at one address would hold other values than the structure's
        lay = input_layouts.exclude_expanded_layouts(lay, structured.name)
    made = _make_structured_of_kernel(one, dims, plain, structured, group, index, draws, lay)
    if any(
        0 in (spec.strides or ()) for spec in made.kwargs.values() if isinstance(spec, TensorSpec)
    ) and _are_sample_outputs_constant(made):
        # Rows that are all alike may leave nothing to tell a right result from a constant.
        made = _make_structured_of_kernel(
            one, dims, plain, structured, group, index, draws, input_layouts.exclude_expanded_layouts(lay)
        )
    return made


def _make_structured_of_kernel(
    one: DeclaredKernel,
    dims: Mapping[str, int],
    plain: dict[str, np.ndarray],
    structured: kernel_samples.StructuredKernelInputs | None,
    group: Group,
    index: int,
    draws: int,
    lay: input_layouts.Lay,
) -> Sample:
    """The sample of structured inputs, with the structure in its columns; the ordinary one where there are none, and
    where the reference does not take a structure that nobody declared. Where it does not take a declared one, the
    failure says so."""

    def ordinary() -> Sample:
        return make_sample_of_inputs(one, dims, lambda: plain, group, index, draws, lay)

    if structured is None:
        return ordinary()
    arrays, what = structured.arrays, structured.what
    made = make_sample_of_inputs(one, dims, lambda: arrays, group, index, draws, lay)
    made.columns["structure"] = structured.label
    if not what.declared and (
        made.failure is not None or not _is_reference_defined(made.expected, made.op_class, structured)
    ):
        return ordinary()
    if made.failure is None or made.failure.stage != "reference" or not what.declared:
        return made
    if (usual := ordinary()).failure is not None:
        return usual
    error = f"{made.failure.error_type}: {made.failure.error}" if made.failure.error_type else made.failure.error
    text = (
        f"inputs.{structured.name} is declared as {what.kind}, and the reference fails where it is "
        f"{structure.WORDS[structured.which]} ({error}): mend the reference, or declare fewer values (low, below) or another kind"
    )
    made.failure = replace(made.failure, error=text)
    return made


def _is_reference_defined(
    leaves: Sequence[Leaf], op_class: OpClass, structured: kernel_samples.StructuredKernelInputs
) -> bool:
    """Whether the reference gives numbers for inputs of a structure that was inferred, where it is given numbers, and
    nothing that equal floats leave open."""
    known = [leaf for leaf in leaves if leaf.reference is not None]
    if (
        structured.has_unintended_ties
        and op_class is not OpClass.CHOICE
        and any(not is_inexact_dtype(x.dtype) for x in known)
    ):
        return False
    return all(np.isfinite(np.asarray(x.reference)).all() for x in known if is_inexact_dtype(x.dtype))


def _are_sample_outputs_constant(made: Sample) -> bool:
    """Whether each output is one number, over and over."""
    return all(
        leaf.reference is not None and (leaf.reference == leaf.reference[(0,) * len(leaf.shape)]).all()
        for leaf in made.expected
        if 0 not in leaf.shape
    )


def make_sample_of_inputs(
    one: DeclaredKernel,
    dims: Mapping[str, int],
    inputs: Callable[[], dict[str, np.ndarray]],
    group: Group,
    index: int,
    draws: int,
    lay: input_layouts.Lay = lambda arrays: {},
) -> Sample:
    """The sample of some inputs: what the reference gives for them, with the noise floor; a failure where it gives
    nothing.

    lay: which inputs are not contiguous; those whose strides are declared are not either."""
    one = _bind_kernel_dims(one, dims)
    op, stage = one.op, "sample"
    oracle = "script" if one.script else "function"
    made = Sample(index, op_class=OpClass(op.op_class), definition=op.definition, repeats=op.repeats, oracle=oracle)
    try:
        arrays = inputs()
        places = {**lay(arrays), **input_layouts.build_declared_places(op, arrays, dims)}
        made.arrays, specs, arrays = input_layouts.build_kernel_storages(arrays, places)
        made.kwargs = {**specs, **op.kwargs}
        made.stepped = tuple(specs[name].id for name in kernel_sessions.find_stepped_kernel_inputs(op))
        if said := input_layouts.describe_input_layouts(arrays, places):
            made.columns["layout"] = said
            made.takes = input_layouts.are_layouts_accepted(op, places)
        stage = "reference"
        with make_reference_evaluator(one) as evaluate:
            if checks.get_check_or_default(group.check).gradient:
                outputs = _compute_kernel_reference(one, evaluate, arrays, dims, group, 0)
                few = min(draws, SCRIPT_DRAWS) if one.script else draws
                reference_gradients.fill_gradient_sample(
                    made, _build_gradient_reference(one, group, evaluate), arrays, outputs, group, few
                )
                return made
            # A tolerance takes float32's share of a floor of the inputs' own dtype (`tasks.judge.error_metrics`).
            own = group.dtype in op.tolerances
            within = inside_precision.find_dtype_inside(one, arrays, group.dtype) if draws and not own else ""
            made.expected = _compute_kernel_reference(one, evaluate, arrays, dims, group, draws, within)
            flags = [f"computes_in={within}"] if within else []
            flags += [f"reference_rounds={','.join(evaluate.rounds)}"] if evaluate.rounds else []
            if flags:
                made.columns["flags"] = " ".join(flags)
        if any(spec.declared for spec in places.values()) and any(x.dtype in layouts.WIDTHS for x in made.expected):
            # What it returns may be as wide as what it is given.
            return make_sample_of_inputs(
                one, dims, inputs, group, index, draws, input_layouts.keep_layouts_of_own_width(lay)
            )
        if op.definition:
            right = [np.asarray(leaf.reference) for leaf in made.expected]
            made.derived = definitions.predict_defined_leaves(
                op.definition,
                encode_argument_tree(made.args),
                encode_argument_tree(made.kwargs),
                made.arrays,
                right,
                group.dtype,
            )
        if group.dtype in op.tolerances:
            made.columns["own_tolerance"] = True
    except (Exception, SystemExit) as error:
        text = _describe_reference_error(error)
        if stage == "reference" and op.reference_framework == "numpy" and "numpy.ndarray" in text:
            text += "; it is given NumPy arrays: a function of tensors says reference_framework: torch"
        made.failure = Failure("invalid", stage, type(error).__name__, text)
    return made


def _describe_reference_error(error: BaseException) -> str:
    """An error's text, and where in the user's file it came from."""
    if isinstance(error, reference_scripts.ReferenceError):
        return str(error)
    where = errors.find_error_place(error)
    here = f" ({where})" if where else ""
    if isinstance(error, SystemExit):
        return f"the reference called sys.exit({error.code!r}){here}"
    return errors.find_error_text(error) + here


def _compute_kernel_reference(
    one: DeclaredKernel,
    evaluate_one: ReferenceEvaluator,
    arrays: Arrays,
    dims: Mapping[str, int],
    group: Group,
    draws: int,
    within: str = "",
) -> list[Leaf]:
    """A Leaf per output of the reference, with the noise floor where the op's class has one. within: see
    `inside.find_dtype_inside`."""
    op_class = OpClass(one.op.op_class)
    exact = {name: x.astype(get_wide_dtype(x.dtype.name)) for name, x in arrays.items()}
    eps = {
        name: inside_precision.find_eps_inside(x.dtype.name, within)
        for name, x in arrays.items()
        if is_inexact_dtype(x.dtype.name)
    }
    least = min(eps.values(), default=0.0)
    drawn = draws if eps and op_class not in (*WITHOUT_NOISE, OpClass.RANDOM) else 0

    elements = sum(x.size for x in exact.values())

    def perturb_inputs(draw: int) -> dict[str, np.ndarray]:
        return {
            name: noise.perturb_by_noise(x, eps[name], draw, place) if name in eps else x
            for place, (name, x) in enumerate(exact.items(), 1)
        }

    casts = CastRoundings()
    found = evaluate_one(exact, casts.first)

    def evaluate(draws: Sequence[int]) -> Iterator[list[np.ndarray]]:
        for draw in draws:
            places = itertools.count(len(exact) + 1)
            read: Read = lambda x: noise.perturb_by_noise(x, least, draw, next(places))  # noqa: B023, E731
            outputs = evaluate_one(perturb_inputs(draw), casts.either(), read)
            if [y.shape for y in outputs] != [y.shape for y in found]:
                raise ValueError("the shapes of the reference's outputs depend on the values of its inputs")
            yield outputs

    floor = noise.compute_noise_floor(found, evaluate, op_class, drawn, elements)
    if op_class not in (OpClass.DISCONTINUOUS, OpClass.MODEL):
        if drawn and noise.is_far_below(found, floor, least):
            own = evaluate_one.roundoff(exact, found, casts)
            floor = floor if own is None else [a if d is None else d + a for a, d in zip(own, floor)]
        floor = noise.compute_kernel_floor(found, floor, [exact[name] for name in eps], group.dtype)
    if group.distribution == "own" and one.op.values == "regular" and op_class != OpClass.UNINITIALISED:
        _check_reference_finite(exact, found)
    shared = noise.measure_shared_noise(found, evaluate) if drawn else [None] * len(found)
    return [
        replace(_make_kernel_leaf(one, i, y, delta, dims, group.dtype), shared=share)
        for i, (y, delta, share) in enumerate(zip(found, floor, shared))
    ]


def _build_gradient_reference(
    one: DeclaredKernel, group: Group, evaluate: ReferenceEvaluator
) -> reference_gradients.KernelReference:
    own = _raise_unknown_function if one.script else one.function("reference")
    call = own if one.op.reference_framework == "torch" else of_torch.make_tensor_function(own)
    return reference_gradients.KernelReference(
        one.op, group.check, group.dtype, evaluate, own, call, rounds=evaluate.rounds
    )


@dataclass(frozen=True)
class ReferenceEvaluator:
    """An op's reference in float64. rounds: the dtypes that it has cast to so far and that hold less than what was
    cast. shake: what it returns for some inputs in a draw of float64's own rounding, which casts as it is told; None
    where that cannot be had."""

    evaluate: Callable[[Arrays, Round | None, Read | None], list[np.ndarray]]
    rounds: list[str]
    shake: Callable[[Arrays, Round, int], list[np.ndarray] | None] = lambda *_: None

    def roundoff(self, inputs: Arrays, found: Sequence[np.ndarray], casts: CastRoundings) -> list[np.ndarray] | None:
        """How far float64's own rounding moves each output, of casts as they were; None where nobody can tell."""
        given = {name: x.copy() for name, x in inputs.items()}
        with np.errstate(all="ignore"):
            many = (self.shake(given, casts.again(), draw) for draw in range(noise.ROUNDOFF_DRAWS))
            known = [y for y in many if y is not None and [x.shape for x in y] == [x.shape for x in found]]
            return (
                [np.max([noise.measure_noise_distance(y[i], x) for y in known], axis=0) for i, x in enumerate(found)]
                if known
                else None
            )

    def __call__(self, inputs: Arrays, round: Round | None = None, read: Read | None = None) -> list[np.ndarray]:
        """The outputs; round: what a cast makes, None for the nearest number; read: what is read of that, None for the
        same."""
        return self.evaluate(inputs, round, read)


@contextlib.contextmanager
def make_reference_evaluator(one: DeclaredKernel) -> Iterator[ReferenceEvaluator]:
    """The op's reference: from float64 inputs to its outputs.

    A function is given copies: it may write to them. Raises TypeError for what is no array."""
    rounds: list[str] = []
    with contextlib.ExitStack() as end:
        if one.script:
            script = end.enter_context(
                contextlib.closing(reference_scripts.ReferenceScript(one.script, load_kernels.find_script_deadline_s()))
            )
        else:
            own = one.function("reference")
            in_torch = one.op.reference_framework == "torch"
            make_evaluator = of_torch.make_torch_evaluator if in_torch else of_numpy.make_numpy_evaluator
            reference = make_evaluator(own, rounds)

        def evaluate(inputs: Arrays, round: Round | None, read: Read | None) -> list[np.ndarray]:
            if one.script:
                return [_check_reference_output(x, inputs) for x in script(inputs, one.op.kwargs)]
            with np.errstate(all="ignore"):  # overflow and NaN of a reference are results, not accidents
                result = reference({name: x.copy() for name, x in inputs.items()} | dict(one.op.kwargs), round, read)
            outputs = result if isinstance(result, (tuple, list)) else [result]
            if not outputs:
                raise TypeError("the reference returned no outputs")
            return [_check_reference_output(x, inputs) for x in outputs]

        def shake(inputs: Arrays, round: Round, draw: int) -> list[np.ndarray] | None:
            if one.script:
                return None
            fixed = functools.partial(own, **one.op.kwargs)
            if one.op.reference_framework == "torch":
                return of_torch.shake_torch_reference(fixed, inputs, draw)
            return of_numpy.shake_numpy_reference(fixed, inputs, round, draw)

        yield ReferenceEvaluator(evaluate, rounds, shake)


def _raise_unknown_function(**inputs: Any) -> Any:
    """Stands for a script's function, which nobody has."""
    raise TypeError("it is a script")


def _check_reference_finite(inputs: Arrays, outputs: list[np.ndarray]) -> None:
    """Raise ValueError if the inputs are finite and no element of the floating outputs is: nothing would be
    compared."""
    given, found = ([x for x in many if is_inexact_dtype(x.dtype.name)] for many in (inputs.values(), outputs))
    if (
        sum(y.size for y in found) < TELLING
        or any(np.isfinite(y).any() for y in found)
        or not all(np.isfinite(x).all() for x in given)
    ):
        return
    raise ValueError("the reference is NaN or Inf everywhere on finite inputs: fix it, or give the inputs low and high")


def _check_reference_output(x: Any, inputs: Arrays) -> np.ndarray:
    """An output as float64, complex128, or in its own integer dtype. Raises TypeError for what is no array of numbers,
    and for floating results that are narrower than floating inputs: their rounding would be taken for the kernel's."""
    if not isinstance(x, (np.ndarray, np.generic, bool, int, float, complex)):
        raise TypeError(
            f"the reference returned {'None' if x is None else f'a {type(x).__module__}.{type(x).__qualname__}'}, not a NumPy array"
        )
    array = np.asarray(x, order="C")
    if array.dtype.kind not in "biufc" and not is_inexact_dtype(array.dtype.name):
        raise TypeError(f"the reference returned an array of {array.dtype}, not of numbers")
    if not is_inexact_dtype(array.dtype.name):
        return array
    if array.dtype.name != get_wide_dtype(array.dtype.name) and any(
        is_inexact_dtype(given.dtype.name) for given in inputs.values()
    ):
        raise TypeError(f"the reference returned {array.dtype.name} for float64 inputs: compute in float64")
    return array.astype(get_wide_dtype(array.dtype.name))


def _make_kernel_leaf(
    one: DeclaredKernel, i: int, y: np.ndarray, delta: np.ndarray | None, dims: Mapping[str, int], dtype: str
) -> Leaf:
    """Output ``i`` in the dtype declared for it, else: the dtype under test for floating results, its own for
    others."""
    op = one.op
    declared: Any = op.outputs[i] if i < len(op.outputs) else {}
    declared = declared if isinstance(declared, Mapping) else {"dtype": declared}
    if "shape" in declared and y.shape != (shape := kernel_samples.evaluate_dim_shape(declared["shape"], dims)):
        raise ValueError(f"the reference returned shape {y.shape} for output {i}, declared is {shape}")
    name = declared.get("dtype") or _name_default_class(y.dtype.name, dtype)
    if not is_inexact_dtype(name):
        y = y.astype(get_numpy_dtype(name))
    elif not is_inexact_dtype(y.dtype.name):
        y = y.astype(get_wide_dtype(name))
    tolerance = op.tolerances.get(dtype, {})
    reference = None if op.op_class == OpClass.UNINITIALISED else y
    return Leaf(name, y.shape, reference, delta, tolerance.get("rtol"), tolerance.get("atol"))


def _name_default_class(found: str, dtype: str) -> str:
    if not is_inexact_dtype(found):
        return found
    if not is_inexact_dtype(dtype):
        return "complex64" if is_complex_dtype(found) else "float32"
    if is_complex_dtype(found) == is_complex_dtype(dtype):
        return dtype
    return PART[dtype] if is_complex_dtype(dtype) else {v: k for k, v in PART.items()}.get(dtype, "complex64")
