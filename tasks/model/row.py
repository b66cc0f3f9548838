"""The outcome of one case on one backend: a column of the lake is one line here and the place that fills it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tasks.model.case import Group
from tasks.model.dtypes import EPS


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    type: "string", "float64", "int32", "int64", "bool", "timestamp", "list<float32>" or "list<int64>"; unit: "" where
    it has none; words: what it says; shown: the block of a page or a printed case that it belongs to: "case", "origin"
    (who ran it, on what), "outcome", "metrics", "times".
    """

    name: str
    type: str
    unit: str
    words: str
    shown: str


#: The licence of a model that the user brings.
YOUR_OWN = "your own"

#: Values of the column `execution`: no device was used but a model of one; an interpreter of the kernel's language ran
#: it, not a compiler's code; nothing says on which device it ran. "" is the rule: the backend's device ran it.
EMULATED, INTERPRETED, UNVERIFIED = "emulated", "interpreted", "unverified"


def declare_row_column(type: str, shown: str, words: str, unit: str = "", default: Any = None) -> Any:
    """A dataclass field that is a column; without a value it is null."""
    return field(default=default, metadata={"column": (type, unit, words, shown)})


def get_declared_precision(row: Mapping[str, Any]) -> str:
    """The precision that a row's backend declared; "" for its dtype's own, which stands in a lake where none is
    declared."""
    precision = str(row.get("compute_precision") or "")
    return precision if precision != row.get("dtype") and precision in EPS else ""


def has_own_tolerance(row: Mapping[str, Any]) -> bool:
    """Whether a row's case brings a tolerance of its own; pandas has NaN where the lake has none."""
    return row.get("own_tolerance") in (True,)


def list_declared_columns(record: Any) -> tuple[Column, ...]:
    """The columns of a dataclass whose fields are made by `declare_row_column`."""
    return tuple(Column(f.name, *f.metadata["column"]) for f in fields(record))


