"""Many runs as a static site: pages that link to one another. They need no server, and a script only to search and to copy."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pandas as pd
from markupsafe import Markup

from farm.commandline import clean_line
from farm.exits import INCOMPLETE
from farm.report.faces import html
from farm.report.faces.html import HERE, make_page_slug, render_style_sheet, write_script_json
from farm.report.faces.site_defects import (
    RUNS,
    SPARKS,
    SiteDefect,
    SiteMinimal,
    collect_site_defects,
    describe_site_defect,
    view_site_defects,
)
from farm.report.faces.site_runs import build_run_view, make_count_columns, make_link_column, view_site_releases
from farm.report.faces.strip import StripBar, draw_badge, draw_failure_bars
from farm.report.tables.causes import count_with_noun
from farm.report.tables.changes import KINDS
from farm.report.tables.coverage import RANK, list_frame_lines, sort_backend_names
from farm.report.tables.gate import CLOSED, GATES, OPEN
from farm.report.tables.overview import make_rate_columns
from farm.report.tables.trends import (
    SQUARE,
    SUMMED,
    OutcomeStretch,
    RunSummary,
    RunTrends,
    count_failing_runs,
    find_trend_changes,
    list_outcome_stretches,
)
from farm.report.tables.view import Line, View, ViewCell, ViewColumn, make_status_column
from farm.report.words import DASH
from tasks.model import FORWARD, OpClass, Status

#: Lines of a table on a page, changes on the first page and on others.
LINES, CHANGES_SHOWN = 200, 60
#: The first page, and cells of a table on it.
FIRST, CELLS = "index.html", 160
#: So many turns from right to failed make a square a flaky one, as far as one can see.
TURNS = 2
#: So many flaky ops make a backend a flaky one.
BOARD = 5
#: Columns that say nothing of an op with one outcome.
SAME = ("runs failed", "run by run")
#: The frame of a table that is shown by its lines alone.
NOTHING = pd.DataFrame()
#: The title of the first page, by which the farm knows a site of its own, and what it was before.
TITLE = "Validation, run by run"
TITLES = (TITLE, "Validation, night by night")
#: What the strips mean.
STRIPS = "Each block of a strip is a stretch of runs with one outcome, oldest left; its tooltip names them."


def render_site_pages(trends: RunTrends, minimal: Sequence[SiteMinimal] = ()) -> Iterator[tuple[str, str]]:
    """(path, text) of every file of the site, the first page last: whoever finds it finds the others too. minimal: the
    minimal cases of the runs' lakes."""
    site = _SitePages(trends, minimal)
    yield "style.css", render_style_sheet()
    yield "site.js", (HERE / "site.js").read_text(encoding="utf-8")
    yield "names.js", site.names()
    yield from site.backends()
    yield from site.ops()
    yield from site.defects()
    yield from site.front()


