"""Gradients of one op against both oracles: run, told line by line, drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from farm.commandline import clean_line
from farm.plan.patterns import list_pattern_names
from farm.report.runs import load_rows_and_record
from farm.report.tables.coverage import FAILED_STATUSES
from farm.report.tables.gradient_oracles import AGREE, MEANING, WORST_FIRST, compare_gradient_oracles, table_two_oracles
from farm.reproduction.run_again import NotHere, run_samples_again
from tasks import catalogs
from tasks.backends import BackendSpec
from tasks.cache import default_cache
from tasks.catalogs.base import Entry
from tasks.gradients import differences
from tasks.judge import policy_files
from tasks.model import EPS, Group, Refusal, Status
from tasks.nearest import suggest_nearest_names
from tasks.prepare.cases import PreparedGroup, PreparedSample, prepare_group
from tasks.runner import make_item_of_whole_group

#: Steps of the curve, relative to the inputs.
STEPS = np.logspace(-1, -13, 49)


class GradcheckError(Refusal):
    """A question that names what is not there; the text is one line."""


@dataclass(frozen=True)
class OpGradientQuestion:
    """Which gradients are asked for. sample: one by its index (None: ``samples`` of them, spread over the op's list);
    double: the gradient of the gradient; backend: whose gradient is judged."""

    op: str
    dtype: str
    samples: int
    sample: int | None
    double: bool
    backend: str


@dataclass(frozen=True)
class OpGradientAnswer:
    """The samples that were looked at, in a line of text each, how many of them met which agreement, and how many
    failed otherwise: the backend or the reference raised."""

    title: str
    lines: list[str]
    met: dict[str, int]
    failed: int
    samples: list[PreparedSample]

    @property
    def agrees(self) -> bool:
        """Whether the oracles and the backend agree wherever they were compared, which was somewhere, and nothing
        failed."""
        return not self.failed and bool(self.met) and set(self.met) <= set(AGREE)

    def summary(self) -> list[str]:
        said = [f"{n} sample{'' if n == 1 else 's'}: {name}: {MEANING[name]}" for name, n in self.met.items()]
        return said or ["nothing was compared"]


def table_run_gradients(results: str, run: str) -> pd.DataFrame:
    """Which of both oracles the gradients of a run's rows agree with. Raises GradcheckError and LakeError."""
    rows, _ = load_rows_and_record(results, run)
    found = table_two_oracles(rows)
    if found.empty:
        raise GradcheckError(f"no gradients in run {run} of {results}; a config asks for them with checks: [backward]")
    return found


def check_op_gradients(question: OpGradientQuestion, cache: Path | None = None) -> OpGradientAnswer:
    """Differentiate and judge. cache: where samples are prepared (None: where all are). Raises GradcheckError."""
    cache = cache or default_cache()
    try:
        spec = BackendSpec.parse(question.backend)
    except KeyError:
        raise GradcheckError(
            f"--backend: unknown {question.backend!r}; torch-cpu or inductor-cpu can differentiate"
        ) from None
    prepared = _prepare_gradient_samples(question, cache)
    places = [i for i, s in enumerate(prepared.samples) if question.sample is None or s.index == question.sample]
    group = prepared.group
    if not places:
        valid = ", ".join(str(s.index) for s in sorted(prepared.samples, key=lambda s: s.index)[:20])
        raise GradcheckError(
            f"--sample: {group.label} has no sample {question.sample} in {question.dtype}; it has {valid}"
        )
    asked = replace(make_item_of_whole_group(prepared), positions=tuple(places))
    try:
        judged = list(run_samples_again(asked, spec, policy_files.load_policy("error_units"), cache))
    except NotHere as error:
        raise GradcheckError(f"--backend: {spec.name} is unavailable: {error}") from None
    rows = pd.DataFrame(judged).reindex(columns=_COLUMNS)
    rows["agreement"] = compare_gradient_oracles(rows)
    return OpGradientAnswer(
        f"{group.label} {question.dtype}, {group.check} on {question.backend}",
        [
            describe_gradient_sample({str(k): v for k, v in row.items()})
            for row in rows.sort_values("sample").to_dict("records")
        ],
        {name: int((rows.agreement == name).sum()) for name in WORST_FIRST if name in set(rows.agreement)},
        int((rows.status.isin([*FAILED_STATUSES, Status.INVALID.value]) & (rows.agreement == "")).sum()),
        [prepared.samples[p] for p in places],
    )


_COLUMNS = (
    "sample shapes check status kind stage error oracle limit error_units nonfinite second_oracle second_units oracles_units "
    "by_differences no_second_oracle"
).split()


def _prepare_gradient_samples(question: OpGradientQuestion, cache: Path) -> PreparedGroup:
    """The op's samples with their gradients. Raises GradcheckError."""
    name = "user" if question.op.startswith("user:") else "torch"
    entries = {
        n: e
        for e in catalogs.get_catalog(name).entries()
        for n in list_pattern_names(Entry(e.op, e.variant, ()))
        if not e.variant or n.endswith(f".{e.variant}")
    }
    if question.op not in entries:
        raise GradcheckError(
            f"no op {question.op!r} in the {name} catalog{suggest_nearest_names(question.op, sorted(entries))}"
        )
    entry, check = entries[question.op], "double_backward" if question.double else "backward"
    if check not in entry.checks:
        raise GradcheckError(f"{entry.op}: the op declares no {check.replace('_', ' ')}")
    if question.dtype not in entry.dtypes or question.dtype not in EPS:
        valid = [d for d in entry.dtypes if d in EPS]
        raise GradcheckError(
            f"--dtype: {entry.op} has no gradient in {question.dtype!r}{suggest_nearest_names(question.dtype, valid)}"
        )
    count = question.samples if question.sample is None else 2**31 - 1
    return prepare_group(Group(entry.op, entry.variant, question.dtype, count, 0, check), cache)[1]


def describe_gradient_sample(row: dict[str, Any]) -> str:
    """A sample's error units from each oracle, and those between the two."""
    head = f"  sample {row['sample']:<4} {row['shapes'][:20]:20}"
    if not row["agreement"] or row["error_units"] is None:  # it raised, or is of another shape or dtype
        return f"{head} " + clean_line(f"{row['status']} {row['kind']} {row['error']}")
    units = f"{row['error_units']:.3g}"
    if row["by_differences"] is True:
        return f"{head} {units} from {clean_line(row['oracle'])}"
    if row["second_oracle"] is not None and row["second_oracle"] == row["second_oracle"]:
        second, apart = (_format_units_apart(row["second_units"]), _format_units_apart(row["oracles_units"]))
        return f"{head} {units} from autograd, {second} from differences, {apart} between"
    why = row["no_second_oracle"]
    return f"{head} {units} from autograd" + (f", no differences: {clean_line(why)}" if isinstance(why, str) else "")


def _format_units_apart(units: float) -> str:
    # The differences' estimate of their own error is taken off first: 0 is no equality.
    return f"{units:.3g}" if units else "about 0"


def plot_difference_errors(samples: list[PreparedSample], path: Path) -> None:
    """Draw |difference quotient − autograd| / |autograd| along a random direction, against ε, per sample.

    Raises GradcheckError.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from tasks.catalogs.torch.gradient_samples import measure_difference_curve

    figure = Figure(figsize=(7.5, 5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = 0
    for sample in samples:
        try:
            errors = None if sample.failure else measure_difference_curve(sample, STEPS)
        except Exception as error:  # whatever a kernel raises that is given float64
            raise GradcheckError(f"--plot: its gradient in float64: {type(error).__name__}: {error}") from None
        if errors is None or not np.isfinite(errors).any():
            continue
        drawn += 1
        least = int(np.nanargmin(errors))
        label = f"sample {sample.index}: least {errors[least]:.0e} at ε = {STEPS[least]:.0e}"
        (line,) = axes.plot(STEPS, errors, label=label, linewidth=1.2)
        axes.plot(STEPS[least], errors[least], "o", color=line.get_color())
    if not drawn:
        raise GradcheckError("--plot: no sample has a gradient to draw")
    group = samples[0].owner.group
    best = differences.EPS64 ** (1 / 3)
    axes.axvline(best, color="grey", linestyle="--", linewidth=1)
    axes.text(best, 0.98, " $\\varepsilon_{64}^{1/3}$", transform=axes.get_xaxis_transform(), va="top", color="grey")
    axes.set(
        xscale="log", yscale="log", xlabel="ε, relative to the input", ylabel="relative error of the central difference"
    )
    axes.set_title(
        f"{group.label} {group.dtype}, {group.check}: truncation ε² to the right, roundoff 1/ε to the left", fontsize=10
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise GradcheckError(f"--plot: {path} cannot be written ({error.strerror})") from None
