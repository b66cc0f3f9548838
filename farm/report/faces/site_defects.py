"""The defects of a site: what runs put their failures down to, in a table and each on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from farm.commandline import clean_line
from farm.lake.key import RowKey
from farm.plan.match_known import WHOSE
from farm.program import name_farm_program, write_results_option
from farm.report.faces.html import make_page_slug
from farm.report.faces.site_runs import make_link_column
from farm.report.tables.agreement import format_row_units, name_row_units
from farm.report.tables.causes import NEW, count_with_noun
from farm.report.tables.coverage import write_reproduce_command
from farm.report.tables.overview import describe_finding_size
from farm.report.tables.trends import RunSummary
from farm.report.tables.view import View, ViewCell, ViewColumn, make_status_column
from farm.report.words import DASH, format_report_number
from tasks.model.kind import OF_NUMBERS

#: Runs that a picture shows and a sparkline, on every page.
RUNS, SPARKS = 90, 48
#: Pages that a page leads to in one line, and characters of a script that is shown.
LINKS, SCRIPT = 30, 8_000
#: Words, and the page that they lead to, "" for none.
Part = tuple[str, str]
Facts = Sequence[tuple[str, Sequence[Part]]]


@dataclass(frozen=True)
class SiteMinimal:
    """A minimal case of a lake (`farm.lake.minimal`). record: what is known of it; script: that shows it, "" for
    none."""

    record: Mapping[str, Any]
    script: str = ""


@dataclass(frozen=True)
class SiteDefect:
    """What failures of one or several runs are put down to. seen: by place of a run, the oldest first, its lines of
    `CAUSE`; places: of the runs that could have had it, those of the same configs; shown: of the newest run of each of
    these configs that has it there, the first one where it is new, or of the last run that had it."""

    reason: str
    seen: Mapping[int, Sequence[Mapping[str, Any]]]
    places: Sequence[int]
    shown: Sequence[int]

    @property
    def first(self) -> int:
        """The place of the run that had it first."""
        return min(self.seen)

    @property
    def last(self) -> int:
        """The place of the last run that had it."""
        return max(self.seen)

    @property
    def line(self) -> Mapping[str, Any]:
        """What the first of the shown runs says of it, a new one before all others."""
        lines = self.seen[self.shown[0]]
        return next((line for line in lines if line["standing"] == NEW), lines[0])

    @property
    def labels(self) -> list[str]:
        """The ops of the shown runs, with their variants."""
        return self._names("labels")

    @property
    def backends(self) -> list[str]:
        """The backends of the shown runs."""
        return self._names("backends")

    @property
    def dtypes(self) -> list[str]:
        """The dtypes of the shown runs."""
        return self._names("dtypes")

    def _names(self, name: str) -> list[str]:
        lines = (line for at in self.shown for line in self.seen[at])
        return list(dict.fromkeys(one for line in lines for one in line[name].split(", ")))

    def count_now(self, name: str = "rows") -> int:
        """Its rows in the shown runs, or another count."""
        return sum(self.count(at, name) for at in self.shown)

    def count(self, at: int, name: str = "rows") -> int:
        """Its rows in a run, or another count."""
        return sum(int(line[name]) for line in self.seen.get(at, ()))

    @property
    def counts(self) -> tuple[int, ...]:
        """Its rows in the newest runs that could have had it, for a sparkline."""
        return tuple(self.count(at) for at in self.places[-SPARKS:])

    def count_by_run(self, runs: Sequence[RunSummary]) -> pd.DataFrame:
        """Its failures in the runs that could have had it, and the new ones: a line for each place."""
        counts = [self.count(at) for at in self.places]
        new = [
            sum(int(line["rows"]) for line in self.seen.get(at, ()) if line["standing"] == NEW)
            * runs[at].facts["listed"]
            for at in self.places
        ]
        return pd.DataFrame({"failures": counts, "new": new}, index=list(self.places))

    def strip(self, dates: Sequence[str]) -> tuple[tuple[str, int, str], ...]:
        """Run by run, whether it was seen; runs in a row that say the same as one."""
        told = []
        how = {at: lines[0]["status"] for at, lines in self.seen.items()}
        for outcome, some in groupby(self.places[-RUNS:], lambda at: how.get(at, "none")):
            places = list(some)
            rows = sorted({self.count(at) for at in places})
            between = dates[places[0]] + f" to {dates[places[-1]]} ({len(places)} runs)" * (len(places) > 1)
            counted = f"{rows[0]:,} to {rows[-1]:,} rows" if len(rows) > 1 else count_with_noun(rows[0], "row")
            told.append((outcome, len(places), f"{between}: {'not seen' if outcome == 'none' else counted}"))
        return tuple(told)


@dataclass(frozen=True)
class SiteBlock:
    """A part of a defect's page. facts: names and what they are; commands, texts: with their words."""

    title: str
    facts: Facts = ()
    commands: Sequence[tuple[str, str]] = ()
    texts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class SiteTold:
    """What a defect's page says."""

    sentences: Sequence[str]
    facts: Facts
    blocks: Sequence[SiteBlock] = field(default_factory=list)


