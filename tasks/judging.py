"""What the outputs of a case are worth: measured, repeated, held against a second oracle, judged by a policy."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks import checks, diagnose
from tasks.checks import Observation
from tasks.judge import coarser, fingerprint, flushing, profile, properties, steps, zeros
from tasks.judge.meaning import interpret
from tasks.judge.plain import Metrics, check_metadata, compare, is_coarser, leans, times_coarser, tolerance_of
from tasks.judge.policy import OWN_TOLERANCE, Policy, judge, only_stored
from tasks.judge.worst import element, furthest
from tasks.model import (
    EPS,
    EXHAUSTIVE,
    WITHOUT_NOISE,
    Flushes,
    Form,
    Leaf,
    OpClass,
    RuntimeInfo,
    Status,
    is_complex,
    is_inexact,
)
from tasks.model.dtypes import dtype_name, shown
from tasks.model.kind import (
    CAUSE_CAST,
    CAUSE_KEPT,
    KIND_ACCUMULATOR,
    KIND_BIASED,
    KIND_CAST,
    KIND_KEPT,
    KIND_ORACLE,
    KIND_PROPERTY,
    KIND_TOLERANCE,
)
from tasks.model.leaf import floor_of_kept, settled
from tasks.prepare.cases import PreparedSample

#: Of a derivative that is off by no more than that.
KEPT = (
    "computed from the rounded result of the forward pass, which has lost the digits (1 - y² of a tanh next to 1); computed from the "
    "input it keeps them (kept: true declares that it is meant)"
)
#: The step of a case that has no others.
_WHOLE = Observation("")
#: Dtypes of quantised results, whose numbers are steps of a scale.
_QUANTISED = frozenset({"int8", "uint8", "int4", "uint4"})


@dataclass(frozen=True)
class Judgement:
    """Of one case; columns: those of its row that come with it, but for the metrics."""

    metrics: Metrics
    status: Status
    kind: str
    columns: dict[str, Any] = field(default_factory=dict)


def judge_steps(
    sample: PreparedSample,
    stages: Sequence[Observation],
    paired: Sequence[int],
    policy: Policy,
    info: RuntimeInfo,
    form: Form | None = None,
) -> list[Judgement]:
    """What each step of a check returned, judged by itself."""
    return [judged(sample, [list(x.outputs)], paired, policy, info, x, form=form) for x in stages]


def first_of_worst(stages: Sequence[Observation], found: Sequence[Judgement]) -> Judgement:
    """Of the judgements of the steps of a check that of the first of the worst, which is to blame if another is better.

    Where all fare alike it is that of the one furthest off, and none of them is to blame. Steps of one name are runs of the
    same that gave other bytes: where not all of them fail, or a step that is better is as unsteady, the case is
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
        return replace(first, kind="nondeterministic", columns=first.columns | {"error": error})
    if stages[place].row is not None:
        first.columns.update(culprit=blamed, error=f"{said}first {first.status} at step {place} of {len(stages)}")
        return first
    first.columns.update(culprit=blamed, error=f"{said}{blamed} is {first.status}, {', '.join(sound)} not")
    return first


def judged(
    sample: PreparedSample,
    outputs: list[list[Any]],
    paired: Sequence[int],
    policy: Policy,
    info: RuntimeInfo,
    step: Observation = _WHOLE,
    flushes: Callable[[Sequence[str]], Flushes] | None = None,
    form: Form | None = None,
) -> Judgement:
    """What the runs of a case returned, flat, under a policy. paired: which outputs are complex, as pairs; step: the
    one of the case that they are of; flushes: what the device takes for zero in some dtypes, asked where it may matter; form:
    what the backend was given."""
    known = Flushes(info.flushes)
    # A backend that called a function was not given the case's ONNX graph, if it has one: an error in that is no cause.
    called = form is not None and form.call is not None
    found = _judged(sample, outputs, paired, policy, info, step, known, called)
    if flushes is None or found.status not in (Status.WRONG, Status.IMPRECISE) or found.metrics.kind:
        return found
    dtypes = flushing.may_matter(step.expected(sample.expected()), _elementwise(sample))
    measured = known | flushes(dtypes) if dtypes else known
    if measured != known:
        found = _judged(sample, outputs, paired, policy, info, step, measured, called)
        found.columns["flags"] = str(measured)
    return _narrowed(sample, outputs[0], policy, info, form, found)


