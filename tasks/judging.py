"""What the outputs of a case are worth. `STEPS` are the judge's steps in the order in which they run; `judge_outputs` runs them.

A step takes the case and the judgement so far, and returns the judgement that goes on to the next. The table in
docs/verdict.md is made of these lists and of the docstrings of the steps.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks import checks, diagnose
from tasks.arrays.contiguous import pack_strided_arrays
from tasks.arrays.tree import TensorSpec, decode_tree_specs, make_contiguous_tensor
from tasks.checks import Observation
from tasks.judge import (
    coarser_precision,
    error_profile,
    fingerprint,
    flushing,
    invariants,
    properties,
    training_phases,
    training_step,
    zero_signs,
)
from tasks.judge.error_metrics import (
    USUAL_UNITS,
    Metrics,
    check_output_metadata,
    compare_outputs,
    compare_precision_eps,
    does_error_lean,
    find_leaf_tolerance,
    is_precision_coarser,
)
from tasks.judge.model_meaning import interpret_meaning
from tasks.judge.policy import Policy, has_stored_oracle_only, judge_by_policy
from tasks.judge.worst_element import count_furthest_elements, describe_worst_element
from tasks.model import (
    EPS,
    EXHAUSTIVE,
    WITHOUT_NOISE,
    Flushes,
    Form,
    Group,
    Leaf,
    OpClass,
    RuntimeInfo,
    Status,
    flags,
    is_complex_dtype,
    is_inexact_dtype,
)
from tasks.model.dtypes import format_number, get_numpy_dtype, name_numpy_dtype
from tasks.model.kind import (
    CAUSE_ARITHMETIC,
    CAUSE_CAST,
    CAUSE_KEPT,
    KIND_ACCUMULATOR,
    KIND_ARITHMETIC,
    KIND_BIASED,
    KIND_CAST,
    KIND_INVARIANT,
    KIND_KEPT,
    KIND_ORACLE,
    KIND_PROPERTY,
    KIND_TOLERANCE,
)
from tasks.model.leaf import floor_of_kept, reorder_leaf_ties
from tasks.model.row import has_own_tolerance
from tasks.model.stored_at_once import store_at_once
from tasks.passport import ARITHMETIC, SumReading
from tasks.passport.explain_sum import UNSOUND, SumExplanation
from tasks.passport.locate_sum import LocatedSum
from tasks.passport.own_arithmetic import (
    PROVED,
    HeldSum,
    OwnArithmetic,
    hold_to_bounds,
    hold_to_sum_reading,
    prove_own_sum,
    read_own_sum_again,
)
from tasks.prepare.cases import PreparedSample
from tasks.prepare.record import OracleRecord, SampleRecord
from tasks.training.phases import ALONE, CLIPPED, FLAG_NORM, PROBE, SHARES
from tasks.training.recipe import TrainingRecipe

#: Of a derivative that is off by no more than that.
KEPT = (
    "computed from the rounded result of the forward pass, which has lost the digits (1 - y² of a tanh next to 1); computed from the "
    "input it keeps them (kept: true declares that it is meant)"
)
#: The step of a case that has no others.
_WHOLE = Observation("")
#: Of a device that takes none of these for zero.
_NO_FLUSHES = Flushes()
#: Dtypes of quantised results, whose numbers are steps of a scale.
_QUANTISED = frozenset({"int8", "uint8", "int4", "uint4"})
#: What the numbers of an output are when they are off, before anything explains them.
_UNEXPLAINED = ("numbers", "nonfinite", KIND_TOLERANCE)


@store_at_once
@dataclass(frozen=True)
class Judgement:
    """A verdict on the outputs of a case, as far as the steps have come."""

    #: How far the outputs are from what is expected.
    metrics: Metrics
    status: Status
    #: In what way they are wrong, imprecise or invalid (`tasks.model.kind`); "" of what passes.
    kind: str
    #: Columns of the row that come with it, other than the metrics.
    columns: Mapping[str, Any] = field(default_factory=dict)
    #: Whether no later step is asked.
    final: bool = False

    def note(self, columns: Mapping[str, Any]) -> Judgement:
        """With further columns, in place of those of the same name."""
        if not columns:
            return self
        # Made anew: `replace` takes three times as long, and every case comes here.
        return Judgement(self.metrics, self.status, self.kind, {**self.columns, **columns}, self.final)

    def flag(self, **values: Any) -> Judgement:
        """With further flags beside those that it has (`tasks.model.flags.join_row_flags`)."""
        before = self.columns.get("flags") or ""
        after = flags.join_row_flags(before, **values)
        return self if after == before else self.note({"flags": after})

    def rule(
        self, status: Status, kind: str, columns: Mapping[str, Any] | None = None, final: bool = False
    ) -> Judgement:
        """With another verdict, and further columns."""
        return Judgement(self.metrics, status, kind, {**self.columns, **(columns or {})}, final)

    def with_metrics(self, metrics: Metrics) -> Judgement:
        """With other metrics."""
        return Judgement(metrics, self.status, self.kind, self.columns, self.final)

    @property
    def fails(self) -> bool:
        """Whether the outputs are wrong or imprecise."""
        return self.status in (Status.WRONG, Status.IMPRECISE)

    @property
    def has_wrong_numbers(self) -> bool:
        """Whether numbers are off and no step has said yet in what way."""
        return self.fails and self.kind in _UNEXPLAINED


#: Where the steps begin; the first of them measures.
_UNMEASURED = Judgement(Metrics(), Status.PASS, "")


@store_at_once
@dataclass(frozen=True)
class JudgedCase:
    """The outputs that a backend returned for a prepared sample, and what they are held to."""

    sample: PreparedSample
    #: What is known of the sample.
    record: SampleRecord
    group: Group
    op_class: OpClass
    policy: Policy
    info: RuntimeInfo
    #: What the backend was given; None where nobody knows.
    form: Form | None
    #: The step of a check that returned the outputs, which tells the expected ones that they are held to.
    step: Observation
    #: What the device computes in, where that is coarser than the dtype: the coarser of what it declares and what the check asks for.
    precision: str
    #: One leaf per output.
    expected: list[Leaf]
    #: The outputs of every run, as they were returned.
    returned: list[list[np.ndarray]]
    #: The same as they are measured, after `READING`.
    runs: list[list[np.ndarray]]
    #: Dtypes whose subnormal numbers the device takes for zero.
    flushes: Flushes
    #: Measures that for further dtypes; None where the device cannot be asked.
    measure_flushes: Callable[[Sequence[str]], Flushes] | None = None
    #: How the backend adds, by its passport; None where that is not known.
    own: OwnArithmetic | None = None

    @property
    def part(self) -> slice:
        """Which of the sample's expected outputs these are."""
        return slice(*self.step.part)

    @property
    def outputs(self) -> list[np.ndarray]:
        """Those of the first run."""
        return self.runs[0]

    @property
    def dtypes(self) -> list[str]:
        return [name_numpy_dtype(x.dtype) for x in self.outputs]

    @property
    def wide(self) -> list[np.ndarray]:
        """The outputs; real floats as float64 where they are looked at several times."""
        return self.outputs if not self.record.others or self.record.definition else self._wide

    @functools.cached_property
    def _wide(self) -> list[np.ndarray]:
        return [x.astype(np.float64) if _is_real_float(d) else x for x, d in zip(self.outputs, self.dtypes)]

    @property
    def limit(self) -> float | None:
        """The policy's."""
        return self.policy.limit_value(self.group.label, self.op_class.value, self.group.dtype, self.precision)

    @property
    def elements(self) -> np.ndarray | None:
        """The input of an op of one tensor each of whose results is of the element in its place; None of any other."""
        return self._elements if self.group.distribution == EXHAUSTIVE else None

    @functools.cached_property
    def _elements(self) -> np.ndarray | None:
        with contextlib.suppress(ValueError):
            found = self.sample.tensors()
            if found and _is_real_float(name_numpy_dtype(found[0].dtype)):
                return found[0]
        return None

    def verdict(self, metrics: Metrics) -> tuple[Status, str]:
        """(status, kind) of some metrics by the policy."""
        group, oracle, own_tolerance = self.group, self.record.oracle, has_own_tolerance(self.record.columns)
        case = group.label, self.op_class.value, group.dtype, oracle, self.precision, own_tolerance
        return judge_by_policy(metrics, self.policy, *case)


