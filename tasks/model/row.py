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

    type: "string", "float64", "int32", "int64", "bool", "timestamp", "list<float32>" or "list<int64>"; unit: "" where it has none;
    words: what it says; shown: the block of a page or a printed case that it belongs to: "case", "origin" (who ran it,
    on what), "outcome", "metrics", "times".
    """

    name: str
    type: str
    unit: str
    words: str
    shown: str


#: The licence of a model that the user brings.
YOUR_OWN = "your own"

#: Marks a column that has no default.
_REQUIRED = object()


def column(type: str, shown: str, words: str, unit: str = "", default: Any = None) -> Any:
    """A dataclass field that is a column; without a value it is null."""
    facts = {"column": (type, unit, words, shown)}
    return field(metadata=facts) if default is _REQUIRED else field(default=default, metadata=facts)


def declared_precision(row: Mapping[str, Any]) -> str:
    """The precision that a row's backend declared; "" for its dtype's own, which stands in a lake where none is declared."""
    precision = str(row.get("compute_precision") or "")
    return precision if precision != row.get("dtype") and precision in EPS else ""


def columns_of(record: Any) -> tuple[Column, ...]:
    """The columns of a dataclass whose fields are made by `column`."""
    return tuple(Column(f.name, *f.metadata["column"]) for f in fields(record))


@dataclass(frozen=True, kw_only=True)
class Row:
    """What happened to one case on one backend. What was not measured is None."""

    check: str = column("string", "case", "what was checked: forward, …", default="forward")
    catalog: str | None = column("string", "case", "torch, onnx, critical, …")
    op: str = column("string", "case", "the op with its catalog's prefix", default=_REQUIRED)
    variant: str = column("string", "case", "the op's variant, empty when it has none", default="")
    dtype: str = column("string", "case", "dtype under test", default=_REQUIRED)
    op_class: str | None = column("string", "case", "how the op is judged: exact, elementary, contraction, …")
    distribution: str = column(
        "string",
        "case",
        "where the values come from: own (the op's list), regular, boundary, adversarial, nan, fuzz, exhaustive",
        default="own",
    )
    sample: int = column(
        "int32", "case", "index in the op's list of samples; -1: the group could not be prepared", default=-1
    )
    seed: int = column("int64", "case", "seed of the samples", default=0)
    digest: str | None = column("string", "case", "SHA-256 of the inputs' bytes, first 16 hex digits")
    shapes: str | None = column("string", "case", "shapes of the input tensors")
    weak: bool | None = column(
        "bool", "case", "it is no evidence: a constant output, or nearly any, would have passed this sample"
    )
    excused: float | None = column(
        "float64",
        "case",
        "share of the result that the limit does not ask for, as rounding the inputs moves it so far",
        "1",
    )
    licence: str | None = column("string", "case", "of a model: the licence of its weights, or of what defines it")
    unobserved: str | None = column(
        "string",
        "case",
        "of a model: layers whose weights may be scaled by 1 + 2⁻⁶ unnoticed in this sample; empty: none",
    )
    choices: tuple[int, ...] | None = column(
        "list<int64>", "case", "of a generated case: the choices that made it, of which it can be made again"
    )
    attempts: int = column("int32", "times", "how often the case was started in this run", default=1)
    status: str = column("string", "outcome", "one of the closed set of statuses", default=_REQUIRED)
    kind: str = column(
        "string",
        "outcome",
        "for wrong: numbers, flip, nonfinite, shape, dtype, structure, mutation, nondeterministic, contradicted, …; for invalid: oracle, suspect, spec; "
        "for crash: the signal",
        default="",
    )
    culprit: str | None = column(
        "string",
        "outcome",
        "what is to blame: exporter, optimiser PASS, precision NAME, node NAME (OP), window FIRST..LAST, fusion, a level of "
        "optimisation, a converter, …; empty: nothing, or not known",
    )
    probe_effect: str | None = column(
        "string",
        "outcome",
        "what asking for all tensors of a failing model did to its outputs: same, changed, healed; empty where it does "
        "not run then",
    )
    node_units: tuple[float, ...] | None = column(
        "list<float32>",
        "outcome",
        "own error units of each node of a failing model, in the graph's order; NaN for a node that was not judged",
        "1",
    )
    crash_after: str | None = column(
        "string",
        "outcome",
        "of a case that killed its process, and does not where it is the first one: kind and stage of that crash, and the case_ids "
        "of the earlier cases that it takes, as JSON",
    )
    cause: str | None = column(
        "string",
        "outcome",
        "the error model that explains a wrong or imprecise result, bit for bit or within a unit; empty: none does",
    )
    stage: str | None = column("string", "outcome", "where it failed: sample, reference, export, build, run, judge")
    error_type: str | None = column("string", "outcome", "class of the error")
    error: str | None = column("string", "outcome", "text of the error, with the end of stderr for a dead process")
    max_diff: float | None = column("float64", "metrics", "largest |actual − reference|", "as the output")
    max_rel: float | None = column("float64", "metrics", "largest |actual − reference| / |reference|", "1")
    max_ulp: float | None = column(
        "float64",
        "metrics",
        "largest |actual − reference| in units in the last place of the output dtype, or of compute_precision if coarser",
        "ulp",
    )
    rmse: float | None = column("float64", "metrics", "root of the mean squared error", "as the output")
    error_units: float | None = column(
        "float64", "metrics", "largest |actual − reference| / (ε·|reference| + δ + tiny)", "1"
    )
    strict_units: float | None = column(
        "float64", "metrics", "of a model: error_units with each element's own noise floor, not its row's", "1"
    )
    noise_floor: float | None = column("float64", "metrics", "largest noise floor δ of the case", "as the output")
    loss: float | None = column(
        "float64",
        "metrics",
        "what quantising cost: root mean square of the quantised graph's outputs less the float32 model's, both in float64, "
        "over that of the float32 model's",
        "1",
    )
    torch_diff: float | None = column(
        "float64",
        "metrics",
        "check roundtrip: largest difference to what torch itself gave in the same process and dtype",
        "as the output",
    )
    limit: float | None = column(
        "float64", "metrics", "threshold that held for error_units or, for exact and elementary ops, max_ulp", "1"
    )
    loss_divergence: float | None = column(
        "float64", "metrics", "of a training step: |loss − reference| / |reference|", "1"
    )
    gradient_divergence: float | None = column(
        "float64", "metrics", "of a training step: ‖gradients − reference‖ / ‖reference‖, all parameters together", "1"
    )
    nonfinite: int | None = column("int64", "metrics", "elements with a misplaced NaN or Inf")
    second_oracle: str | None = column("string", "metrics", "a further oracle that computed the expected output")
    second_units: float | None = column(
        "float64", "metrics", "the result against that oracle, as error_units or max_ulp", "1"
    )
    oracles_units: float | None = column("float64", "metrics", "that oracle against the first", "1")
    output_digest: str | None = column(
        "string",
        "metrics",
        "SHA-256 of the outputs' dtypes, shapes and bytes, first 16 hex digits: equal for the very same result",
    )
    decisions: int | None = column(
        "int64", "metrics", "of a model whose outputs have a stated meaning: arg-maxes, or numbers against a threshold"
    )
    flips: int | None = column(
        "int64", "metrics", "decisions other than the reference's, though its margin is wider than the limit allows for"
    )
    ties: int | None = column("int64", "metrics", "other decisions, of a margin within the limit: either is right")
    flip_units: float | None = column("float64", "metrics", "the largest margin of a decision that is another one", "1")
    divergence: float | None = column(
        "float64", "metrics", "largest Kullback-Leibler divergence of logits or probabilities from the reference", "nat"
    )
    overlap: float | None = column(
        "float64", "metrics", "intersection ÷ union with the reference of a mask's decisive numbers", "1"
    )
    signature: tuple[float, ...] | None = column(
        "list<float32>",
        "metrics",
        "of a result outside the limit, at most 16 signed errors: of each element, or the smallest and largest of runs of elements",
        "1",
    )
    mismatched: int | None = column(
        "int64", "metrics", "elements outside the classic tolerance, misplaced NaN and Inf included"
    )
    numel: int | None = column("int64", "metrics", "elements compared")
    bias: float | None = column(
        "float64",
        "metrics",
        "of a contraction, reduction or normalisation: mean signed error in error units, by the number line or by the result's sign",
        "1",
    )
    bias_sigmas: float | None = column("float64", "metrics", "by how many standard errors the bias is not 0", "1")
    zero_signs: int | None = column(
        "int64",
        "metrics",
        "zeros of another sign than the exact result, of ops whose definition fixes it (IEEE 754, annex F of C); null of others",
    )
    breaks: str | None = column(
        "string",
        "outcome",
        "of an exhaustive case: what mathematics promises of the op and its results break (order, symmetry, a bound, an exact point), "
        "with the inputs that show it",
    )
    profile: str | None = column(
        "string",
        "metrics",
        "of an exhaustive case: a letter for each of 128 equal shares of the finite inputs in ascending order, the largest error there; a: at "
        "most an eighth of an ulp, each letter twice as much, z: a NaN or Inf out of place",
    )
    beyond: int | None = column(
        "int64", "metrics", "of a result outside the limit: elements beyond it, misplaced NaN and Inf included"
    )
    worst: str | None = column(
        "string",
        "metrics",
        "of a result outside the limit: the element furthest off, for what was expected, and its place; of an exhaustive case "
        "with its input",
    )
    apart_units: float | None = column(
        "float64",
        "metrics",
        "checks of the same bytes (determinism, threads, batch_invariance, replay): the largest |a - b| ÷ (ε·max(|a|, |b|, root "
        "mean square of the output)) of two results that differ; 0: none do",
        "1",
    )
    classic: bool | None = column(
        "bool", "metrics", "verdict of the classic tolerance (torch.testing's atol/rtol by dtype)"
    )
    policy: str | None = column("string", "outcome", "name-version of the policy that judged")
    oracle: str | None = column(
        "string", "case", "who computed the expected output: float64, numpy-float64, stored, metadata, …"
    )
    compute_precision: str | None = column(
        "string", "outcome", "precision the backend was asked to compute in; the dtype where it declares none"
    )
    unasked: str | None = column(
        "string",
        "outcome",
        "coarser precision that it was computed in though nobody asked for it: the runtime says so (and it is judged in it), "
        "or a model's errors tell (and it is not)",
    )
    placement: str | None = column(
        "string", "outcome", 'where the case ran, in the runtime\'s words; after "emulated" where no device was used'
    )
    prepare_ms: float | None = column(
        "float64", "times", "time to make inputs, reference and noise floor (once for all backends)", "ms"
    )
    build_ms: float | None = column("float64", "times", "time to build or compile", "ms")
    run_ms: float | None = column("float64", "times", "time of the measured call", "ms")
    speedup: float | None = column(
        "float64",
        "times",
        "check speedup: times as fast as the eager arm that the flags name, the median of pairs",
        "1",
    )
    speedup_low: float | None = column("float64", "times", "lower end of its interval of confidence 99.9 %", "1")
    speedup_high: float | None = column("float64", "times", "upper end of that interval", "1")
    speedup_cpu: float | None = column("float64", "times", "the same of CPU time, which other processes move less", "1")
    speedup_cpu_low: float | None = column("float64", "times", "lower end of its interval", "1")
    speedup_cpu_high: float | None = column("float64", "times", "upper end of its interval", "1")
    #: In seconds since the epoch.
    started_at: float = column("timestamp", "times", "when the case was started on the backend", default=_REQUIRED)
    flags: str | None = column("string", "outcome", "modes in force, e.g. tf32=off, kernels=3")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Row:
        """The row of some values by column, at the price of one dict: a frozen dataclass of fifty fields takes ten times
        as long to construct, which is half of what a trivial case takes. Raises TypeError for a name that is no column.
        """
        if not NAMES.issuperset(values):
            raise TypeError(f"no column of a row: {', '.join(sorted(set(values) - NAMES))}")
        return cls.read(values)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Row:
        """As `of`, for values of a row that another process has made."""
        made = object.__new__(cls)
        made.__dict__.update(values)
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


COLUMNS = columns_of(Row)
NAMES = frozenset(c.name for c in COLUMNS)
