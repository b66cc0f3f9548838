"""What `farm.report` offers."""

from farm.report.faces.files import write
from farm.report.faces.terminal import print_coverage
from farm.report.tables.agreement import case
from farm.report.tables.causes import causes, is_broken, stale, verdict
from farm.report.tables.changes import diff
from farm.report.tables.coverage import coverage, status_table, vendor_by_dtype
from farm.report.tables.findings import findings
from farm.report.tables.ranking import ranking
from farm.report.tables.since_last_run import since
from farm.report.tables.vendors import by_vendor, unique
from farm.report.tables.view import Report, View

__all__ = [
    "Report",
    "View",
    "by_vendor",
    "case",
    "causes",
    "coverage",
    "diff",
    "findings",
    "is_broken",
    "print_coverage",
    "ranking",
    "since",
    "stale",
    "status_table",
    "unique",
    "vendor_by_dtype",
    "verdict",
    "write",
]