Step = Callable[[JudgedCase, Judgement], Judgement]


# --- entry points -------------------------------------------------------------------------------------------------


def judge_outputs(
    sample: PreparedSample,
    runs: Sequence[Sequence[Any]],
    policy: Policy,
    info: RuntimeInfo,
    form: Form | None = None,
    step: Observation = _WHOLE,
    measure_flushes: Callable[[Sequence[str]], Flushes] | None = None,
    own: OwnArithmetic | None = None,
) -> Judgement:
    """The judgement of the flat outputs of one or several runs of a case under a policy.

    form: what the backend was given; step: the one of a check that these are of; measure_flushes: what the device takes
    for zero in some dtypes, asked where it may matter; own: how the backend adds, where its passport is known.
    """
    precision = _choose_judged_precision(sample, info)
    expected = step.expected(sample.expected(of_products=info.of_products))
    paired = form.paired if form else ()
    returned = [[_join_complex_outputs(x) if i in paired else np.asarray(x) for i, x in enumerate(run)] for run in runs]
    flushes = Flushes(info.flushes) if info.flushes else _NO_FLUSHES
    case = JudgedCase(
        sample,
        sample.record,
        sample.owner.group,
        sample.op_class,
        policy,
        info,
        form,
        step,
        precision,
        expected,
        returned,
        returned,
        flushes,
        measure_flushes,
        own,
    )
    found = _judge_case_in_steps(case)
    if measure_flushes is not None and found.fails:
        found = _run_judging_steps(SECOND_LOOK, case, found)
    return _run_judging_steps(LAST_LOOK, case, found) if sample.owner.invariants else found


def judge_steps(
    sample: PreparedSample, stages: Sequence[Observation], policy: Policy, info: RuntimeInfo, form: Form | None = None
) -> list[Judgement]:
    """The judgement of what each step of a check returned, by itself. Digits lost on values that the check has arranged
    are no fault."""
    found = [x.ruled or judge_outputs(sample, [list(x.outputs)], policy, info, form, x) for x in stages]
    return [
        made.rule(Status.PASS, "") if x.arranged and made.status is Status.IMPRECISE else made
        for x, made in zip(stages, found)
    ]


def choose_worst_step(stages: Sequence[Observation], found: Sequence[Judgement]) -> Judgement:
    """Of the judgements of the steps of a check that of the first of the worst, which is to blame if another is better.

    Where all fare alike it is that of the one furthest off, and none of them is to blame. Steps of one name are runs of
    the same that gave other bytes: where not all of them fail, or a step that is better is as unsteady, the case is
    nondeterministic and no step is to blame.
    """
    order = [x.status.facts.severity for x in found]
    worst = min(order)
    if worst == max(order):
        return max(found, key=lambda x: x.metrics.error_units or 0.0)
    place = order.index(worst)
    first = found[place]
    blamed = stages[place].name
    sound = list(dict.fromkeys(x.name for x, rank in zip(stages, order) if rank > worst))
    said = f"{first.metrics.detail}: " if first.metrics.detail else ""
    runs = Counter(x.name for x in stages)
    unsteady = [name for name in dict.fromkeys([blamed, *sound]) if runs[name] > 1]
    if blamed in sound or (blamed in unsteady and len(unsteady) > 1):
        error = f"{said}{blamed} is {first.status} in one run; other runs of {', '.join(unsteady)} give other bytes"
        return first.rule(first.status, "nondeterministic", {"error": error})
    if stages[place].row is not None:
        said = f"{said}first {first.status} at step {place} of {len(stages)}"
        return first.note({"culprit": blamed, "error": said})
    return first.note({"culprit": blamed, "error": f"{said}{blamed} is {first.status}, {', '.join(sound)} not"})


def predict_derived_leaves(sample: PreparedSample, precision: str) -> list[Leaf]:
    """What a sample's definition is to make of right outputs in a declared precision: what is derived is float64,
    whatever the dtype under test, so that a coarser one is told by its noise."""
    times = max(compare_precision_eps(precision, sample.owner.group.dtype), 1.0)
    return [x if x.noise is None else replace(x, noise=x.noise * times) for x in sample.derived()]


def _judge_case_in_steps(case: JudgedCase) -> Judgement:
    if [leaf for leaf in case.expected if leaf.ties is not None]:
        case = settle_tied_outputs(case)
    if case.flushes is not _NO_FLUSHES:
        case = restore_flushed_outputs(case)
    if case.record.phases:
        return _run_judging_steps(OF_TRAINING, case, _UNMEASURED)
    traits = tuple([bool(has_it(case)) for has_it, _ in _OF_TRAITS])
    return _run_judging_steps(_choose_judge_steps(traits), case, _UNMEASURED)


