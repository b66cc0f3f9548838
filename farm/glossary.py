"""The words of every output, each with one sentence: `farm help terms`, the page's tooltips, the foot of Markdown."""

from __future__ import annotations

#: What the error of a result is counted in, as it stands beside a table.
UNITS = {
    "ulps": "ulps: units in the last place of the result, for ops that can be computed accurately on any input.",
    "units": "units: error units. One is the error that rounding the inputs and the result once can cause.",
}
#: What is counted.
TERMS = {
    "case": "an op in a dtype on one sample of inputs, under one check.",
    "row": "a case on a backend, and what came of it.",
    "cell": "all samples of an op in a dtype on a backend.",
    "weak pass": "a pass that is no evidence: a constant output would have passed too.",
    "coverage": "what was judged, of what was planned and is valid.",
    "pass rate": "what passed or is imprecise, of what was judged.",
    "limit": "the error up to which a result passes, in the units of its op.",
    "floor": "how far the exact result moves when the inputs move by their own rounding.",
    "known failure": "a failure that a list of the config names, with its reason: reported, and no reason to fail the run.",
    "finding": "one distinct defect; many rows may have it.",
    "lake": "the folder of Parquet files that keeps every row of every run.",
}
#: Those that a report is read with.
_OF_A_REPORT = ("case", "row", "cell", "weak pass")


def describe_report_terms() -> str:
    """The terms and units of a report's tables, in one line."""
    terms = [f"{name}: {TERMS[name]}" for name in _OF_A_REPORT]
    return " ".join(["Terms:", *terms, *UNITS.values()])
