"""Reports of a run: its rows loaded; tables of coverage, verdicts, cells and changes as DataFrames; on the terminal, as CSV, Markdown and HTML pages."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farm.report.exports import *  # noqa: F403


def __getattr__(name: str) -> object:
    """What `farm.report.exports` has, which is imported when it is asked for: a command's help does not pay for
    pandas."""
    if not name.startswith("_") and name in getattr(exports := import_module("farm.report.exports"), "__all__", ()):
        return getattr(exports, name)
    raise AttributeError(f"module 'farm.report' has no attribute {name!r}")