def _run_judging_steps(steps: Iterable[Step], case: JudgedCase, found: Judgement) -> Judgement:
    """The judgement after the last of some steps, or after the first that is final."""
    if found.final:
        found = replace(found, final=False)
    for step in steps:
        if step in _OF_FAILURES and not found.fails:
            continue
        found = step(case, found)
        if found.final:
            break
    return found


# --- reading the outputs ------------------------------------------------------------------------------------------


def settle_tied_outputs(case: JudgedCase) -> JudgedCase:
    """Put outputs whose equal elements may have changed places (which of equal inputs is chosen is nobody's promise) in
    the reference's order, if that is nearer to it: sums of several choices may be off by a rounding, and then stand in
    another order."""

    def settle(actual: list[np.ndarray]) -> list[np.ndarray]:
        if len(actual) != len(case.expected):
            return actual
        both = (actual, [reorder_leaf_ties(x, leaf) for x, leaf in zip(actual, case.expected)])
        return min(
            both, key=lambda x: compare_outputs(x, case.expected, case.op_class, case.precision).error_units or 0.0
        )

    return replace(case, runs=[settle(actual) for actual in case.runs])


def restore_flushed_outputs(case: JudgedCase) -> JudgedCase:
    """If the device takes subnormal numbers for zero, replace each such zero by the number that it stands for."""
    given = case.elements if case.flushes.inputs else None
    return replace(
        case, runs=[flushing.restore_flushed_results(x, case.expected, case.flushes, given) for x in case.runs]
    )


#: What is done before the first step, where a case has ties and its device flushes.
READING: tuple[Callable[[JudgedCase], JudgedCase], ...] = (settle_tied_outputs, restore_flushed_outputs)


# --- the steps ----------------------------------------------------------------------------------------------------


def measure_error_of_outputs(case: JudgedCase, found: Judgement) -> Judgement:
    """Compare the outputs with what is expected: their count, shapes and dtypes first, then error units and ulps. A
    result that is defined up to a choice is measured by its definition. Zeros have their signs checked where a forward
    op defines them."""
    if not case.record.definition:
        outputs = case.wide
        metrics = compare_outputs(outputs, case.expected, case.op_class, case.precision, case.dtypes)
        if case.group.check == checks.FORWARD:
            metrics.zero_signs = zero_signs.count_wrong_zero_signs(case.group.op, outputs, case.expected)
        return found.with_metrics(metrics)
    metrics = Metrics()
    check_output_metadata(case.wide, case.expected, metrics, case.dtypes)
    if not metrics.kind:
        from tasks.judge import definitions

        record = case.record
        made = definitions.derive_by_definition(
            case.record.definition, record.args, record.kwargs, case.sample.inputs(), case.wide
        )
        metrics = compare_outputs(made, predict_derived_leaves(case.sample, case.precision))
    return found.with_metrics(metrics)


def interpret_model_outputs(case: JudgedCase, found: Judgement) -> Judgement:
    """Compare the decisions of a whole model (classes, probabilities, masks) with the reference's, one by one."""
    interpret_meaning(found.metrics, case.outputs, case.expected, case.op_class, case.precision, case.limit)
    return found


def compare_repeated_outputs(case: JudgedCase, found: Judgement) -> Judgement:
    """If the case ran several times, other bytes are `nondeterministic`. A random op must give other bytes, else it is
    `not random`."""
    metrics, (first, *others) = found.metrics, case.runs
    if metrics.kind:
        return found
    same = all(
        len(again) == len(first) and all(a.tobytes() == b.tobytes() for a, b in zip(again, first)) for again in others
    )
    if case.op_class is OpClass.RANDOM and same:
        metrics.kind, metrics.detail = "not random", f"{len(case.runs)} runs gave the same bytes"
    elif case.op_class not in (OpClass.RANDOM, OpClass.UNINITIALISED) and not same:
        metrics.kind = "nondeterministic"
        metrics.detail = f"{len(case.runs)} runs on the same inputs gave different bytes"
    return found


def apply_policy_to_metrics(case: JudgedCase, found: Judgement) -> Judgement:
    """Set status and kind from these metrics, by the policy's limit for the op, class, dtype and precision."""
    return found.rule(*case.verdict(found.metrics))


def note_policy_limit(case: JudgedCase, found: Judgement) -> Judgement:
    """Decide nothing. Record limit and digest."""
    return found.note({"limit": case.limit, "output_digest": fingerprint.digest_judged_outputs(case.returned[0])})


def describe_outputs(case: JudgedCase, found: Judgement) -> Judgement:
    """Decide nothing. Record limit, digest, profile and precision; for what did not pass, also its signature and worst
    element."""
    columns: dict[str, Any] = {
        "limit": case.limit,
        "output_digest": fingerprint.digest_judged_outputs(case.returned[0]),
    }
    if case.elements is not None and case.group.check == checks.FORWARD and not found.metrics.kind and case.wide:
        columns["profile"] = error_profile.write_error_profile(case.elements, case.wide[0], case.expected[0])
    if found.status is not Status.PASS and case.record.oracle != "stored" and not case.record.definition:
        # What passed agrees with the reference, and so with whatever else passed: by its digest or within twice the
        # limit.
        columns["signature"] = fingerprint.compute_error_signature(
            case.outputs, case.expected, case.op_class, case.precision
        )
        columns |= _describe_furthest_elements(case, found.metrics)
    if case.precision:
        columns["compute_precision"] = case.precision
        if case.info.unasked and is_precision_coarser(case.precision, case.group.dtype):
            columns["unasked"] = case.precision
    return found.note(columns)


def accept_kept_result(case: JudgedCase, found: Judgement) -> Judgement:
    """If a derivative can be computed from the rounded result of the forward pass (1 - y² of a tanh), what that
    explains is no worse than `imprecise`, kind `kept`."""
    if found.metrics.kind:
        return found

    def measure_excused(excused: bool) -> Metrics:
        leaves = [floor_of_kept(leaf, excused) for leaf in case.expected]
        return compare_outputs(case.wide, leaves, case.op_class, case.precision, case.dtypes)

    found = found.note({"kept": measure_excused(False).error_units})
    if found.fails and case.verdict(measure_excused(True))[0] is Status.PASS:
        return found.rule(Status.IMPRECISE, KIND_KEPT, _make_cause_columns(diagnose.ErrorCause(KEPT, CAUSE_KEPT)))
    return found