def _narrowed(
    sample: PreparedSample, actual: list[Any], policy: Policy, info: RuntimeInfo, form: Form | None, found: Judgement
) -> Judgement:
    """A judgement, and a pass where the outputs are what the ONNX graph gives in the coarser precision that is declared: to round an
    input that lies outside its range, or at a step of the op, moves a result further than any noise floor says."""
    group, precision = sample.owner.group, _precision(sample, info)
    plain = group.check == checks.FORWARD and sample.op_class is not OpClass.MODEL and not sample.record["definition"]
    off = found.kind in ("numbers", "nonfinite") and found.status in (Status.WRONG, Status.IMPRECISE)
    if not (plain and off and is_coarser(precision, group.dtype)):
        return found
    if form is None or form.kind != "onnx" or form.model is None or form.paired:
        return found
    from tasks.graphs import coarse

    bar = _Bar(sample, sample.op_class, sample.expected(), slice(None), policy, precision)
    for results in coarse.in_precision(form.model, form.arrays, precision):
        if [x.shape for x in results] != [leaf.shape for leaf in bar.expected]:
            break
        leaves = [replace(leaf, reference=x, noise=_scaled(leaf, x)) for leaf, x in zip(bar.expected, results)]
        metrics = compare([np.asarray(x) for x in actual], leaves, bar.op_class, precision)
        if bar.verdict(metrics)[0] is Status.PASS:
            kept = {
                k: v
                for k, v in found.columns.items()
                if k in ("limit", "output_digest", "compute_precision", "unasked")
            }
            return Judgement(
                metrics,
                Status.PASS,
                "",
                kept | {"flags": f"{found.columns.get('flags', '')} rounds_inputs={precision}".strip()},
            )
    return found


def _scaled(leaf: Leaf, results: np.ndarray) -> np.ndarray | None:
    """The noise floor of a reference, where other results are smaller in their proportion: what is cut off moves as little."""
    if leaf.noise is None or leaf.reference is None:
        return leaf.noise
    with np.errstate(all="ignore"):
        return leaf.noise * np.fmin(np.abs(results) / np.abs(leaf.reference), 1.0)


def _elementwise(sample: PreparedSample) -> np.ndarray | None:
    """The input of an op of one tensor each of whose results is of the element in its place; None of any other."""
    if sample.owner.group.distribution != EXHAUSTIVE:
        return None
    with contextlib.suppress(ValueError):
        found = sample.tensors()
        if found and is_inexact(dtype_name(found[0].dtype)) and not is_complex(dtype_name(found[0].dtype)):
            return found[0]
    return None