def collect_site_defects(runs: Sequence[RunSummary]) -> list[SiteDefect]:
    """Those of runs: the ones of the newest runs first, of these the new ones, then the commonest."""
    seen: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for at, one in enumerate(runs):
        for line in one.causes:
            reason = line["reason"] or f"{line['status']} {line['all_ops']}"
            seen.setdefault(reason, {}).setdefault(at, []).append(line)
    found, newest = [], {one.facts["name"]: at for at, one in enumerate(runs)}
    for reason, by_run in seen.items():
        configs = {runs[at].facts["name"] for at in by_run}
        places = [at for at, one in enumerate(runs) if one.facts["name"] in configs]
        shown = [at for at in by_run if at in newest.values()] or [max(by_run)]
        new = {at for at in shown if runs[at].facts["listed"] and any(x["standing"] == NEW for x in by_run[at])}
        found.append(SiteDefect(reason, by_run, places, sorted(shown, key=lambda at: (at not in new, -at))))
    return sorted(found, key=lambda one: (-one.last, one.line["standing"] != NEW, -one.count_now()))


def view_site_defects(
    found: Sequence[SiteDefect], runs: Sequence[RunSummary], dates: Sequence[str], up: str, caption: str
) -> View:
    """A line for each defect, which leads to its page; ``up``: the way to the site's first page."""
    lines = [{"reason": one.reason, "status": one.line["status"], "one": one} for one in found]

    def standing(line: Mapping[str, Any]) -> ViewCell:
        told = say_defect_standing(line["one"], runs)
        return ViewCell(told, tone="alarm" if told == NEW else "")

    columns = [
        make_link_column("defect", "reason", "defect", up, length=120),
        make_status_column("status", "how"),
        ViewColumn("standing", standing),
        ViewColumn("failures", lambda line: f"{line['one'].count_now():,}", right=True),
        ViewColumn("backends", lambda line: clean_line(", ".join(line["one"].backends), 80), foreign=True),
        ViewColumn("dtypes", lambda line: clean_line(", ".join(line["one"].dtypes), 80), foreign=True),
        ViewColumn("first seen", lambda line: dates[line["one"].first], right=True),
        ViewColumn("last seen", lambda line: dates[line["one"].last], right=True),
        ViewColumn("failures by run", lambda line: ViewCell("", spark=line["one"].counts)),
    ]
    if not any(say_defect_standing(one, runs) for one in found):
        columns = [one for one in columns if one.cell is not standing]
    return View("defects", caption, pd.DataFrame(lines), columns, lines=lines, counted=True, unit="defects", open=True)


def say_defect_standing(one: SiteDefect, runs: Sequence[RunSummary]) -> str:
    """Whether a known failure covers it; "" where the config lists none."""
    return str(one.line["standing"]) if runs[one.shown[0]].facts["listed"] else ""


def describe_site_defect(
    one: SiteDefect,
    runs: Sequence[RunSummary],
    dates: Sequence[str],
    minimal: Sequence[SiteMinimal],
    labels: Set[str],
    backends: Set[str],
) -> SiteTold:
    """What the page of a defect says. labels, backends: those that have pages."""
    line, facts = one.line, runs[one.shown[0]].facts
    told: list[tuple[str, Sequence[Part]]] = [
        ("ops", _link_defect_names(one.labels, labels, "op")),
        ("dtypes", [(clean_line(", ".join(one.dtypes), 200), "")]),
        ("backends", _link_defect_names(one.backends, backends, "backend")),
        ("versions", [(clean_line(_say_defect_versions(one, runs), 300) or DASH, "")]),
        ("failures", [(f"{one.count_now():,} rows, {one.count_now('cases'):,} cases", "")]),
        ("first seen", [_link_defect_date(one.first, runs, dates)]),
        ("last seen", [_link_defect_date(one.last, runs, dates)]),
        ("seen in", [(f"{len(one.seen)} of {count_with_noun(len(one.places), 'run')}", "")]),
    ]
    key = RowKey(line["run_id"], line["case_id"], line["backend"])
    mine = _choose_minimal_for_defect(one, key, minimal)
    where = write_results_option(facts["results"])
    commands = [
        (
            "reproduce it",
            write_reproduce_command(key.run_id, key.case_id, key.backend, facts["results"], line["status"]),
        )
    ]
    if not mine:
        quoted = str(key).replace("'", "'\"'\"'")
        commands.append(("make the case small", f"{name_farm_program()} minimise '{quoted}'{where}"))
    blocks = [SiteBlock("Worst case", _describe_worst_defect_case(line, facts), commands)]
    if mine:
        blocks.append(_describe_minimal_on_site(mine))
    return SiteTold([_say_what_is_defect(one), _say_whose_defect(one, runs)], told, blocks)


