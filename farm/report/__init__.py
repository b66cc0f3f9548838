"""Reports of a run: coverage tables as DataFrames, on the terminal, as CSV, Markdown and one HTML page."""

from __future__ import annotations

from farm.report.faces.files import write
from farm.report.faces.terminal import print_coverage
from farm.report.tables.agreement import case
from farm.report.tables.causes import broken, causes, stale, verdict
from farm.report.tables.changes import diff
from farm.report.tables.coverage import (
    SEVERITY,
    STATUSES,
    built,
    cell_matrix,
    coverage,
    latest,
    reproduce_command,
    status_table,
    unavailable,
    vendor_by_dtype,
    worst_matrix,
)
from farm.report.tables.findings import findings
from farm.report.tables.ranking import ranking
from farm.report.tables.since import since
from farm.report.tables.vendors import by_vendor, unique
from farm.report.tables.view import Report, View, views

__all__ = [
    "SEVERITY",
    "STATUSES",
    "Report",
    "View",
    "broken",
    "built",
    "by_vendor",
    "case",
    "causes",
    "cell_matrix",
    "coverage",
    "diff",
    "findings",
    "latest",
    "print_coverage",
    "ranking",
    "reproduce_command",
    "since",
    "stale",
    "status_table",
    "unavailable",
    "unique",
    "vendor_by_dtype",
    "verdict",
    "views",
    "worst_matrix",
    "write",
]