def _judged(
    sample: PreparedSample,
    outputs: list[list[Any]],
    paired: Sequence[int],
    policy: Policy,
    info: RuntimeInfo,
    step: Observation,
    flushes: Flushes,
    called: bool,
) -> Judgement:
    group, record, op_class = sample.owner.group, sample.record, sample.op_class
    for actual in outputs:
        for i in paired:
            actual[i] = _unpaired(actual[i])
    arrays = [[np.asarray(x) for x in actual] for actual in outputs]
    raw = arrays[0]
    precision = _precision(sample, info)
    expected = step.expected(sample.expected(of_products=info.of_products))
    bar = _Bar(sample, op_class, expected, slice(*step.part), policy, precision)
    if any(leaf.ties is not None for leaf in bar.expected):
        arrays = [_settled(actual, bar.expected, op_class, precision) for actual in arrays]
    if flushes != Flushes():
        given = _elementwise(sample) if flushes.inputs else None
        arrays = [flushing.unflushed(actual, bar.expected, flushes, given) for actual in arrays]
    expected, limit = bar.expected, policy.limit_value(group.label, op_class.value, group.dtype, precision)
    seen, dtypes = _widened(sample, arrays[0]), [dtype_name(a.dtype) for a in arrays[0]]
    metrics = _measure(sample, seen, expected, precision, dtypes)
    if op_class is OpClass.MODEL:
        interpret(metrics, arrays[0], expected, op_class, precision, limit)
    _repeated(sample, arrays, metrics)
    oracle = record["oracle"]
    status, kind = bar.verdict(metrics)
    more: dict[str, Any] = {"limit": limit, "output_digest": fingerprint.digest(raw)}
    more |= _profiled(sample, seen, expected, metrics)
    if status is not Status.PASS and oracle != "stored" and not record["definition"]:
        # What passed agrees with the reference, and so with whatever else passed: by its digest or within twice the limit.
        more["signature"] = fingerprint.signature(arrays[0], expected, op_class, precision)
        more |= _furthest(bar, arrays[0], metrics, limit)
    if not metrics.kind and any(leaf.kept is not None for leaf in expected):
        (status, kind), columns = _kept(bar, seen, dtypes, (status, kind))
        more |= columns
    more |= _computed_in(precision, info, group.dtype)
    if checks.installed(sample.owner.check).effect:
        return _effect(bar, arrays[0], info.permission, Judgement(metrics, status, kind, more))
    if op_class is OpClass.MODEL:
        more |= _of_model(arrays[0], expected, precision, status)
        if status is Status.INVALID:
            return Judgement(metrics, status, kind, more)
        numbers = status in (Status.WRONG, Status.IMPRECISE) and not (metrics.kind or metrics.nonfinite)
        if numbers or (status is Status.PASS and is_coarser(precision, group.dtype)):
            more |= _told(bar, arrays[0], status)
    if record["others"]:
        others = _held_against_others(bar, seen, metrics, dtypes)
        more |= others.columns
        if others.verdict is not None:
            return Judgement(metrics, *others.verdict, more)
    if status in (Status.WRONG, Status.IMPRECISE) and (twins := record.get("twins", 0)) and kind == "numbers":
        kind = _contradicted(arrays[0], expected, twins, precision, limit) or kind
    if names := record.get("names"):
        found = steps.examined(arrays[0], expected, names, precision, (status, kind))
        (status, kind), more = found.verdict, more | found.columns
    off = status in (Status.WRONG, Status.IMPRECISE) and kind in ("numbers", "nonfinite", KIND_TOLERANCE)
    if off and not record["definition"] and "cause" not in more:
        cause = _cause(bar, arrays[0], called)
        more |= _columns(cause)
        if kind == "numbers" and cause.code == CAUSE_CAST:
            kind = KIND_CAST
        if (
            status is Status.WRONG
            and kind == "numbers"
            and info.accumulators
            and _within(bar, arrays[0], info.accumulators)
        ):
            status, kind = Status.IMPRECISE, KIND_ACCUMULATOR
    if (off or status is Status.PASS) and not more.get("cause") and (sums := _narrow_sums(bar, arrays[0], info)).words:
        more |= _columns(sums)
        if status is Status.PASS and not oracle.endswith(OWN_TOLERANCE):
            status, kind = Status.IMPRECISE, KIND_ACCUMULATOR
    if status is Status.PASS and op_class is OpClass.MODEL and not precision:
        with contextlib.suppress(Exception):  # what it did not think of must not cost the verdict
            lost = diagnose.lost_cast(sample.tensors(), arrays[0], expected, sample.graph)
            if lost.words:
                status, kind, more = Status.IMPRECISE, KIND_CAST, more | _columns(lost)
    if oracle.endswith(OWN_TOLERANCE) and status is Status.WRONG and kind in ("numbers", KIND_TOLERANCE):
        rtol, atol = tolerance_of(expected[0], op_class, precision)
        more["error"] = (
            f"outside its tolerance (rtol {rtol:g}, atol {atol:g}): {metrics.mismatched} of {metrics.numel} elements"
        )
    if status is Status.WRONG and kind == "numbers" and (words := _one_step(dtypes, metrics)):
        more.setdefault("error", words)
    if only_stored(oracle, op_class):
        metrics.error_units = metrics.noise_floor = None  # no float64 evaluation: no noise floor
    return _beside(sample, arrays[0], Judgement(metrics, status, kind, more))