def check_precision_effect(case: JudgedCase, found: Judgement) -> Judgement:
    """Only in a check for the effect of a declared precision, and final there. An output that is as precise as the
    dtype itself is `wrong` if the precision was a command, and gets a note if it was a permission. If none is declared,
    the case is `vacuous`."""
    found, dtype = replace(found, final=True), case.group.dtype
    if not is_precision_coarser(case.precision, dtype):
        error = f"the backend declares no precision coarser than {dtype} for it"
        return found.rule(Status.VACUOUS, "", {"error": error}, final=True)
    if found.status not in (Status.PASS, Status.IMPRECISE):
        return found
    fine = compare_outputs(case.outputs, case.expected, case.op_class)
    if replace(case, precision="").verdict(fine)[0] is not Status.PASS:
        return found
    if case.info.permission:
        return found.note({"unused_permission": case.precision})
    units = f"{fine.error_units:.3g}" if fine.error_units is not None else "no"
    error = f"told to compute in {case.precision}, it is as precise as {dtype}: {units} units of that"
    return found.rule(Status.WRONG, "no effect", {"error": error}, final=True)


def reject_infinite_floor(case: JudgedCase, found: Judgement) -> Judgement:
    """Measure a whole model by the floor of its elements as well. If its noise floor is not finite, the case is
    `invalid`: final."""
    strict = compare_outputs(case.outputs, case.expected, OpClass.COMPOSITE, case.precision).error_units
    found = found.note({"strict_units": strict})
    if found.status is not Status.INVALID:
        return found
    error = "the noise floor is not finite: moving an input, a weight or a node's output gave NaN or Inf"
    return replace(found.note({"error": error}), final=True)


def find_unasked_precision(case: JudgedCase, found: Judgement) -> Judgement:
    """Decide nothing. If the errors of a whole model are those of weights rounded to a coarser precision, record which
    one."""
    off = found.fails and not (found.metrics.kind or found.metrics.nonfinite)
    if not (off or (found.status is Status.PASS and is_precision_coarser(case.precision, case.group.dtype))):
        return found
    asked = EPS[case.precision] if case.precision else 0.0
    twins = {name: outputs[case.part] for name, outputs in case.sample.coarse().items() if EPS[name] > asked}
    told = coarser_precision.suspect_coarser_precision(
        case.outputs, case.expected, twins, case.policy, case.group.label, case.group.dtype
    )
    if told is None:
        return found
    columns = {"unasked": told.precision}
    if found.status is not Status.PASS:
        said = f"its errors are those of weights rounded to {told.precision} (correlation {told.alike:.2f})"
        columns["error"] = f"computed in {told.precision}, which nobody asked for: {said}"
    return found.note(columns)


def ask_other_oracles(case: JudgedCase, found: Judgement) -> Judgement:
    """Compare the outputs with every further oracle. If one of them disagrees with the first, the case is `invalid`,
    kind `oracle`: final. No backend can tell which of the two is right, so nobody is blamed and nothing passes."""
    for number, other in enumerate(case.record.others):
        leaves = case.sample.other(number, case.expected, case.part)
        second = compare_outputs(case.wide, leaves, case.op_class, case.precision, case.dtypes)
        own = second.max_ulp if case.op_class in WITHOUT_NOISE else second.error_units
        found = found.note({"second_oracle": other.name, "second_units": own, "oracles_units": other.units})
        limit = case.policy.limit_value(case.group.label, case.op_class.value, case.group.dtype)
        if _oracles_disagree(other, limit) and not found.metrics.kind:
            named = [(case.record.oracle, found.metrics), (other.name, second)]
            sides = [name for name, m in named if case.verdict(m)[0] is Status.PASS]
            error = (
                f"the oracles {case.record.oracle} and {other.name} disagree ({other.units:.3g} units; "
                f"{other.detail}); this backend agrees with {' and '.join(sides) or 'neither'}"
            )
            return found.rule(Status.INVALID, KIND_ORACLE, {"error": error}, final=True)
    return found


def compare_twin_outputs(case: JudgedCase, found: Judgement) -> Judgement:
    """Some samples compute the same outputs twice, in different ways. If the numbers are off and the two differ, the
    kind is `contradicted`: one of them is wrong, whatever the reference."""
    twins = case.record.twins
    if not (found.fails and found.kind == "numbers" and case.limit is not None):
        return found
    first, again = case.outputs[-2 * twins : -twins], case.outputs[-twins:]
    leaves = [replace(leaf, reference=x.astype(np.float64)) for leaf, x in zip(case.expected[-twins:], first)]
    apart = compare_outputs(again, leaves, OpClass.MODEL, case.precision).error_units
    return found.rule(found.status, "contradicted") if apart is None or apart > case.limit else found


def judge_training_step(case: JudgedCase, found: Judgement) -> Judgement:
    """A gradient of a training step that is zero everywhere and should not be is `wrong`, whatever the limit. Record
    which gradient is furthest off, and how far all of them diverge."""
    names = case.record.names
    told = training_step.examine_training_step(
        case.outputs, case.expected, names, case.precision, (found.status, found.kind)
    )
    return found.rule(*told.verdict, told.columns)


def explain_wrong_numbers(case: JudgedCase, found: Judgement) -> Judgement:
    """Find the error model that explains numbers that are off. If it is a cast that was asked for and is missing, the
    kind is `cast`."""
    if not found.has_wrong_numbers or case.record.definition or "cause" in found.columns:
        return found
    cause = _find_error_cause(case)
    is_cast = found.kind == "numbers" and cause.code == CAUSE_CAST
    return found.rule(found.status, KIND_CAST if is_cast else found.kind, _make_cause_columns(cause))


def accept_accumulator_error(case: JudgedCase, found: Judgement) -> Judgement:
    """A `wrong` product that is no further off than the adder that the device declares would leave it becomes
    `imprecise`, kind `accumulator`: the hardware can do no better. Of sums that its passport knows that says so itself
    (`hold_to_own_arithmetic`)."""
    declared = case.info.accumulators
    if not (found.status is Status.WRONG and found.kind == "numbers") or case.record.definition:
        return found
    if case.own is not None and case.own.readings and _hold_to_bounds(case) is not None:
        return found
    return found.rule(Status.IMPRECISE, KIND_ACCUMULATOR) if _is_within_accumulators(case, declared) else found