@dataclass(frozen=True)
class Row:
    """What happened to one case on one backend. What was not measured is None."""

    check: str = declare_row_column("string", "case", "what was checked: forward, …", default="forward")
    catalog: str | None = declare_row_column("string", "case", "torch, onnx, critical, …")
    op: str = declare_row_column("string", "case", "the op with its catalog's prefix", default="")
    variant: str = declare_row_column("string", "case", "the op's variant, empty when it has none", default="")
    dtype: str = declare_row_column("string", "case", "dtype under test", default="")
    op_class: str | None = declare_row_column(
        "string", "case", "how the op is judged: exact, elementary, contraction, …"
    )
    distribution: str = declare_row_column(
        "string",
        "case",
        "where the values come from: own (the op's list), regular, boundary, adversarial, nan, structured, fuzz, exhaustive",
        default="own",
    )
    sample: int = declare_row_column(
        "int32", "case", "index in the op's list of samples; -1: the group could not be prepared", default=-1
    )
    seed: int = declare_row_column("int64", "case", "seed of the samples", default=0)
    digest: str | None = declare_row_column("string", "case", "SHA-256 of the inputs' bytes, first 16 hex digits")
    shapes: str | None = declare_row_column("string", "case", "shapes of the input tensors")
    structure: str | None = declare_row_column(
        "string", "case", "which input has which structure (index=all_equal); empty: ordinary values"
    )
    layout: str | None = declare_row_column(
        "string", "case", "how the input tensors of a kernel of your own lie in memory, where they are not contiguous"
    )
    refused_layout: str | None = declare_row_column(
        "string",
        "outcome",
        "what the kernel raised at that layout; the row is of the same values in contiguous tensors then",
    )
    weak: bool | None = declare_row_column(
        "bool", "case", "no evidence: a constant output, or nearly any, would have passed this sample"
    )
    excused: float | None = declare_row_column(
        "float64",
        "case",
        "share of the result that the limit excuses, because rounding the inputs moves it so far",
        "1",
    )
    licence: str | None = declare_row_column(
        "string", "case", "models: the licence of the weights, or of what defines the model"
    )
    weights: str | None = declare_row_column(
        "string",
        "case",
        "models of your own in torch: SHA-256 of the tensors that the module holds, first 16 hex digits; every backend had these",
    )
    unobserved: str | None = declare_row_column(
        "string", "case", "models: layers whose weights may be scaled by 1 + 2⁻⁶ unnoticed in this sample; empty: none"
    )
    choices: tuple[int, ...] | None = declare_row_column(
        "list<int64>", "case", "generated cases: the choices that made one and can make it again"
    )
    attempts: int = declare_row_column("int32", "times", "how often the case was started in this run", default=1)
    status: str = declare_row_column("string", "outcome", "one of the closed set of statuses", default="")
    kind: str = declare_row_column(
        "string",
        "outcome",
        "for wrong: numbers, flip, nonfinite, shape, dtype, structure, mutation, nondeterministic, contradicted, …; for invalid: oracle, suspect, spec; "
        "for crash: the signal",
        default="",
    )
    culprit: str | None = declare_row_column(
        "string",
        "outcome",
        "what is to blame: exporter, capture (torch's tracer shows another program than eager torch runs), optimiser PASS, precision NAME, node NAME (OP), window FIRST..LAST, fusion, a level of "
        "optimisation, a converter, …; empty: nothing or unknown",
    )
    probe_effect: str | None = declare_row_column(
        "string",
        "outcome",
        "what requesting all tensors of a failing model did to its outputs: same, changed, healed; empty if it does not "
        "run then",
    )
    node_units: tuple[float, ...] | None = declare_row_column(
        "list<float32>",
        "outcome",
        "own error units of each node of a failing model, in graph order; NaN for a node not judged",
        "1",
    )
    crash_after: str | None = declare_row_column(
        "string",
        "outcome",
        "cases that killed their process, but not when run first: kind and stage of that crash, and the case_ids of the "
        "earlier cases needed, as JSON",
    )
    cause: str | None = declare_row_column(
        "string",
        "outcome",
        "the error model that explains a wrong or imprecise result, bit for bit or within a unit; empty: none does",
    )
    cause_code: str | None = declare_row_column(
        "string",
        "outcome",
        "what kind of cause that is: arithmetic (the op's own formula with fewer digits, or in a way that loses them), cast, kept, order (two orders of adding), other; "
        "empty: no cause",
    )
    stage: str | None = declare_row_column(
        "string", "outcome", "where it failed: sample, reference, export, build, run, judge"
    )
    error_type: str | None = declare_row_column("string", "outcome", "class of the error")
    error: str | None = declare_row_column(
        "string", "outcome", "text of the error, with the end of stderr for a dead process"
    )
    max_diff: float | None = declare_row_column("float64", "metrics", "largest |actual − reference|", "as the output")
    max_rel: float | None = declare_row_column("float64", "metrics", "largest |actual − reference| / |reference|", "1")
    max_ulp: float | None = declare_row_column(
        "float64",
        "metrics",
        "largest |actual − reference| in units in the last place of the output dtype, or of compute_precision if coarser",
        "ulp",
    )
    rmse: float | None = declare_row_column("float64", "metrics", "root mean squared error", "as the output")
    error_units: float | None = declare_row_column(
        "float64", "metrics", "largest |actual − reference| / (ε·|reference| + δ + tiny)", "1"
    )
    kept: float | None = declare_row_column(
        "float64",
        "metrics",
        "gradients: error_units if nothing were excused by being computed from a rounded result of the forward pass (tanh′ = 1 − y²); "
        "beyond the limit in a row that passes, that is what it loses",
        "1",
    )
    strict_units: float | None = declare_row_column(
        "float64", "metrics", "models: error_units with each element's own noise floor, not its row's", "1"
    )
    noise_floor: float | None = declare_row_column(
        "float64", "metrics", "largest noise floor δ of the case", "as the output"
    )
    loss: float | None = declare_row_column(
        "float64",
        "metrics",
        "cost of quantising: root mean square of the quantised graph's outputs minus the float32 model's, both in float64, "
        "over that of the float32 model's",
        "1",
    )
    torch_diff: float | None = declare_row_column(
        "float64",
        "metrics",
        "check roundtrip: largest difference from torch's own result in the same process and dtype",
        "as the output",
    )
    own_units: float | None = declare_row_column(
        "float64",
        "metrics",
        "sums of a backend whose passport is known: largest |actual − reference| over what its order and bits may leave; beyond 1 it does not add so; flag own=unbounded: nothing finite follows from them",
        "1",
    )
    likely_units: float | None = declare_row_column(
        "float64", "metrics", "the same over what they leave in all likelihood, where roundings are to nearest", "1"
    )
    limit: float | None = declare_row_column(
        "float64", "metrics", "threshold applied to error_units or, for exact and elementary ops, max_ulp", "1"
    )
    loss_divergence: float | None = declare_row_column(
        "float64", "metrics", "training steps: |loss − reference| / |reference|", "1"
    )
    gradient_divergence: float | None = declare_row_column(
        "float64", "metrics", "training steps: ‖gradients − reference‖ / ‖reference‖, all parameters together", "1"
    )
    nonfinite: int | None = declare_row_column("int64", "metrics", "elements with a misplaced NaN or Inf")
    second_oracle: str | None = declare_row_column(
        "string", "metrics", "another oracle that computed the expected output"
    )
    second_units: float | None = declare_row_column(
        "float64", "metrics", "the result against that oracle, as error_units or max_ulp", "1"
    )
    oracles_units: float | None = declare_row_column("float64", "metrics", "that oracle against the first", "1")
    output_digest: str | None = declare_row_column(
        "string",
        "metrics",
        "SHA-256 of the outputs' dtypes, shapes and bytes, first 16 hex digits: equal for identical results",
    )
    decisions: int | None = declare_row_column(
        "int64", "metrics", "models whose outputs have a stated meaning: arg-maxes, or numbers against a threshold"
    )
    flips: int | None = declare_row_column(
        "int64", "metrics", "decisions unlike the reference's although its margin exceeds what the limit allows"
    )
    ties: int | None = declare_row_column(
        "int64", "metrics", "differing decisions, margin within the limit: either is right"
    )
    flip_units: float | None = declare_row_column(
        "float64", "metrics", "the largest margin of a differing decision", "1"
    )
    divergence: float | None = declare_row_column(
        "float64", "metrics", "largest Kullback-Leibler divergence of logits or probabilities from the reference", "nat"
    )
    overlap: float | None = declare_row_column(
        "float64", "metrics", "intersection ÷ union with the reference of a mask's decisive numbers", "1"
    )
    signature: tuple[float, ...] | None = declare_row_column(
        "list<float32>",
        "metrics",
        "results outside the limit, at most 16 signed errors: of each element, or the smallest and largest of runs of elements",
        "1",
    )
    mismatched: int | None = declare_row_column(
        "int64", "metrics", "elements outside the classic tolerance, misplaced NaN and Inf included"
    )
    numel: int | None = declare_row_column("int64", "metrics", "elements compared")
    bias: float | None = declare_row_column(
        "float64",
        "metrics",
        "contractions, reductions, normalisations: mean signed error in error units, by the number line or by the result's sign",
        "1",
    )
    bias_sigmas: float | None = declare_row_column(
        "float64", "metrics", "how many standard errors the bias is from 0", "1"
    )
    zero_signs: int | None = declare_row_column(
        "int64",
        "metrics",
        "zeros whose sign differs from the exact result, for ops whose definition fixes it (IEEE 754, C annex F); else null",
    )
    breaks: str | None = declare_row_column(
        "string",
        "outcome",
        "exhaustive cases: mathematical properties of the op that its results break (order, symmetry, a bound, an exact point), "
        "with the inputs that show it",
    )
    profile: str | None = declare_row_column(
        "string",
        "metrics",
        "exhaustive cases: a letter for the largest error in each of 128 equal shares of the finite inputs, in ascending order; "
        "a: at most an eighth of an ulp, each letter doubles it, z: a misplaced NaN or Inf",
    )
    beyond: int | None = declare_row_column(
        "int64", "metrics", "results outside the limit: elements beyond it, misplaced NaN and Inf included"
    )
    worst: str | None = declare_row_column(
        "string",
        "metrics",
        "results outside the limit: the worst element, what was expected, and its place; exhaustive cases: also the "
        "input",
    )
    apart_units: float | None = declare_row_column(
        "float64",
        "metrics",
        "same-bytes checks (determinism, threads, batch_invariance, replay): the largest |a - b| ÷ (ε·max(|a|, |b|, root mean "
        "square of the output)) of two results that differ; 0: none do",
        "1",
    )
    classic: bool | None = declare_row_column(
        "bool", "metrics", "verdict of the classic tolerance (torch.testing's atol/rtol by dtype)"
    )
    policy: str | None = declare_row_column("string", "outcome", "name-version of the policy that judged")
    oracle: str | None = declare_row_column(
        "string", "case", "who computed the expected output: float64, numpy-float64, stored, metadata, …"
    )
    own_tolerance: bool | None = declare_row_column(
        "bool", "case", "the case brings a tolerance of its own, which alone tells right from wrong; null: it does not"
    )
    by_differences: bool | None = declare_row_column(
        "bool", "case", "gradients: the oracle is differences of the reference, not its autograd; null: it is not"
    )
    no_second_oracle: str | None = declare_row_column(
        "string", "case", "gradients: why differences say nothing beside the oracle; null: they do, or are the oracle"
    )
    compute_precision: str | None = declare_row_column(
        "string", "outcome", "precision the backend was asked to compute in; the dtype if it declares none"
    )
    unasked: str | None = declare_row_column(
        "string",
        "outcome",
        "coarser precision that it was computed in without being asked: the runtime says so (and it is judged in it), "
        "or a model's errors show it (and it is not)",
    )
    unused_permission: str | None = declare_row_column(
        "string",
        "outcome",
        "check switch: the coarser precision that the runtime may compute in (TF32 that is allowed) and did not: it is as precise as "
        "the dtype",
    )
    cheat: str | None = declare_row_column(
        "string",
        "outcome",
        "check audit: how the time of its calls is a lie although the results are right (kept by content); empty: none was found",
    )
    placement: str | None = declare_row_column("string", "outcome", "where the case ran, in the runtime's words")
    execution: str | None = declare_row_column(
        "string",
        "outcome",
        "`emulated` if no device was used but a model of one, `interpreted` if an interpreter of the kernel's language ran it, `unverified` "
        "if nothing says on which device it ran; else the backend's device ran it",
    )
    prepare_ms: float | None = declare_row_column(
        "float64", "times", "time to make inputs, reference and noise floor (once for all backends)", "ms"
    )
    build_ms: float | None = declare_row_column("float64", "times", "time to build or compile", "ms")
    run_ms: float | None = declare_row_column("float64", "times", "time of the measured call", "ms")
    baseline: str | None = declare_row_column(
        "string", "times", "check speedup: what it is timed against: eager, compiled, numpy, a function, or a backend"
    )
    speedup: float | None = declare_row_column(
        "float64", "times", "check speedup: speedup over the baseline, median of pairs", "1"
    )
    speedup_low: float | None = declare_row_column(
        "float64", "times", "lower end of its 99.9 % confidence interval", "1"
    )
    speedup_high: float | None = declare_row_column("float64", "times", "upper end of that interval", "1")
    speedup_cpu: float | None = declare_row_column(
        "float64", "times", "the same by CPU time, which other processes affect less", "1"
    )
    speedup_cpu_low: float | None = declare_row_column("float64", "times", "lower end of its interval", "1")
    speedup_cpu_high: float | None = declare_row_column("float64", "times", "upper end of its interval", "1")
    cold_speedup: float | None = declare_row_column(
        "float64", "times", "the speedup with the caches emptied before each call, of kernels of your own", "1"
    )
    cold_speedup_low: float | None = declare_row_column("float64", "times", "lower end of its interval", "1")
    cold_speedup_high: float | None = declare_row_column("float64", "times", "upper end of its interval", "1")
    call_ms: float | None = declare_row_column(
        "float64", "times", "check speedup: median time of a call, until the device has finished", "ms"
    )
    cold_call_ms: float | None = declare_row_column("float64", "times", "the same with the caches emptied before", "ms")
    device_ms: float | None = declare_row_column(
        "float64", "times", "check speedup: median time between two events on the stream of a call", "ms"
    )
    time_doubt: str | None = declare_row_column(
        "string",
        "times",
        "check speedup: `clock` if the process of the kernel says that it is faster, and the clock of the process that judges does not, `early` "
        "if it works before it is called, on inputs that it has already, `busy` if it works while its baseline is called (of these three no "
        "speedup is given); `stream` if it works on a stream that the events do not see; `unseen` if as much as a whole call may be hidden from "
        "the clocks of the process that judges, and is counted in; empty: none of these",
    )
    roofline: float | None = declare_row_column(
        "float64",
        "times",
        "check speedup, kernels of your own: the time that the device takes at its ceilings for the bytes or products of a call, over the time "
        "of the call, median",
        "1",
    )
    roofline_low: float | None = declare_row_column(
        "float64", "times", "lower end of its 99.9 % confidence interval", "1"
    )
    roofline_high: float | None = declare_row_column("float64", "times", "upper end of that interval", "1")
    roofline_of: str | None = declare_row_column(
        "string",
        "times",
        "the ceiling that it is a share of: `memory`, `cache` (the bytes fit the last cache; the share is of memory all the same, and nobody is "
        "blamed), or a dtype's products",
    )
    moved_bytes: int | None = declare_row_column(
        "int64", "times", "bytes of the inputs and outputs, once each, or as they are declared"
    )
    flops: int | None = declare_row_column(
        "int64", "times", "operations of the products in the reference, or as they are declared"
    )
    #: In seconds since the epoch.
    started_at: float = declare_row_column(
        "timestamp", "times", "when the case was started on the backend", default=0.0
    )
    flags: str | None = declare_row_column(
        "string",
        "outcome",
        "modes in force, words of key=value with blanks between: tf32=off kernels=3; of a GPU its UUID, whether its memory is checked "
        "(ecc), its slice (mig); variables such as MIOPEN_*, XLA_FLAGS, HSA_OVERRIDE_GFX_VERSION",
    )
    note: str | None = declare_row_column(
        "string", "outcome", "how the row came about, where that needs a sentence: a crash that other cases bring about"
    )

    @classmethod
    def of(cls, values: dict[str, Any]) -> Row:
        """The row of some values by column, a dict that is the row's own from then on: a frozen dataclass of fifty
        fields takes ten times as long to construct, which is half of what a trivial case takes. Raises TypeError for a
        name that is no column.
        """
        if not NAMES.issuperset(values):
            raise TypeError(f"no column of a row: {', '.join(sorted(set(values) - NAMES))}")
        return cls.read(values)

    @classmethod
    def read(cls, values: dict[str, Any]) -> Row:
        """As `of`, for the values of a row that another process made."""
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", values)
        return made

    @property
    def case_id(self) -> str:
        """Stable name of the case (`Group.case_id`)."""
        group = Group(self.op, self.variant, self.dtype, 0, self.seed, self.check, self.distribution)
        return group.case_id(self.sample)

    def with_values(self, values: Mapping[str, Any]) -> Row:
        """This row with other values in some columns."""
        return Row.of({**self.__dict__, **values})

    def values(self) -> dict[str, Any]:
        """All columns by name."""
        return {c.name: getattr(self, c.name) for c in COLUMNS}


COLUMNS = list_declared_columns(Row)
NAMES = frozenset(c.name for c in COLUMNS)