def _settled(actual: list[np.ndarray], expected: list[Leaf], op_class: OpClass, precision: str) -> list[np.ndarray]:
    """Results of which equal elements have changed places, where that is nearer to the reference: sums of several choices may be off by
    a rounding, and then stand in another order."""
    if len(actual) != len(expected):
        return actual
    both = (actual, [settled(x, leaf) for x, leaf in zip(actual, expected)])
    return min(both, key=lambda x: compare(x, expected, op_class, precision).error_units or 0.0)


def _one_step(dtypes: Sequence[str], metrics: Metrics) -> str:
    """How many elements of quantised outputs are a single step off, which is another thing than a lost result; "" where any is more."""
    if metrics.max_diff != 1.0 or not set(dtypes) <= _QUANTISED:
        return ""
    return f"one step of {'/'.join(dict.fromkeys(dtypes))} off in {metrics.mismatched:,} of {metrics.numel:,} elements"


def _beside(sample: PreparedSample, actual: list[np.ndarray], found: Judgement) -> Judgement:
    """A judgement by the limit, with what needs none: results that lean to one side or break what mathematics promises are imprecise."""
    status, kind, metrics, more = found.status, found.kind, found.metrics, dict(found.columns)
    if status is Status.PASS and sample.owner.group.distribution == "own" and leans(metrics):
        # Generated samples repeat their numbers: there the errors of all elements may be one and the same.
        status, kind = Status.IMPRECISE, KIND_BIASED
        side, sigmas = abs(metrics.bias or 0.0), abs(metrics.bias_sigmas or 0.0)
        more["error"] = f"off to one side by {side:.2g} error units on average, {sigmas:.0f} standard errors"
    if _whole(sample) and (broken := properties.broken(sample.owner.group.op, _given(sample), actual[0])):
        more["breaks"] = broken
        if status is Status.PASS:
            status, kind = Status.IMPRECISE, KIND_PROPERTY
    return replace(found, status=status, kind=kind, columns=more)


def _whole(sample: PreparedSample) -> bool:
    """Whether the results are those of an op on all its inputs, and of nothing else: a threshold may break any order."""
    group, record = sample.owner.group, sample.record
    if group.distribution != EXHAUSTIVE or group.check != checks.FORWARD or group.variant:
        return False
    return len(record["args"]["v"]) == len(sample.specs) and not record["kwargs"]["v"]


def _given(sample: PreparedSample) -> list[np.ndarray]:
    with contextlib.suppress(ValueError):
        return sample.tensors()
    return []


def _contradicted(
    actual: list[np.ndarray], expected: list[Leaf], twins: int, precision: str, limit: float | None
) -> str:
    """ "contradicted" where the last outputs are not those before them: no reference is needed to say that one is wrong."""
    first, again = actual[-2 * twins : -twins], actual[-twins:]
    leaves = [replace(leaf, reference=x.astype(np.float64)) for leaf, x in zip(expected[-twins:], first)]
    apart = compare(again, leaves, OpClass.MODEL, precision).error_units
    return "contradicted" if limit is not None and (apart is None or apart > limit) else ""


@dataclass(frozen=True)
class _Bar:
    """What the outputs of a case are held to. part: which of all that are expected ``expected`` are."""

    sample: PreparedSample
    op_class: OpClass
    expected: list[Leaf]
    part: slice
    policy: Policy
    precision: str

    def verdict(self, metrics: Metrics) -> tuple[Status, str]:
        """(status, kind) of metrics against the case's first oracle, or another one."""
        group, oracle = self.sample.owner.group, self.sample.record["oracle"]
        return judge(metrics, self.policy, group.label, self.op_class.value, group.dtype, oracle, self.precision)


@dataclass(frozen=True)
class _Others:
    """What the further oracles say. columns: of the row; verdict: status and kind where one disagrees with the first."""

    columns: dict[str, Any]
    verdict: tuple[Status, str] | None = None