def find_narrow_sums(case: JudgedCase, found: Judgement) -> Judgement:
    """Add the terms of 16-bit sums and products again. If digits were lost that float32 would have kept, that is the
    cause, and a result that passed becomes `imprecise`, kind `accumulator`."""
    ulps = found.metrics.max_ulp
    if ulps is not None and ulps <= 1:  # rounding twice leaves some further off
        return found
    asked = found.status is Status.PASS or found.has_wrong_numbers or (found.fails and found.kind == KIND_ACCUMULATOR)
    if not asked or found.columns.get("cause"):
        return found
    sums = _find_narrow_sum_cause(case)
    if not sums.words:
        return found
    if found.status is Status.PASS and not has_own_tolerance(case.record.columns):
        return found.rule(Status.IMPRECISE, KIND_ACCUMULATOR, _make_cause_columns(sums))
    return found.note(_make_cause_columns(sums))


def hold_to_own_arithmetic(case: JudgedCase, found: Judgement) -> Judgement:
    """Hold the sums of a backend whose passport is known against it. Further off than its order and bits may leave them
    they are `wrong`, kind `arithmetic`, however near; beyond the limit and as near as they leave them in all
    likelihood, `imprecise`, kind `accumulator`, unless the device can be asked (`prove_own_arithmetic`)."""
    asked = found.status is Status.PASS or found.has_wrong_numbers or (found.fails and found.kind == KIND_ACCUMULATOR)
    held = _hold_to_bounds(case) if asked else None
    if held is None:
        return found
    assert case.own is not None
    found = _note_own_units(found, held)
    if held.certain > 1:
        known = [held.known] if held.known else case.own.readings
        said = known[0].describe() if known else "as any sum of its that was read"
        error = f"{held.certain:.3g} times as far off as its passport leaves it ({said})"
        return found.rule(Status.WRONG, KIND_ARITHMETIC, {"error": error})
    # Of a formula whose sum was not read at all, the widest of the device's says too little to excuse anything.
    is_read = held.known is not None or isinstance(held.where, LocatedSum)
    return _excuse_likely_error(found) if case.own.ask is None and is_read else found


def _note_own_units(found: Judgement, held: HeldSum) -> Judgement:
    """With how far off results are beside what their own arithmetic leaves; with a flag where nothing finite follows
    from it."""
    if held.is_bounded:
        return found.flag(own=None).note({"own_units": held.certain, "likely_units": held.likely})
    return found.flag(own="unbounded")


def _excuse_likely_error(found: Judgement, cause: Mapping[str, Any] | None = None) -> Judgement:
    """`imprecise` in place of `wrong`, where numbers are no further off than the backend's arithmetic leaves them in
    all likelihood."""
    near = float(found.columns.get("likely_units", np.inf)) <= 1
    excused = near and found.status is Status.WRONG and found.kind == "numbers"
    return found.rule(Status.IMPRECISE, KIND_ACCUMULATOR, cause or {}) if excused else found


def find_lost_cast(case: JudgedCase, found: Judgement) -> Judgement:
    """If a whole model passes but its errors are what leaving out one of its casts does, it becomes `imprecise`, kind
    `cast`. Not asked of a coarser declared precision."""
    if found.status is Status.PASS and not case.precision:
        with contextlib.suppress(Exception):  # what it did not think of must not cost the verdict
            lost = diagnose.explain_lost_cast(case.sample.tensors(), case.outputs, case.expected, case.sample.graph)
            if lost.words:
                return found.rule(Status.IMPRECISE, KIND_CAST, _make_cause_columns(lost))
    return found


def word_judged_failure(case: JudgedCase, found: Judgement) -> Judgement:
    """Decide nothing. Say how many elements are outside the op's own tolerance, or one step of a quantised dtype
    off."""
    metrics = found.metrics
    if found.status is not Status.WRONG:
        return found
    if has_own_tolerance(case.record.columns) and found.kind in ("numbers", KIND_TOLERANCE):
        rtol, atol = find_leaf_tolerance(case.expected[0], case.op_class, case.precision)
        error = (
            f"outside its tolerance (rtol {rtol:g}, atol {atol:g}): {metrics.mismatched} of {metrics.numel} elements"
        )
        return found.note({"error": error})
    if (
        found.kind == "numbers"
        and "error" not in found.columns
        and (words := _count_single_steps(case.dtypes, metrics))
    ):
        return found.note({"error": words})
    return found


def drop_units_of_stored(case: JudgedCase, found: Judgement) -> Judgement:
    """Decide nothing. If there is only a stored expected output, there is no noise floor: drop the error units."""
    if not has_stored_oracle_only(case.record.oracle, case.op_class):
        return found
    return found.with_metrics(replace(found.metrics, error_units=None, noise_floor=None))


def find_error_bias(case: JudgedCase, found: Judgement) -> Judgement:
    """If the errors of a result that passed lean to one side more than chance explains, it becomes `imprecise`, kind
    `biased`. Only for an op's own samples: generated ones repeat their numbers, so all their errors may be the same
    one."""
    metrics = found.metrics
    if not (found.status is Status.PASS and case.group.distribution == "own" and does_error_lean(metrics)):
        return found
    side, sigmas = abs(metrics.bias or 0.0), abs(metrics.bias_sigmas or 0.0)
    error = f"off to one side by {side:.2g} error units on average, {sigmas:.0f} standard errors"
    return found.rule(Status.IMPRECISE, KIND_BIASED, {"error": error})


def check_op_properties(case: JudgedCase, found: Judgement) -> Judgement:
    """For an op on all values of a dtype: a result that passed and breaks what mathematics promises (order, range,
    symmetry) becomes `imprecise`, kind `property`."""
    if not _covers_all_inputs(case.sample):
        return found
    if not (
        broken := properties.find_broken_property(case.group.op, _read_sample_tensors(case.sample), case.outputs[0])
    ):
        return found
    found = found.note({"breaks": broken.text})
    return found.rule(Status.IMPRECISE, KIND_PROPERTY) if found.status is Status.PASS else found


