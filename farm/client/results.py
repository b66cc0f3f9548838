"""What a run of the client found: its rows, counted, and the failures of one kind as one finding."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farm.client.kernels import ClientError
from farm.client.minimising import SmallerCase, minimise
from farm.client.process import describe_client_row
from farm.lake.key import RowKey
from farm.plan.config_schema import Config
from farm.plan.match_known import drop_known_rows
from farm.program import write_results_option
from farm.report.tables.failing_structures import find_only_failing_structure
from farm.reproduction.find_case import find_seed_of_row
from tasks.gradients.autograd import DeclaredOnce
from tasks.model import Status
from tasks.model.failing import describe_unjudged_rows
from tasks.model.row import INTERPRETED

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finding:
    """Failures of one kind: the case with the fewest elements, and how many there are. seed: of that case alone, None
    where its inputs were given; results: the lake that its row is in, "" if it was not kept; only_here: why no other
    process can run it again, "" if one can."""

    key: str
    seed: int | None
    case_id: str
    dtype: str
    shapes: str
    status: str
    kind: str
    message: str
    error_units: float | None
    count: int
    results: str
    only_here: str
    row: dict[str, Any] = field(repr=False, compare=False)

    @functools.cached_property
    def minimal(self) -> SmallerCase:
        """The case made smaller: `farm.minimise` with its strategy shrink-all."""
        if not self.results:
            raise ClientError("its row was not kept: to rerun it, give results=, a lake")
        return minimise(self.key, results=self.results)

    @property
    def command(self) -> str:
        """The command that shows it again, or the call where this process alone has the functions; "" if its row was
        not kept."""
        if not self.results:
            return ""
        if self.only_here:
            return f"farm.reproduce({self.key!r}, results={self.results!r})  # only in this process: {self.only_here}"
        return f"farm reproduce '{self.key}'{write_results_option(self.results)}"

    def __str__(self) -> str:
        more = f", {self.count} such cases" if self.count > 1 else ""
        drawn = f"; seed {self.seed}" if self.seed is not None else ""
        return f"{self.case_id} [{self.shapes}] {self.message}{more}{drawn}"


@dataclass(frozen=True)
class Result:
    """What a run found. rows: those of the lake; known: how many failures its known failures cover; imprecise: as
    findings, the results that have lost digits, which count as passed."""

    run_id: str
    results: str
    rows: pd.DataFrame = field(repr=False, compare=False)
    passed: int
    failed: int
    known: int
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    imprecise: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        told_ = ", ".join(f"{n} {name}" for name, n in self.counts.items())
        count = int((self.rows["execution"] == INTERPRETED).sum()) if len(self.rows) else 0
        lines = [
            f"run {self.run_id}: {len(self.rows)} cases: {told_}"
            + f" ({count} {INTERPRETED}, on no GPU)" * bool(count),
            *(f"  {f}" for f in self.findings + self.imprecise),
        ]
        return "\n".join([*lines, *(f"  not judged: {text}" for text in self._not_judged())])

    def check(self, imprecise: bool = True) -> None:
        """Raise AssertionError with every finding, if there is one, or with each check of which nothing was judged,
        unless the kernel declares that it has no second derivative. imprecise: whether results may be."""
        __tracebackhide__ = True  # pytest shows the test's line
        bad = self.findings + (() if imprecise else self.imprecise)
        if bad:
            told_ = [f"{f}\n    {f.command}" if f.command else str(f) for f in bad]
            several = [f"{sum(f.count for f in bad)} of {len(self.rows)} cases failed"] * (len(self.rows) > 1)
            raise AssertionError("\n".join([*several, *told_]))
        if not self.passed:
            raise AssertionError(f"nothing was judged: {'; '.join(self._not_judged()) or 'no case'}")
        if silent := list(self._silent()):
            raise AssertionError("\n".join(silent))

    def _silent(self) -> Iterator[str]:
        """Of each check that was asked for and has no judged row, why."""
        for check, rows in self.rows.groupby("check", sort=False):
            if any(Status(status).judged for status in rows["status"]):
                continue
            if (rows["error_type"] == DeclaredOnce.__name__).any():
                continue
            yield f"nothing was judged of {check}: {'; '.join(describe_unjudged_rows(zip(rows['status'], rows['error'])))}"

    def _not_judged(self) -> list[str]:
        return describe_unjudged_rows(zip(self.rows["status"], self.rows["error"]))


def make_kernel_result(
    rows: pd.DataFrame, record: Mapping[str, Any], results: str, config: Config, only_here: str
) -> Result:
    """The result of a run's rows."""
    rows = rows.assign(only=find_only_failing_structure(rows))
    failing = rows[rows["status"].isin([s.value for s in Status if s.failed])]
    new = drop_known_rows(failing, config)
    counts = {str(k): int(v) for k, v in rows["status"].value_counts().items()}
    good = sum(counts.get(s, 0) for s in (Status.PASS.value, Status.IMPRECISE.value))
    lost = drop_known_rows(rows[rows["status"] == Status.IMPRECISE.value], config)
    found, imprecise = (tuple(_group_kernel_findings(x, results, only_here)) for x in (new, lost))
    rows = rows.drop(columns="only")
    return Result(
        str(record["run_id"]), results, rows, good, len(new), len(failing) - len(new), counts, found, imprecise
    )


def _group_kernel_findings(failing: pd.DataFrame, results: str, only_here: str) -> Iterator[Finding]:
    """The failures, those of one check, dtype, status and kind together."""
    keys = ["check", "op", "dtype", "backend", "status", "kind"]
    for _, group in failing.groupby(keys, sort=False, dropna=False):
        elements = group["shapes"].map(_count_elements)
        row = {str(k): v for k, v in group.iloc[int(elements.argmin())].to_dict().items()}
        yield _format_finding(row, results, only_here, len(group))


def _count_elements(shapes: Any) -> int:
    total = 0
    for shape in str(shapes or "").split():
        count = 1
        for size in shape.split("x") if shape != "scalar" else ():
            count *= int(size)
        total += count
    return total


def _format_finding(row: dict[str, Any], results: str, only_here: str, count: int) -> Finding:
    units = row.get("error_units")
    only = row.pop("only", "")
    return Finding(
        str(RowKey.of(row)),
        find_seed_of_row(row),
        str(row["case_id"]),
        str(row["dtype"]),
        str(row["shapes"] or ""),
        str(row["status"]),
        str(row["kind"] or ""),
        f"{row['check']}: " * (row["check"] != "forward")
        + describe_client_row(row)
        + f"; {row['status']} {only}" * bool(only),
        None if units is None or units != units else float(units),
        count,
        results,
        only_here,
        dict(row),
    )