def _kept(
    bar: _Bar, actual: list[np.ndarray], dtypes: list[str], found: tuple[Status, str]
) -> tuple[tuple[Status, str], dict[str, Any]]:
    """Verdict and columns of a derivative that can be computed from a rounded result: how far off it is if that excuses nothing. What
    it explains is imprecise at worst."""

    def measured(excused: bool) -> Metrics:
        leaves = [floor_of_kept(leaf, excused) for leaf in bar.expected]
        return compare(actual, leaves, bar.op_class, bar.precision, dtypes)

    columns: dict[str, Any] = {"kept": measured(False).error_units}
    if found[0] in (Status.WRONG, Status.IMPRECISE) and bar.verdict(measured(True))[0] is Status.PASS:
        return (Status.IMPRECISE, KIND_KEPT), columns | _columns(diagnose.Cause(KEPT, CAUSE_KEPT))
    return found, columns


def _held_against_others(bar: _Bar, actual: list[np.ndarray], metrics: Metrics, dtypes: list[str]) -> _Others:
    """What the oracles beside the first one say of a result, of ``dtypes`` before it was widened, whose ``metrics`` are by the first."""
    group, record, op_class = bar.sample.owner.group, bar.sample.record, bar.op_class
    columns: dict[str, Any] = {}
    for number, other in enumerate(record["others"]):
        second = compare(actual, bar.sample.other(number, bar.expected, bar.part), op_class, bar.precision, dtypes)
        own = second.max_ulp if op_class in WITHOUT_NOISE else second.error_units
        columns |= {"second_oracle": other["name"], "second_units": own, "oracles_units": other["units"]}
        if _apart(other, bar.policy.limit_value(group.label, op_class.value, group.dtype)) and not metrics.kind:
            # Which of the two is right, no backend can tell: nobody is blamed and nothing is passed.
            named = [(record["oracle"], metrics), (other["name"], second)]
            sides = [name for name, m in named if bar.verdict(m)[0] is Status.PASS]
            error = (
                f"the oracles {record['oracle']} and {other['name']} disagree ({other['units']:.3g} units; "
                f"{other['detail']}); this backend agrees with {' and '.join(sides) or 'neither'}"
            )
            return _Others(columns | {"error": error}, (Status.INVALID, KIND_ORACLE))
    return _Others(columns)


def _furthest(bar: _Bar, actual: list[np.ndarray], metrics: Metrics, limit: float | None) -> dict[str, Any]:
    """How many elements are beyond the limit, and the worst of all in words; nothing of what is not compared one by one."""
    if metrics.kind or limit is None or bar.op_class in (OpClass.RANDOM, OpClass.MODEL):
        return {}
    count, where = furthest(actual, bar.expected, bar.op_class, limit, bar.precision)
    columns: dict[str, Any] = {"beyond": count}
    if where is not None:
        output, index = where
        said = element(actual[output], bar.expected[output], index, bar.op_class, bar.precision)
        given = _elementwise(bar.sample)
        placed = given is not None and given.shape == actual[output].shape
        of = f" of {shown(given[index])}" if given is not None and placed else ""
        at = ", ".join(map(str, (*[output] * bool(output), *index)))
        columns["worst"] = f"{said['actual']} for {said['expected']}{of}, at {at}"
    return columns


def _effect(bar: _Bar, actual: list[np.ndarray], permission: bool, found: Judgement) -> Judgement:
    """What passes in the declared precision and would pass in the dtype's own as well: a command that is not obeyed is wrong, a
    permission that is not used is noted."""
    dtype = bar.sample.owner.group.dtype
    if not is_coarser(bar.precision, dtype):
        error = f"the backend declares no precision coarser than {dtype} for it"
        return replace(found, status=Status.VACUOUS, kind="", columns=found.columns | {"error": error})
    if found.status not in (Status.PASS, Status.IMPRECISE):
        return found
    fine = compare(actual, bar.expected, bar.op_class)
    own = _Bar(bar.sample, bar.op_class, bar.expected, bar.part, bar.policy, "")
    if own.verdict(fine)[0] is not Status.PASS:
        return found
    if permission:
        return replace(found, columns=found.columns | {"unused_permission": bar.precision})
    units = f"{fine.error_units:.3g}" if fine.error_units is not None else "no"
    error = f"told to compute in {bar.precision}, it is as precise as {dtype}: {units} units of that"
    return replace(found, status=Status.WRONG, kind="no effect", columns=found.columns | {"error": error})