#: The judge's steps, in order.
STEPS: tuple[Step, ...] = (
    measure_error_of_outputs,
    interpret_model_outputs,
    compare_repeated_outputs,
    apply_policy_to_metrics,
    describe_outputs,
    accept_kept_result,
    check_precision_effect,
    reject_infinite_floor,
    find_unasked_precision,
    ask_other_oracles,
    compare_twin_outputs,
    judge_training_step,
    explain_wrong_numbers,
    accept_accumulator_error,
    find_narrow_sums,
    hold_to_own_arithmetic,
    find_lost_cast,
    word_judged_failure,
    drop_units_of_stored,
    find_error_bias,
    check_op_properties,
)
#: The steps that are asked only of cases with a trait, and what tells the trait; all others are asked of every case.
_OF_TRAITS: tuple[tuple[Callable[[JudgedCase], Any], tuple[Step, ...]], ...] = (
    (
        lambda case: case.op_class is OpClass.MODEL,
        (interpret_model_outputs, reject_infinite_floor, find_unasked_precision, find_lost_cast),
    ),
    (lambda case: len(case.runs) > 1, (compare_repeated_outputs,)),
    (lambda case: [leaf for leaf in case.expected if leaf.kept is not None], (accept_kept_result,)),
    (lambda case: checks.get_check_or_default(case.sample.owner.check).effect, (check_precision_effect,)),
    (lambda case: case.record.others, (ask_other_oracles,)),
    (lambda case: case.record.twins, (compare_twin_outputs,)),
    (lambda case: case.record.names, (judge_training_step,)),
    (lambda case: case.info.accumulators, (accept_accumulator_error,)),
    (lambda case: [leaf for leaf in case.expected if leaf.dtype in diagnose.NARROW], (find_narrow_sums,)),
    (lambda case: case.own is not None, (hold_to_own_arithmetic,)),
    (lambda case: case.record.oracle == "stored", (drop_units_of_stored,)),
    (lambda case: case.group.distribution == EXHAUSTIVE, (check_op_properties,)),
)
#: The steps that are asked only while the outputs are wrong or imprecise.
_OF_FAILURES = frozenset({compare_twin_outputs, explain_wrong_numbers, accept_accumulator_error, word_judged_failure})


@functools.cache
def _choose_judge_steps(traits: tuple[bool, ...]) -> tuple[Step, ...]:
    """`STEPS` without those that are about a trait which a case has not."""
    left_out = {step for has_it, (_, steps) in zip(traits, _OF_TRAITS) if not has_it for step in steps}
    return tuple(step for step in STEPS if step not in left_out)


# --- the steps of a training run ----------------------------------------------------------------------------------


def measure_training_phase(case: JudgedCase, found: Judgement) -> Judgement:
    """Measure one phase of a training step in floors: the norm of each output's difference by the norm of what rounding
    makes of it. The optimiser and the clipping are judged alone: the reference is given the run's own gradients and the
    state it began with. What all clipped gradients are off together is excused where an order of float32's sum of squares
    leaves as much, and told (flag `norm_off`)."""
    record = case.record
    phase, step = record.phases[case.step.part[0]], case.step.row
    expected: Sequence[Leaf | training_phases.RightOutput] = case.expected
    own = case.step.made_of
    if phase in ALONE and own is not None and len(own.arrays) == len(expected):
        arrays, given = case.sample.inputs(), decode_tree_specs(record.kwargs)
        vectors = {name: arrays[x.id][step] for name, x in given.items() if isinstance(x, TensorSpec)}
        recipe = TrainingRecipe.read(given["recipe"])
        number = int(vectors["number"][0])
        names = record.names[case.part]
        excused = training_phases.find_excused_factor(recipe, own, case.outputs) if phase == CLIPPED else 1.0
        given = (phase, recipe, number, vectors, own, names, case.expected, excused)
        expected = training_phases.expect_phase_alone(*given)
        found = found.flag(**{FLAG_NORM: f"{excused - 1:.2g}" if excused != 1.0 else None})
    elif phase == PROBE and own is not None:
        expected = [training_phases.expect_probe(x, own) for x in case.expected]
    elif phase == SHARES:
        expected = [training_phases.expect_rank_share(x, case.step.rank or 0, case.step.ranks) for x in case.expected]
    asked = (phase, record.names[case.part], USUAL_UNITS if case.limit is None else case.limit)
    return found.with_metrics(training_phases.measure_phase_floors(case.outputs, expected, *asked))


#: Of a sample with phases, in the place of `STEPS`.
OF_TRAINING: tuple[Step, ...] = (measure_training_phase, apply_policy_to_metrics, note_policy_limit)


# --- what is promised beside the numbers ---------------------------------------------------------------------------


def check_user_invariants(case: JudgedCase, found: Judgement) -> Judgement:
    """A result that breaks what its user promises of every result is `wrong`, kind `invariant`. What passes is the
    promised result as far as the policy asks, so rounding alone breaks nothing: it is held to a promise that its
    reference breaks as well."""
    if not found.status.judged:
        return found
    exact = [x.reference.astype(get_numpy_dtype(x.dtype)) for x in case.expected if x.reference is not None]
    outputs = exact if found.status is Status.PASS and len(exact) == len(case.expected) else case.returned[0]
    arrays = case.sample.inputs()
    given = decode_tree_specs(case.record.kwargs)
    inputs = {name: make_contiguous_tensor(arrays[x.id], x) for name, x in given.items() if isinstance(x, TensorSpec)}
    if not outputs or not (broken := invariants.find_broken_invariant(case.sample.owner.invariants, inputs, outputs)):
        return found
    return found.rule(Status.WRONG, KIND_INVARIANT, {"error": broken})


#: Asked after all others, also where nothing else was to be asked.
LAST_LOOK: tuple[Step, ...] = (check_user_invariants,)


# --- a second look at what fails ----------------------------------------------------------------------------------


def measure_device_flushing(case: JudgedCase, found: Judgement) -> Judgement:
    """If the device may take subnormal numbers for zero here, measure that on the device. If it does, read and judge
    the outputs again."""
    if case.measure_flushes is None or not found.fails or found.metrics.kind:
        return found
    dtypes = flushing.may_flushing_matter(case.step.expected(case.sample.expected()), case.elements)
    measured = case.flushes | case.measure_flushes(dtypes) if dtypes else case.flushes
    if measured == case.flushes:
        return found
    again = _judge_case_in_steps(replace(case, flushes=measured))
    return replace(again.flag(**flags.parse_row_flags(str(measured))), final=False)


def accept_rounded_inputs(case: JudgedCase, found: Judgement) -> Judgement:
    """Pass numbers that are what the ONNX graph gives in the coarser precision that is declared: rounding an input that
    is out of its range, or at a step of the op, moves a result further than any noise floor says."""
    group, form, precision = case.group, case.form, case.precision
    plain = group.check == checks.FORWARD and case.op_class is not OpClass.MODEL and not case.record.definition
    off = found.fails and found.kind in ("numbers", "nonfinite") and not found.metrics.kind
    if not (plain and off and is_precision_coarser(precision, group.dtype)):
        return found
    if form is None or form.kind != "onnx" or form.model is None or form.paired:
        return found
    from tasks.graphs import coarse_products

    expected = case.sample.expected()
    for results in coarse_products.evaluate_in_precision(form.model, form.arrays, precision):
        if [x.shape for x in results] != [leaf.shape for leaf in expected]:
            break
        leaves = [replace(leaf, reference=x, noise=_scale_noise_floor(leaf, x)) for leaf, x in zip(expected, results)]
        metrics = compare_outputs(case.returned[0], leaves, case.op_class, precision)
        if case.verdict(metrics)[0] is Status.PASS:
            names = ("limit", "output_digest", "compute_precision", "unasked", "flags")
            kept = {name: found.columns[name] for name in names if name in found.columns}
            return Judgement(metrics, Status.PASS, "", kept).flag(rounds_inputs=precision)
    return found