class _SitePages:
    """The pages of trends; what they share is worked out once."""

    def __init__(self, trends: RunTrends, minimal: Sequence[SiteMinimal]) -> None:
        self.trends, self.runs, self.dates = trends, trends.runs, trends.dates
        self.minimal = minimal
        self.listed = any(one.facts["listed"] for one in self.runs)
        self.changes = find_trend_changes(trends)
        self.found = collect_site_defects(trends.runs)
        self.lines = [self._line(at, line) for at, line in enumerate(list_frame_lines(trends.squares))]
        self.labels, self.names_of_backends = ({line[name] for line in self.lines} for name in SQUARE)
        self.flaky = [line for line in self.lines if line["turns"] >= TURNS or line["gone"]]
        # What comes and goes would hide what came and stayed.
        hidden = {
            (one["label"], one["backend"]) for one in self.flaky if not (one["turns"] < TURNS and _has_line_failed(one))
        }
        last = self.changes.drop_duplicates(["label", "backend", "check", "dtype"])
        shown = [pair not in hidden for pair in zip(last["label"], last["backend"], strict=True)]
        lasting = last[pd.Series(shown, last.index, bool) & (last["status_a"] != last["status_b"])]
        self.lasting = lasting.assign(chance=_split_changes_by_chance(lasting, self.flaky, self.lines))

    def names(self) -> str:
        """The script with what the search box finds: kind, words and page of each op, backend and defect."""
        every = [
            *(("op", name, f"op/{make_page_slug(name)}") for name in sorted(self.labels)),
            *(("backend", name, f"backend/{make_page_slug(name)}") for name in sorted(self.names_of_backends)),
            *(("defect", one.reason, f"defect/{make_page_slug(one.reason)}") for one in self.found),
        ]
        return f"const NAMES = {write_script_json([(kind, clean_line(name, 160), to) for kind, name, to in every])};\n"

    def _line(self, at: int, line: dict[str, Any]) -> dict[str, Any]:
        series = self.trends.series(at)
        bad, turns, gone = count_failing_runs(series)
        return {
            **line,
            "series": series,
            "since": series[-1].first,
            "bad": bad,
            "turns": turns,
            "gone": gone,
            "runs": sum(one.runs for one in series),
        }

    def _page(self, path: str, title: str, views: Sequence[View], **more: Any) -> Iterator[tuple[str, str]]:
        """A page, after those that its long tables go on in."""
        begins: list[View] = []
        pagers: dict[str, list[tuple[str, str]]] = {}
        for view in views:
            lines = view.all_lines()
            # The first page has many tables.
            size = min(LINES, CELLS // max(len(view.columns), 1)) if path == FIRST else LINES
            firsts = range(0, len(lines), size)
            if view.most or len(firsts) < 2:
                begins.append(view)
                continue
            stem, caption = f"{path.removesuffix('.html')}-{view.name}", f"{view.caption}: {len(lines):,} {view.unit}"
            paths = [path, *(f"{stem}-{k}.html" for k in range(2, len(firsts) + 1))]
            for at, first in zip(paths, firsts, strict=True):
                part = replace(view, lines=lines[first : first + size], caption=caption, counted=False)
                links = [
                    (f"{k + 1:,}–{min(k + size, len(lines)):,}", "" if to == at else to.rpartition("/")[2])
                    for to, k in zip(paths, firsts, strict=True)
                ]
                if at == path:
                    begins.append(part)
                    pagers[view.name] = links
                else:
                    yield at, _render_site_page(at, title, [replace(part, open=True)], pagers={view.name: links})
        yield path, _render_site_page(path, title, begins, pagers=pagers, **more)

    # --- columns ----------------------------------------------------------------------------------------------------

    def _columns(self, what: str, folder: str) -> list[ViewColumn]:
        """Of a table of squares; ``what``: the column that leads on, to pages in ``folder``."""
        words = {"label": "op"}.get(what, what)
        return [
            make_link_column(words, what, folder, "../"),
            make_status_column("worst", "now"),
            ViewColumn("since", lambda line: self.dates[line["since"]], right=True),
            ViewColumn("runs failed", _count_failed_runs, right=True),
            make_rate_columns()[1],
            ViewColumn("run by run", lambda line: _draw_site_strip(self.dates, line["series"])),
        ]

    def _squares(self, name: str, lines: Sequence[Line], what: str, folder: str) -> View:
        lines = sorted(lines, key=lambda one: (RANK[one["worst"]], -one["bad"], one[what]))
        caption = {"label": "Ops, worst first", "backend": "Backends, worst first"}[what]
        columns = self._columns(what, folder)
        return View(
            name, caption, NOTHING, columns, lines=lines, notes=[STRIPS], open=True, counted=True, unit=f"{folder}s"
        )

    def _ops(self, lines: Sequence[Line]) -> Iterator[View]:
        """Of a backend: what fails or has changed, and, folded (a browser draws it when it is opened), what was the
        same and no failure in every run."""
        still = [one for one in lines if not _has_line_failed(one) and len(one["series"]) == 1]
        same = {one["label"] for one in still}
        told = [one for one in lines if one["label"] not in same]
        if told:
            yield self._squares("ops", told, "label", "op")
        if still:
            view = self._squares("still", still, "label", "op")
            columns = [one for one in self._columns("label", "op") if one.words not in SAME]
            caption = "Ops with the same outcome in every run"
            yield replace(view, caption=caption, columns=columns, notes=(), open=False)

    def _build_change_view(
        self, table: pd.DataFrame, up: str, caption: str = "What changed from run to run", known: str = ""
    ) -> View:
        """known: the column that is the page's own."""
        columns = [
            ViewColumn("run", lambda line: self.dates[line["run"]], right=True),
            ViewColumn("change", lambda line: ViewCell(_write_change_cell(line), tone=KINDS[line["change"]].tone)),
            make_link_column("op", "label", "op", up),
            ViewColumn("dtype", lambda line: line["dtype"] + f" {line['check']}" * (line["check"] != FORWARD)),
            make_link_column("backend", "backend", "backend", up),
            make_status_column("status_a", "before"),
            make_status_column("status_b", "after"),
            ViewColumn("runtime", self._versions, foreign=True),
        ]
        return View(
            "changes",
            caption,
            table,
            [one for one in columns if one.words != known],
            lines=list_frame_lines(table) if len(table) else (),
            unit="cells",
            counted=True,
            open=True,
            most=CHANGES_SHOWN,
            empty="Nothing changed from run to run.",
        )

    def _versions(self, line: Line) -> str:
        """The version of a backend's runtime in the run of a change; both, where the one before had another."""
        places = [line[at] for at in ("earlier", "run") if line[at] >= 0]
        told = [self.runs[at].facts["versions"].get(line["backend"]) or "" for at in places]
        return clean_line(" → ".join(dict.fromkeys(filter(None, told))))

    def _count(self, what: str) -> str:
        """How many of something all runs have, by the words of `count_run`."""
        return count_with_noun(sum(one.facts[what] for one in self.runs), what.removesuffix("s"))

    def _chart(self, sums: pd.DataFrame) -> Markup:
        """Failures of runs, from a frame with their places as index and failures, new."""
        shown = sums.iloc[-RUNS:]
        told = []
        for at, failed, new in zip(shown.index, shown["failures"], shown["new"], strict=True):
            words = (
                f"{self.dates[at]} {clean_line(self.runs[at].facts['name'])}: {count_with_noun(int(failed), 'failure')}"
            )
            told.append(StripBar(self.dates[at], words + f", {new} new" * self.listed, int(failed), int(new)))
        return draw_failure_bars(told, "failures")

    def _sparkline(self, sums: pd.DataFrame, name: str) -> ViewColumn:
        """Failures by run, of each value of a column; ``sums``: those of all."""
        table = sums["failures"].unstack(level=0, fill_value=-1).iloc[:, -SPARKS:]
        counts = dict(zip(table.index, map(tuple, table.to_numpy().tolist()), strict=True))
        return ViewColumn("failures by run", lambda line: ViewCell("", spark=counts[line[name]]))

    def _counts(self) -> list[ViewColumn]:
        """Failures, and the new ones of them where a config says what is known."""
        return make_count_columns(self.listed)

    def _defects_of(self, words: str, up: str, mine: Callable[[SiteDefect], bool]) -> Iterator[View]:
        """The defects that an op or a backend has."""
        if some := [one for one in self.found if mine(one)]:
            yield view_site_defects(some, self.runs, self.dates, up, words)

    # --- pages ------------------------------------------------------------------------------------------------------

    def backends(self) -> Iterator[tuple[str, str]]:
        """A page for each."""
        sums, changes = self.trends.sums("backend"), dict(list(self.changes.groupby("backend")))
        for name, lines in _group_site_lines(self.lines, "backend"):
            mine = pd.DataFrame(sums.xs(name, level=1))
            last = {str(name): value for name, value in mine.iloc[-1].items()}
            views = [
                *self._defects_of("Defects of this backend", "../", lambda one: name in one.backends),  # noqa: B023
                self._build_change_view(changes.get(name, self.changes[:0]), "../", known="backend"),
                view_site_releases(self.runs, self.dates, name, mine),
                *self._ops(lines),
            ]
            newest = self.runs[mine.index[-1]].facts
            yield from self._page(
                f"backend/{make_page_slug(name)}",
                name,
                views,
                facts=[
                    ("vendor", [(clean_line(lines[0]["vendor"]), "")]),
                    ("device", [(clean_line(newest["devices"].get(name, "")) or DASH, "")]),
                    ("version", [(clean_line(newest["versions"].get(name, "")) or DASH, "")]),
                    (
                        "newest run",
                        [(f"{self.dates[mine.index[-1]]} {clean_line(newest['name'])}", newest.get("report", ""))],
                    ),
                    *((one.words, [(str(one.cell(last)), "")]) for one in make_rate_columns()),
                    ("failures", [(self._say_failures(last), "")]),
                ],
                chart=self._chart(mine),
                chart_words=self._say_chart(),
            )

    def ops(self) -> Iterator[tuple[str, str]]:
        """A page for each; whole models are ops."""
        changes = dict(list(self.changes.groupby("label")))
        for name, lines in _group_site_lines(self.lines, "label"):
            views = [
                *self._defects_of("Defects of this op", "../", lambda one: name in one.labels),  # noqa: B023
                self._squares("backends", lines, "backend", "backend"),
                self._build_change_view(changes.get(name, self.changes[:0]), "../", known="op"),
            ]
            yield from self._page(f"op/{make_page_slug(name)}", clean_line(name), views)

    def defects(self) -> Iterator[tuple[str, str]]:
        """A page for each cause of failures: what it is, where, since when, and how to see it."""
        for one in self.found:
            told = describe_site_defect(one, self.runs, self.dates, self.minimal, self.labels, self.names_of_backends)
            yield from self._page(
                f"defect/{make_page_slug(one.reason)}",
                clean_line(one.reason, 160),
                [],
                lead=[("", sentence) for sentence in told.sentences],
                facts=told.facts,
                blocks=told.blocks,
                history=one.strip(self.dates),
                chart=self._chart(one.count_by_run(self.runs)),
                chart_words="Rows that failed in this way, by run; a stroke on the axis is a run without any.",
            )

    def front(self) -> Iterator[tuple[str, str]]:
        """The first page, and a badge of each config."""
        newest = {one.facts["name"]: one for one in self.runs}
        for name, one in newest.items():
            short = "passing" if one.facts["tone"] == "ok" else re.split("[,;] ", one.facts["verdict"])[0]
            yield (
                f"badge-{make_page_slug(name).removesuffix('.html')}.svg",
                draw_badge(clean_line(name, 24), clean_line(short, 40), one.facts["tone"]),
            )
        total = pd.DataFrame([dict(one.facts) for one in self.runs])[["failures", "new"]]
        yield from self._page(
            FIRST,
            TITLE,
            [
                *_collect_site_gates(self.trends),
                *self._defects_of("Defects, last seen first", "", lambda one: True),
                self._vendors(),
                self._backend_list(),
                self._build_change_view(self.lasting, "", "Changes that stayed"),
                *_list_flaky_on_site(self.flaky),
                build_run_view(self.runs, self.listed),
                *self._models(),
                self._op_list(),
            ],
            verdicts=[told for name, one in newest.items() for told in _make_site_verdicts(name, one)],
            lead=[
                (
                    "",
                    f"{count_with_noun(len(self.runs), 'run')}, {self._count('rows')} of {self._count('cells')}, {self._count('failures')}",
                )
            ],
            chart=self._chart(total),
            chart_words=self._say_chart(),
        )

    def _say_failures(self, sums: Mapping[str, Any]) -> str:
        return f"{int(sums['failures']):,}" + f", {int(sums['new']):,} new" * self.listed

    def _say_chart(self) -> str:
        """What stands below a chart of failures."""
        red = (
            "red: new, no known failure covers them."
            if self.listed
            else "no config lists known failures, so none is called new."
        )
        return f"Rows that failed, by run; a stroke on the axis is a run without any; {red}"

    def _sum_view(self, by: str, caption: str, more: Sequence[ViewColumn], notes: Sequence[str] = ()) -> View:
        squares = self.trends.once() if by == "vendor" else self.trends.squares
        newest = squares.groupby(by)[SUMMED].sum().reset_index()
        columns = [*more, *make_rate_columns(), *self._counts(), self._sparkline(self.trends.sums(by), by)]
        return View(f"{by}s", caption, newest, columns, lines=list_frame_lines(newest), open=True, notes=notes)

    def _vendors(self) -> View:
        named = self.trends.squares.groupby("vendor")["backend"].unique().map(sorted).map(", ".join)
        return self._sum_view(
            "vendor",
            "Vendors, by the newest outcome of every op",
            [
                ViewColumn("vendor", lambda line: clean_line(line["vendor"]), foreign=True),
                ViewColumn("backends", lambda line: clean_line(named[line["vendor"]]), foreign=True),
            ],
            notes=["Modes of one runtime count once, by the worst of them."] if self._has_modes() else (),
        )

    def _has_modes(self) -> bool:
        return len(self.trends.once()) < len(self.trends.squares)

    def _backend_list(self) -> View:
        vendor = self.trends.squares.drop_duplicates("backend").set_index("backend")["vendor"]
        view = self._sum_view(
            "backend",
            "Backends, by the newest outcome of every op",
            [
                make_link_column("backend", "backend", "backend"),
                ViewColumn("vendor", lambda line: clean_line(vendor[line["backend"]]), foreign=True),
            ],
        )
        lines = sorted(view.all_lines(), key=lambda one: sort_backend_names(vendor[one["backend"]], one["backend"]))
        return replace(view, lines=lines)

    def _models(self) -> Iterator[View]:
        lines = [one for one in self.lines if one["op_class"] == OpClass.MODEL.value]
        if lines:
            yield _make_op_index("models", "Models", lines)

    def _op_list(self) -> View:
        return _make_op_index("ops", "Ops", self.lines)


def _render_site_page(path: str, title: str, views: Sequence[View], **more: Any) -> str:
    given = {"up": "../" * path.count("/"), "limit": LINES, "words_beside": True, "chart": "", "chart_words": ""}
    given["sources"] = Markup("script-src 'self' file:; style-src 'self' file:; img-src 'self' data:")
    return html.render_html("site.html.j2", title, views, **{"facts": (), "blocks": (), "history": (), **given, **more})


def _make_op_index(name: str, caption: str, lines: Sequence[Line]) -> View:
    """One line for each op, with what it is at worst anywhere."""
    found = []
    for label, some in _group_site_lines(lines, "label"):
        worst = min(some, key=lambda one: RANK[one["worst"]])
        failed = sorted(one["backend"] for one in some if _has_line_failed(one))
        count = sum(one["failures"] for one in some)
        found.append({"label": label, "worst": worst["worst"], "failed": ", ".join(failed), "failures": count})
    found.sort(key=lambda one: (RANK[one["worst"]], -one["failures"], one["label"]))
    columns = [
        make_link_column("op", "label", "op"),
        make_status_column("worst", "at worst"),
        make_count_columns(False)[0],
        ViewColumn("fails on", lambda line: clean_line(line["failed"], 200), foreign=True),
    ]
    return View(name, f"{caption}, worst first", pd.DataFrame(found), columns, lines=found, counted=True, unit="ops")


#: A gate as an outcome, whose colour it has.
SHOWN = {OPEN: Status.PASS.value, CLOSED: Status.WRONG.value, GATES[INCOMPLETE]: Status.UNSUPPORTED.value}


def _make_site_verdicts(name: str, run: RunSummary) -> Iterator[tuple[str, str, str]]:
    """(tone, sentence, small words before it) of a config's newest run and of its gate."""
    facts = run.facts
    yield facts["tone"], facts["verdict"], f"{clean_line(name)} {run.began}"
    if facts["gate"]:
        yield {OPEN: "ok", CLOSED: "new"}.get(facts["gate"], ""), facts["gate_said"], name


def _collect_site_gates(trends: RunTrends) -> Iterator[View]:
    """The gate of each config that has one, run by run."""
    lines, runs, dates = [], trends.runs, trends.dates
    for name in dict.fromkeys(one.facts["name"] for one in runs):
        states = [(at, n.facts["gate"]) for at, n in enumerate(runs) if n.facts["name"] == name and n.facts["gate"]]
        if states:
            series, shut = list_outcome_stretches(states), sum(state == CLOSED for _, state in states)
            told = {"config": name, "now": series[-1].outcome, "since": series[-1].first, "series": series}
            lines.append({**told, "closed": f"{shut} of {len(states)}"})
    columns = [
        ViewColumn("config", lambda line: clean_line(line["config"]), foreign=True),
        ViewColumn("now", lambda line: ViewCell(line["now"], tone="alarm" if line["now"] == CLOSED else "")),
        ViewColumn("since", lambda line: dates[line["since"]], right=True),
        ViewColumn("runs closed", lambda line: line["closed"], right=True),
        ViewColumn("run by run", lambda line: _draw_site_strip(dates, line["series"])),
    ]
    if lines:
        yield View("gates", "Gates: may it ship", pd.DataFrame(lines), columns, lines=lines, notes=[STRIPS], open=True)


def _draw_site_strip(dates: Sequence[str], series: Sequence[OutcomeStretch]) -> ViewCell:
    """The last runs of a series."""
    blocks, left = [], RUNS
    for one in reversed(series):
        first, last = dates[one.first], dates[one.last]
        between = first if first == last else f"{first} to {last}"
        words = f"{one.outcome} {between} ({count_with_noun(one.runs, 'run')})"
        blocks.append((SHOWN.get(one.outcome, one.outcome), min(one.runs, left), words))
        left -= one.runs
        if left <= 0:
            break
    return ViewCell("", strip=tuple(blocks[::-1]))


def _list_flaky_on_site(flaky: Sequence[Line]) -> Iterator[View]:
    """Backends with squares that come and go."""
    lines = [
        {
            "backend": name,
            "squares": len(some),
            "runs": sum(one["bad"] for one in some),
            "ops": [one["label"] for one in some],
        }
        for name, some in _group_site_lines(flaky, "backend")
    ]
    lines.sort(key=lambda one: -one["squares"])  # type: ignore[operator]
    columns = [
        make_link_column("backend", "backend", "backend"),
        ViewColumn("ops", lambda line: str(line["squares"]), right=True),
        ViewColumn("runs failed", lambda line: str(line["runs"]), right=True),
        ViewColumn("such as", lambda line: clean_line(", ".join(line["ops"]), 160), foreign=True),
    ]
    if lines:
        caption = f"Flaky: failed in a single run, or again (at least {TURNS} times)"
        yield View("flaky", caption, pd.DataFrame(lines), columns, lines=lines, open=True)


def _split_changes_by_chance(changes: pd.DataFrame, flaky: Sequence[Line], every: Sequence[Line]) -> pd.Series:
    """Which changes are of the last run of a backend of which many ops come and go: nobody knows yet whether they
    stay."""
    last = {name: max(one["series"][-1].last for one in some) for name, some in _group_site_lines(every, "backend")}
    boards = pd.Series([one["backend"] for one in flaky], dtype=object).value_counts()
    newest = changes["run"] == changes["backend"].map(last)
    return newest & changes["backend"].isin(boards[boards >= BOARD].index)


def _write_change_cell(line: Line) -> str:
    return f"{line['change']}, of a flaky backend" if line.get("chance") else str(line["change"])


def _group_site_lines(lines: Sequence[Line], by: str) -> Iterator[tuple[str, list[Line]]]:
    key = operator.itemgetter(by)
    for name, some in groupby(sorted(lines, key=key), key=key):
        yield name, list(some)


def _has_line_failed(line: Line) -> bool:
    return Status(line["worst"]).failed


def _count_failed_runs(line: Line) -> str:
    if not line["bad"]:
        return f"0 of {line['runs']}"
    return f"{line['bad']} of {line['runs']}" + f", {count_with_noun(line['turns'], 'time')} again" * bool(
        line["turns"]
    )