def _cause(bar: _Bar, actual: list[np.ndarray], called: bool) -> diagnose.Cause:
    """The error model that explains numbers that are off. called: no ONNX graph was run."""
    sample, whole = bar.sample, bar.op_class is OpClass.MODEL
    if bar.op_class is OpClass.RANDOM:
        return diagnose.Cause()
    try:
        graph = (lambda: None) if called and not whole else sample.graph
        uncast = sample.uncast()[bar.part] if whole else []
        one_by_one = _elementwise(sample) is not None
        return diagnose.cause(sample.tensors(), actual, bar.expected, bar.op_class, graph, one_by_one, uncast)
    except Exception:
        return diagnose.Cause()  # what it did not think of must not cost the verdict


def _columns(cause: diagnose.Cause) -> dict[str, str]:
    """What a row says of a cause."""
    return {"cause": cause.words, "cause_code": cause.code}


def _narrow_sums(bar: _Bar, actual: list[np.ndarray], info: RuntimeInfo) -> diagnose.Cause:
    """How sums of 16-bit numbers lost digits that float32 would have kept; none where they did not, or the runtime says that it may add
    in 16 bits."""
    group = bar.sample.owner.group
    if group.check != checks.FORWARD or bar.op_class not in (OpClass.CONTRACTION, OpClass.REDUCTION, OpClass.COMPOSITE):
        return diagnose.Cause()
    if bar.precision or group.dtype in info.accumulators or bar.sample.record["definition"]:
        return diagnose.Cause()
    with contextlib.suppress(Exception):  # what it did not think of must not cost the verdict
        return diagnose.narrow_sums(bar.sample.tensors(), actual, bar.expected)
    return diagnose.Cause()


def _within(bar: _Bar, actual: list[np.ndarray], accumulators: Sequence[str]) -> bool:
    """Whether products are no further off than the limit leaves them where the device's matrix units add them: these cannot do better."""
    if bar.op_class is not OpClass.CONTRACTION:
        return False
    leaves = []
    for leaf in bar.expected:
        floor = diagnose.within(accumulators, bar.sample.tensors(), leaf, bar.op_class)
        if floor is None:
            return False
        leaves.append(replace(leaf, noise=floor + (0.0 if leaf.noise is None else leaf.noise)))
    return bar.verdict(compare(actual, leaves, bar.op_class, bar.precision))[0] is Status.PASS


def _precision(sample: PreparedSample, info: RuntimeInfo) -> str:
    """The coarser of what the backend declares and what the check asks for."""
    group = sample.owner.group
    asked = checks.installed(sample.owner.check).precision(group.dtype)
    if not info.compute_precision:
        return asked
    declared = info.precision_for(sample.products)
    return max(declared, asked, key=lambda name: EPS.get(name, 0.0))


def _told(bar: _Bar, actual: list[np.ndarray], status: Status) -> dict[str, Any]:
    """The precision, coarser than the declared one, that a model was computed in without being asked, where its errors tell."""
    group = bar.sample.owner.group
    asked = EPS[bar.precision] if bar.precision else 0.0
    twins = {name: outputs[bar.part] for name, outputs in bar.sample.coarse().items() if EPS[name] > asked}
    found = coarser.told(actual, bar.expected, twins, bar.policy, group.label, group.dtype)
    if found is None:
        return {}
    said = f"its errors are those of weights rounded to {found.precision} (correlation {found.alike:.2f})"
    words = {"error": f"computed in {found.precision}, which nobody asked for: {said}"}
    return {"unasked": found.precision} | (words if status is not Status.PASS else {})