def prove_own_arithmetic(case: JudgedCase, found: Judgement) -> Judgement:
    """Read on the device how it adds the element that is furthest off, of a backend whose passport is known. What that
    gives to the bit is the cause. With fewer bits in a step than any of the passport's it is `wrong`; with as many,
    numbers that are off are `imprecise`, kind `accumulator`, and so are those of which nothing can be read and that are
    as near as its passport leaves them in all likelihood."""
    if not (found.fails and found.kind in ("numbers", KIND_ACCUMULATOR, KIND_ARITHMETIC)) or case.own is None:
        return found
    held = _hold_to_bounds(case)
    if held is not None and held.known is not None:
        return _explain_part_of_formula(case, found, held)
    told = _read_device_order(case, held)
    if told is None:
        return found
    reading = told.reading
    if not reading.kind and reading.code not in UNSOUND:
        return _excuse_likely_error(found)
    if told.at.size * PROVED > told.count:
        return found.note({"error": _describe_unproved_reading(told, found)})
    words = f"adds {reading.terms} terms as {reading.describe()}: {told.count} of {told.at.size} results to the bit"
    cause = _make_cause_columns(diagnose.ErrorCause(words, CAUSE_ARITHMETIC))
    if error := case.own.describe_narrower(reading):
        return found.rule(Status.WRONG, KIND_ARITHMETIC, {**cause, "error": error})
    if found.status is Status.WRONG and found.kind == KIND_ARITHMETIC:
        return _acquit_other_order(case, found, reading).note(cause)
    if found.status is Status.WRONG and found.kind == "numbers":
        return found.rule(Status.IMPRECISE, KIND_ACCUMULATOR, cause)
    return found.note(cause)


def _acquit_other_order(case: JudgedCase, found: Judgement, reading: SumReading) -> Judgement:
    """What a result is that lies beyond the bound of the passport's order, and within that of another order, in which
    the device adds at these shapes by steps each of which adds as one of the passport's: nobody promises an order."""
    assert case.own is not None
    known = {rule for x in case.own.readings for rule in x.rules}
    held = _hold_to_bounds(case, reading) if reading.rules <= known else None
    if held is None or held.certain > 1:
        return found
    status, kind = case.verdict(found.metrics)
    if status is Status.WRONG:
        status, kind = Status.IMPRECISE, KIND_ACCUMULATOR
    return _note_own_units(found, held).rule(status, kind, {"error": None})


def _explain_part_of_formula(case: JudgedCase, found: Judgement, held: HeldSum) -> Judgement:
    """As `prove_own_arithmetic`, of what sums are only a part of: no model gives its results, so its order and bits at
    the case's own shapes say how far it may be off."""
    assert case.own is not None and held.known is not None
    reading = _read_sum_again(case, held)
    if reading is None:
        return _excuse_likely_error(found)
    if not reading.bits:
        return found.note({"error": f"read again: {reading.words}"})
    again = _hold_to_bounds(case, reading) or held
    found = _note_own_units(found, again)
    words = f"its sum of {reading.made_of} is added {reading.describe()}, which leaves so much in all likelihood"
    cause = _make_cause_columns(diagnose.ErrorCause(words, CAUSE_ARITHMETIC)) if again.likely <= 1 else {}
    if error := case.own.describe_narrower(reading):
        return found.rule(Status.WRONG, KIND_ARITHMETIC, {**cause, "error": error})
    return _excuse_likely_error(found, cause)


def _describe_unproved_reading(told: SumExplanation, found: Judgement) -> str:
    """What a reading says that does not give the results, after what is said already."""
    said = str(found.columns.get("error") or "")
    why = (
        told.reading.words
        if told.reading.code
        else f"{told.count} of {told.at.size} results are what {told.reading.describe()} gives"
    )
    return f"{said}; read again: {why}" if said else f"read again: {why}"


#: Steps for what is wrong or imprecise after `STEPS`, where the device can be asked.
SECOND_LOOK: tuple[Step, ...] = (measure_device_flushing, accept_rounded_inputs, prove_own_arithmetic)


# --- what the steps ask -------------------------------------------------------------------------------------------


def _choose_judged_precision(sample: PreparedSample, info: RuntimeInfo) -> str:
    """The coarser of what the backend declares and what the check asks for."""
    asked = checks.get_check_or_default(sample.owner.check).precision(sample.owner.group.dtype)
    if not info.compute_precision:
        return asked
    declared = info.precision_for(info.of_products and sample.products)
    return max(declared, asked, key=lambda name: EPS.get(name, 0.0))


def _join_complex_outputs(output: Any) -> np.ndarray:
    """Complex numbers from real pairs in the last axis; anything else as it is (its shape will tell)."""
    array = np.asarray(output)
    if array.shape[-1:] != (2,) or array.dtype not in (np.float32, np.float64):
        return array
    pairs = np.ascontiguousarray(array)
    return pairs.view(np.complex64 if array.dtype == np.float32 else np.complex128)[..., 0]


def _is_real_float(dtype: str) -> bool:
    return is_inexact_dtype(dtype) and not is_complex_dtype(dtype)


def _describe_furthest_elements(case: JudgedCase, metrics: Metrics) -> dict[str, Any]:
    """How many elements are beyond the limit, and the worst of all in words; nothing of what is not compared one by
    one."""
    if metrics.kind or case.limit is None or case.op_class in (OpClass.RANDOM, OpClass.MODEL):
        return {}
    actual = case.outputs
    count, where = count_furthest_elements(actual, case.expected, case.op_class, case.limit, case.precision)
    columns: dict[str, Any] = {"beyond": count}
    if where is not None:
        output, index = where
        said = describe_worst_element(actual[output], case.expected[output], index, case.op_class, case.precision)
        given = case.elements
        placed = given is not None and given.shape == actual[output].shape
        of = f" of {format_number(given[index])}" if given is not None and placed else ""
        at = ", ".join(map(str, (*[output] * bool(output), *index)))
        columns["worst"] = f"{said['actual']} for {said['expected']}{of}, at {at}"
    return columns


