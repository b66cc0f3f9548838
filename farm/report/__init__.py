"""Reports of a run: coverage tables as DataFrames, on the terminal, as CSV, Markdown and one HTML page."""

from __future__ import annotations

from farm.report.agreement import case
from farm.report.changes import diff
from farm.report.coverage import (
    SEVERITY,
    STATUSES,
    broken,
    built,
    cell_matrix,
    coverage,
    findings,
    latest,
    reproduce_command,
    status_table,
    unavailable,
    vendor_by_dtype,
    worst_matrix,
)
from farm.report.files import write
from farm.report.terminal import print_coverage
from farm.report.vendors import by_vendor, unique

__all__ = [
    "SEVERITY",
    "STATUSES",
    "broken",
    "built",
    "by_vendor",
    "case",
    "cell_matrix",
    "coverage",
    "diff",
    "findings",
    "latest",
    "print_coverage",
    "reproduce_command",
    "status_table",
    "unavailable",
    "unique",
    "vendor_by_dtype",
    "worst_matrix",
    "write",
]