def _of_model(actual: list[np.ndarray], expected: list[Leaf], precision: str, status: Status) -> dict[str, Any]:
    """What only the row of a whole model has."""
    more: dict[str, Any] = {"strict_units": compare(actual, expected, OpClass.COMPOSITE, precision).error_units}
    if status is Status.INVALID:
        more["error"] = "the noise floor is not finite: moving an input, a weight or a node's output gave NaN or Inf"
    return more


def _apart(other: dict[str, Any], limit: float | None) -> bool:
    """Whether two oracles disagree. A second one that was computed in the dtype under test is held to its tolerance."""
    apart = not other["classic"] if limit is None else bool(other["units"] > limit)
    return apart and not (other["rounded"] and other["classic"])


def _widened(sample: PreparedSample, actual: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs; real floats as float64 where they are looked at several times."""
    if sample.record["definition"] or not sample.record["others"]:
        return actual
    names = [dtype_name(x.dtype) for x in actual]
    return [x.astype(np.float64) if is_inexact(d) and not is_complex(d) else x for x, d in zip(actual, names)]


def _computed_in(precision: str, info: RuntimeInfo, dtype: str) -> dict[str, str]:
    """The columns of a coarser precision, declared or chosen by the runtime."""
    unasked = {"unasked": precision} if info.unasked and is_coarser(precision, dtype) else {}
    return {"compute_precision": precision} | unasked if precision else {}


def _profiled(
    sample: PreparedSample, actual: list[np.ndarray], expected: list[Leaf], metrics: Metrics
) -> dict[str, str]:
    """The column of an exhaustive case that says how far each of its inputs is off."""
    if sample.owner.group.check != checks.FORWARD or metrics.kind or not actual:
        return {}
    inputs = _elementwise(sample)
    return {} if inputs is None else {"profile": profile.line(inputs, actual[0], expected[0])}


def _measure(
    sample: PreparedSample, actual: list[np.ndarray], expected: list[Leaf], precision: str, dtypes: list[str]
) -> Metrics:
    """dtypes: of the outputs, which may have been widened since."""
    record = sample.record
    if not record["definition"]:
        metrics = compare(actual, expected, sample.op_class, precision, dtypes)
        if sample.owner.group.check == checks.FORWARD:
            metrics.zero_signs = zeros.wrong_signs(sample.owner.group.op, actual, expected)
        return metrics
    metrics = Metrics()
    check_metadata(actual, expected, metrics, dtypes)
    if metrics.kind:
        return metrics
    from tasks.judge import definitions

    made = definitions.derive(record["definition"], record["args"], record["kwargs"], sample.inputs(), actual)
    return compare(made, derived(sample, precision))


def derived(sample: PreparedSample, precision: str) -> list[Leaf]:
    """What a sample's definition is to make of right outputs in a declared precision: what is derived is float64, whatever the
    dtype under test, so that a coarser one is told by its noise."""
    times = max(times_coarser(precision, sample.owner.group.dtype), 1.0)
    return [x if x.noise is None else replace(x, noise=x.noise * times) for x in sample.derived()]


def _repeated(sample: PreparedSample, arrays: list[list[np.ndarray]], metrics: Metrics) -> None:
    """Results of one case that differ are a finding; for a random op, results that do not."""
    if len(arrays) < 2 or metrics.kind:
        return
    same = all(
        len(again) == len(arrays[0]) and all(a.tobytes() == b.tobytes() for a, b in zip(again, arrays[0]))
        for again in arrays[1:]
    )
    if sample.op_class is OpClass.RANDOM and same:
        metrics.kind, metrics.detail = "not random", f"{len(arrays)} runs gave the same bytes"
    elif sample.op_class not in (OpClass.RANDOM, OpClass.UNINITIALISED) and not same:
        metrics.kind, metrics.detail = (
            "nondeterministic",
            f"{len(arrays)} runs on the same inputs gave different bytes",
        )


def _unpaired(array: np.ndarray) -> np.ndarray:
    """Complex numbers from real pairs in the last axis; anything else as it is (its shape will tell)."""
    if array.shape[-1:] != (2,) or array.dtype not in (np.float32, np.float64):
        return array
    pairs = np.ascontiguousarray(array)
    return pairs.view(np.complex64 if array.dtype == np.float32 else np.complex128)[..., 0]