def _oracles_disagree(other: OracleRecord, limit: float | None) -> bool:
    """Whether two oracles disagree. A second one that was computed in the dtype under test is held to its tolerance."""
    apart = not other.classic if limit is None else bool(other.units > limit)
    return apart and not (other.rounded and other.classic)


def _make_cause_columns(cause: diagnose.ErrorCause) -> dict[str, str]:
    """What a row says of a cause."""
    return {"cause": cause.words, "cause_code": cause.code}


def _find_error_cause(case: JudgedCase) -> diagnose.ErrorCause:
    """The error model that explains numbers that are off."""
    if case.op_class is OpClass.RANDOM:
        return diagnose.ErrorCause()
    sample, whole = case.sample, case.op_class is OpClass.MODEL
    # A backend that called a function was not given the case's ONNX graph, if it has one: an error in that is no cause.
    called = case.form is not None and case.form.call is not None
    try:
        graph = (lambda: None) if called and not whole else sample.graph
        uncast = sample.uncast()[case.part] if whole else []
        one_by_one = case.elements is not None
        return diagnose.find_error_model(
            sample.tensors(), case.outputs, case.expected, case.op_class, graph, one_by_one, uncast
        )
    except Exception:
        return diagnose.ErrorCause()  # what it did not think of must not cost the verdict


def _find_narrow_sum_cause(case: JudgedCase) -> diagnose.ErrorCause:
    """How sums of 16-bit numbers lost digits that float32 would have kept; none where they did not, or the runtime says
    that it may add in 16 bits."""
    if case.op_class not in (OpClass.CONTRACTION, OpClass.REDUCTION, OpClass.COMPOSITE):
        return diagnose.ErrorCause()
    if case.group.check != checks.FORWARD or case.group.dtype in case.info.accumulators:
        return diagnose.ErrorCause()
    if case.precision or case.record.definition:
        return diagnose.ErrorCause()
    with contextlib.suppress(Exception):  # what it did not think of must not cost the verdict
        return diagnose.explain_narrow_sums(case.sample.tensors(), case.outputs, case.expected)
    return diagnose.ErrorCause()


def _has_own_sums(case: JudgedCase) -> bool:
    """Whether the numbers of a case are such as the passport of its backend speaks of: what is computed in another
    precision is not added as it says, unless it says in how many bits factors are taken."""
    plain = case.group.check in (checks.FORWARD, ARITHMETIC) and not case.record.definition
    if case.own is None:
        return False
    readings = case.own.readings
    if is_precision_coarser(case.precision, case.group.dtype) and not (readings and all(x.taken for x in readings)):
        return False
    return plain and case.form is not None and len(case.expected) == 1 == len(case.outputs)


def _hold_to_bounds(case: JudgedCase, reading: SumReading | None = None) -> HeldSum | None:
    """A result against the bounds of its own arithmetic; None where these say nothing of it. reading: of its sum, at
    its own shapes."""
    if not _has_own_sums(case) or case.expected[0].reference is None or case.outputs[0].shape != case.expected[0].shape:
        return None
    assert case.own is not None and case.form is not None
    arrays = pack_strided_arrays(case.form, case.form.arrays)
    given = (case.own, arrays, case.outputs[0], case.expected[0].reference)
    with contextlib.suppress(Exception):  # what it did not think of must not cost the verdict
        return hold_to_bounds(*given) if reading is None else hold_to_sum_reading(*given, reading)
    return None


def _read_sum_again(case: JudgedCase, held: HeldSum) -> SumReading | None:
    """How the device adds the sum in a result at the case's own shapes; None where that cannot be asked."""
    assert case.own is not None and case.form is not None and case.expected[0].reference is not None
    with contextlib.suppress(Exception):
        return read_own_sum_again(
            case.own, held, pack_strided_arrays(case.form, case.form.arrays), case.expected[0].reference
        )
    return None


def _read_device_order(case: JudgedCase, held: HeldSum | None) -> SumExplanation | None:
    """How the device adds, read again for this case; None where it cannot be asked."""
    if held is None:
        return None
    assert case.own is not None and case.form is not None
    with contextlib.suppress(Exception):
        return prove_own_sum(case.own, held, pack_strided_arrays(case.form, case.form.arrays), case.returned[0][0])
    return None


def _is_within_accumulators(case: JudgedCase, accumulators: Sequence[str]) -> bool:
    """Whether products are no further off than the limit leaves them where the device's matrix units add them: these
    cannot do better."""
    if case.op_class is not OpClass.CONTRACTION:
        return False
    leaves = []
    for leaf in case.expected:
        floor = diagnose.bound_accumulator_error(accumulators, case.sample.tensors(), leaf, case.op_class)
        if floor is None:
            return False
        leaves.append(replace(leaf, noise=floor + (0.0 if leaf.noise is None else leaf.noise)))
    return case.verdict(compare_outputs(case.outputs, leaves, case.op_class, case.precision))[0] is Status.PASS


def _count_single_steps(dtypes: Sequence[str], metrics: Metrics) -> str:
    """How many elements of quantised outputs are a single step off, which is another thing than a lost result; "" where
    any is more."""
    if metrics.max_diff != 1.0 or not set(dtypes) <= _QUANTISED:
        return ""
    return f"one step of {'/'.join(dict.fromkeys(dtypes))} off in {metrics.mismatched:,} of {metrics.numel:,} elements"


def _covers_all_inputs(sample: PreparedSample) -> bool:
    """Whether the results are those of an op on all its inputs, and of nothing else: a threshold may break any
    order."""
    group, record = sample.owner.group, sample.record
    if group.distribution != EXHAUSTIVE or group.check != checks.FORWARD or group.variant:
        return False
    return len(record.args["v"]) == len(sample.specs) and not record.kwargs["v"]


def _read_sample_tensors(sample: PreparedSample) -> list[np.ndarray]:
    with contextlib.suppress(ValueError):
        return sample.tensors()
    return []


def _scale_noise_floor(leaf: Leaf, results: np.ndarray) -> np.ndarray | None:
    """The noise floor of a reference, where other results are smaller in their proportion: what is cut off moves as
    little."""
    if leaf.noise is None or leaf.reference is None:
        return leaf.noise
    with np.errstate(all="ignore"):
        return leaf.noise * np.fmin(np.abs(results) / np.abs(leaf.reference), 1.0)