def _say_what_is_defect(one: SiteDefect) -> str:
    """What is wrong, in a sentence: where, and of the worst case how much."""
    some = [*one.labels[:3], *[f"{len(one.labels) - 3} more ops"] * (len(one.labels) > 3)]
    what = f"{_join_defect_names(some)} of {_join_defect_names(one.dtypes)} on {_join_defect_names(one.backends)}"
    return f"{clean_line(what, 300)}: {one.line['status']}. Worst case: {describe_finding_size(one.line)}."


def _join_defect_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _link_defect_names(names: Sequence[str], there: Set[str], folder: str) -> list[Part]:
    more = [(f"and {len(names) - LINKS} more", "")] * (len(names) > LINKS)
    return [(clean_line(x), f"../{folder}/{make_page_slug(x)}" if x in there else "") for x in names[:LINKS]] + more


def _link_defect_date(at: int, runs: Sequence[RunSummary], dates: Sequence[str]) -> Part:
    """When a run began, which leads to its report."""
    to = runs[at].facts.get("report", "")
    return dates[at], f"../{to}" if to else ""


def _say_defect_versions(one: SiteDefect, runs: Sequence[RunSummary]) -> str:
    """The versions of the runtimes that had it, the oldest first."""
    told = [f"{x} {runs[at].facts['versions'].get(x, '')}".strip() for x in one.backends for at in sorted(one.seen)]
    return ", ".join(dict.fromkeys(told))


def _say_whose_defect(one: SiteDefect, runs: Sequence[RunSummary]) -> str:
    """Whether it is known, and whose it is."""
    if not runs[one.shown[0]].facts["listed"]:
        return "The config lists no known failures."
    if one.line["standing"] == NEW:
        return "New: no known failure covers it."
    whose = WHOSE.get(one.line["fault"], "")
    return "Known: a known failure covers it" + (f"; {whose}." if whose else ".")


def _describe_worst_defect_case(line: Mapping[str, Any], facts: Mapping[str, Any]) -> Facts:
    """The worst case of a defect with its numbers, of a line of `CAUSE`; facts: of its run."""
    backend = line["backend"]
    on = ", ".join(filter(None, (backend, facts["devices"].get(backend), facts["versions"].get(backend))))
    square = urlencode({"sel": f"{line['label']}|{backend}"})
    report = facts.get("report", "")
    told = [
        ("case", clean_line(line["case_id"]), f"../{report}#{square}" if report else ""),
        ("on", clean_line(on), ""),
        ("outcome", ", ".join(filter(None, (line["status"], clean_line(line["kind"]), clean_line(line["stage"])))), ""),
    ]
    if line["kind"] in ("", *OF_NUMBERS):
        far = line["max_ulp" if name_row_units(line["op_class"]) == "ulps" else "error_units"]
        told += [
            ("worst element (got for expected)", clean_line(line["worst"]) or DASH, ""),
            ("error", format_row_units(far, line["op_class"], line["limit"]), ""),
            ("error units", format_report_number(line["error_units"]), ""),
            ("largest absolute difference", format_report_number(line["max_diff"]), ""),
        ]
        if not pd.isna(line["beyond"]):
            told.append(("elements beyond the limit", f"{line['beyond']:,.0f} of {line['numel']:,.0f}", ""))
    if line["error"]:
        told.append(("message", clean_line(f"{line['error_type']}: {line['error']}".removeprefix(": "), 600), ""))
    return [(name, [(text, to)]) for name, text, to in told if text not in ("", DASH)]


def _choose_minimal_for_defect(one: SiteDefect, key: RowKey, minimal: Sequence[SiteMinimal]) -> SiteMinimal | None:
    """The minimal case of the worst row, or of another that failed in the same way; None for none."""
    ops = set(one.line["all_ops"].split(", "))

    def fits(made: SiteMinimal) -> bool:
        was = _read_record_mapping(made.record.get("original"))
        same = all(was.get(name) == one.line[name] for name in ("status", "kind"))
        return same and was.get("op") in ops and made.record["backend"] in one.backends

    exact = [x for x in minimal if RowKey.of(x.record) == key]
    return next(iter([*exact, *filter(fits, minimal)]), None)


def _read_record_mapping(value: Any) -> Mapping[str, Any]:
    """What a record should hold; an empty one where somebody else wrote it."""
    return value if isinstance(value, Mapping) else {}


def _describe_minimal_on_site(made: SiteMinimal) -> SiteBlock:
    """A minimal case: its inputs, expected and got, the script that shows it."""
    record = made.record
    inputs = [
        f"{x.get('name')} {x.get('dtype')} {x.get('shape')} {x.get('values') or x.get('how')}"
        for x in map(_read_record_mapping, record.get("inputs") or ())
    ]
    told = [
        ("op", str(record.get("op", ""))),
        ("inputs", "; ".join(inputs)),
        ("expected", str(record.get("expected") or "")),
        ("got", str(record.get("got") or "")),
    ]
    texts = [("script", made.script)] if 0 < len(made.script) <= SCRIPT else []
    facts = [(name, [(clean_line(text, 600), "")]) for name, text in told if text]
    return SiteBlock("Minimal case", facts, [("its folder", str(record.get("folder", "")))], texts)
