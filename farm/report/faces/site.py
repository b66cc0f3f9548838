"""Many runs as a static site: pages that link to one another, without a script and without a server."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pandas as pd
from markupsafe import Markup

from farm.commandline import plain
from farm.exits import INCOMPLETE
from farm.report.faces import html
from farm.report.faces.html import slug, style
from farm.report.faces.site_runs import new_column, releases, runs
from farm.report.faces.strip import badge, bars
from farm.report.tables.causes import many
from farm.report.tables.changes import KINDS
from farm.report.tables.coverage import SEVERITY, backend_order, records
from farm.report.tables.gate import CLOSED, GATES, OPEN
from farm.report.tables.trends import COUNTS, Night, Stretch, Trends, failures, find_changes, stretches
from farm.report.tables.view import Cell, Column, Line, View, status
from farm.report.words import percent
from tasks.model import FORWARD, OpClass, Status

#: Nights that pictures show, lines of a table on a page, changes on the first page and on others.
NIGHTS, LINES, CHANGES_SHOWN = 120, 200, 60
#: So many turns from right to failed make a square a flaky one, as far as one can see.
TURNS = 2
#: So many flaky ops make a backend a flaky one.
BOARD = 5
#: Columns that say nothing of an op with one outcome.
SAME = ("nights failed", "night by night")
#: The frame of a table that is shown by its lines alone.
NOTHING = pd.DataFrame()
#: The title of the first page, by which the farm knows a site of its own.
TITLE = "Validation, night by night"
#: What the strips mean.
STRIPS = "Each block of a strip is a stretch of nights with one outcome, oldest left; its tooltip names them."


def pages(trends: Trends) -> Iterator[tuple[str, str]]:
    """(path, text) of every file of the site, the first page last: whoever finds it finds the others too."""
    site = _Site(trends)
    yield "style.css", style()
    yield from site.backends()
    yield from site.ops()
    yield from site.defects()
    yield from site.front()


#: Below a chart of failures.
CHART_WORDS = "Rows that failed by a backend's own fault, night by night; red: no known failure covers them."


class _Site:
    """The pages of trends; what they share is worked out once."""

    def __init__(self, trends: Trends) -> None:
        self.trends, self.nights = trends, trends.nights
        self.changes = find_changes(trends)
        self.lines = [self._line(at, line) for at, line in enumerate(records(trends.squares))]
        self.flaky = [line for line in self.lines if line["turns"] >= TURNS or line["gone"]]
        # What comes and goes would hide what came and stayed.
        hidden = {
            (one["label"], one["backend"]) for one in self.flaky if not (one["turns"] < TURNS and _has_failed(one))
        }
        last = self.changes.drop_duplicates(["label", "backend", "check", "dtype"])
        shown = [pair not in hidden for pair in zip(last["label"], last["backend"], strict=True)]
        lasting = last[pd.Series(shown, last.index, bool) & (last["status_a"] != last["status_b"])]
        self.lasting = lasting.assign(chance=_by_chance(lasting, self.flaky, self.lines))

    def _line(self, at: int, line: dict[str, Any]) -> dict[str, Any]:
        series = self.trends.series(at)
        bad, turns, gone = failures(series)
        return {
            **line,
            "series": series,
            "since": series[-1].first,
            "bad": bad,
            "turns": turns,
            "gone": gone,
            "nights": sum(one.nights for one in series),
        }

    def _page(self, path: str, title: str, views: Sequence[View], **more: Any) -> Iterator[tuple[str, str]]:
        """A page, after those that its long tables go on in."""
        begins: list[View] = []
        pagers: dict[str, list[tuple[str, str]]] = {}
        for view in views:
            lines = view.all_lines()
            firsts = range(0, len(lines), LINES)
            if view.most or len(firsts) < 2:
                begins.append(view)
                continue
            stem, caption = f"{path.removesuffix('.html')}-{view.name}", f"{view.caption}: {len(lines):,} {view.unit}"
            paths = [path, *(f"{stem}-{k}.html" for k in range(2, len(firsts) + 1))]
            for at, first in zip(paths, firsts, strict=True):
                part = replace(view, lines=lines[first : first + LINES], caption=caption, counted=False)
                links = [
                    (f"{k + 1:,}–{min(k + LINES, len(lines)):,}", "" if to == at else to.rpartition("/")[2])
                    for to, k in zip(paths, firsts, strict=True)
                ]
                if at == path:
                    begins.append(part)
                    pagers[view.name] = links
                else:
                    yield at, _render(at, title, [replace(part, open=True)], pagers={view.name: links})
        yield path, _render(path, title, begins, pagers=pagers, **more)

    # --- columns ----------------------------------------------------------------------------------------------------

    def _columns(self, what: str, folder: str) -> list[Column]:
        """Of a table of squares; ``what``: the column that leads on, to pages in ``folder``."""
        words = {"label": "op"}.get(what, what)
        return [
            _link(words, what, folder, "../"),
            status("worst", "now"),
            Column("since", lambda line: self.nights[line["since"]].day, right=True),
            Column("nights failed", _nights, right=True),
            Column("passed", lambda line: percent(line["passed"], line["judged"]), right=True),
            Column("night by night", lambda line: _draw_night_strip(self.nights, line["series"])),
        ]

    def _squares(self, name: str, lines: Sequence[Line], what: str, folder: str) -> View:
        place = {status: k for k, status in enumerate(SEVERITY)}
        lines = sorted(lines, key=lambda one: (place[one["worst"]], -one["bad"], one[what]))
        caption = {"label": "Ops, worst first", "backend": "Backends, worst first"}[what]
        columns = self._columns(what, folder)
        return View(
            name, caption, NOTHING, columns, lines=lines, notes=[STRIPS], open=True, counted=True, unit=f"{folder}s"
        )

    def _ops(self, lines: Sequence[Line]) -> Iterator[View]:
        """Of a backend: what fails or has changed, and, folded (a browser draws it when it is opened), what was the same and no failure
        every night."""
        still = [one for one in lines if not _has_failed(one) and len(one["series"]) == 1]
        same = {one["label"] for one in still}
        told = [one for one in lines if one["label"] not in same]
        if told:
            yield self._squares("ops", told, "label", "op")
        if still:
            view = self._squares("still", still, "label", "op")
            columns = [one for one in self._columns("label", "op") if one.words not in SAME]
            caption = "Ops with the same outcome every night"
            yield replace(view, caption=caption, columns=columns, notes=(), open=False)

    def _build_change_view(
        self, table: pd.DataFrame, up: str, caption: str = "What changed from night to night", known: str = ""
    ) -> View:
        """known: the column that is the page's own."""
        columns = [
            Column("night", lambda line: self.nights[line["night"]].day, right=True),
            Column("change", lambda line: Cell(_change(line), tone=KINDS[line["change"]].tone)),
            _link("op", "label", "op", up),
            Column("dtype", lambda line: line["dtype"] + f" {line['check']}" * (line["check"] != FORWARD)),
            _link("backend", "backend", "backend", up),
            status("status_a", "before"),
            status("status_b", "after"),
            Column("runtime", self._versions, foreign=True),
        ]
        return View(
            "changes",
            caption,
            table,
            [one for one in columns if one.words != known],
            lines=records(table) if len(table) else (),
            unit="cells",
            counted=True,
            open=True,
            most=CHANGES_SHOWN,
            empty="Nothing changed from night to night.",
        )

    def _versions(self, line: Line) -> str:
        """The version of a backend's runtime in the night of a change; both, where the one before had another."""
        places = [line[at] for at in ("earlier", "night") if line[at] >= 0]
        told = [self.nights[at].facts["versions"].get(line["backend"]) or "" for at in places]
        return plain(" → ".join(dict.fromkeys(filter(None, told))))

    def _count(self, what: str) -> str:
        """How many of something all runs have, by the words of `count_run`."""
        return many(sum(one.facts[what] for one in self.nights), what.removesuffix("s"))

    def _chart(self, sums: pd.DataFrame) -> Markup:
        """Failures of nights, from a frame with their places as index and `COUNTS`, new."""
        shown = sums.iloc[-NIGHTS:]
        told = [
            (
                f"{self.nights[at].day} {self.nights[at].facts['name']}: {failed} failed by a backend's fault, {new} new",
                int(failed),
                int(new),
            )
            for at, failed, new in zip(shown.index, shown["failed"], shown["new"], strict=True)
        ]
        return bars(told)

    # --- pages ------------------------------------------------------------------------------------------------------

    def backends(self) -> Iterator[tuple[str, str]]:
        """A page for each."""
        sums, changes = self.trends.sums("backend"), dict(list(self.changes.groupby("backend")))
        for name, lines in _groups(self.lines, "backend"):
            mine = pd.DataFrame(sums.xs(name, level=1))
            views = [
                self._build_change_view(changes.get(name, self.changes[:0]), "../", known="backend"),
                releases(self.nights, name, mine),
                *self._ops(lines),
            ]
            yield from self._page(
                f"backend/{slug(name)}",
                name,
                views,
                lead=[("", f"vendor: {plain(lines[0]['vendor'])}"), ("", f"newest night: {_newest(mine)}")],
                chart=self._chart(mine),
                chart_words=CHART_WORDS,
            )

    def ops(self) -> Iterator[tuple[str, str]]:
        """A page for each; whole models are ops."""
        changes = dict(list(self.changes.groupby("label")))
        for name, lines in _groups(self.lines, "label"):
            views = [
                self._squares("backends", lines, "backend", "backend"),
                self._build_change_view(changes.get(name, self.changes[:0]), "../", known="op"),
            ]
            yield from self._page(f"op/{slug(name)}", plain(name), views)

    def defects(self) -> Iterator[tuple[str, str]]:
        """A page for each cause, with the nights that had it."""
        for reason, seen in self._causes().items():
            night, line = seen[-1]
            counts = {at: int(one["rows"]) for at, one in seen}
            new = {at: int(one["rows"]) * (one["standing"] == "new") for at, one in seen}
            frame = pd.DataFrame({"failed": counts, "new": new}).reindex(
                range(seen[0][0], len(self.nights)), fill_value=0
            )
            told = pd.DataFrame([{name: plain(line[name]) for name in ("status", "ops", "backends", "cases")}])
            views = [View("last_seen", f"Last seen {self.nights[night].day}", told, open=True)]
            yield from self._page(
                f"defect/{slug(reason)}",
                plain(reason, 160),
                views,
                lead=[
                    ("", f"{line['standing']}; seen in {many(len(seen), 'night')}, first {self.nights[seen[0][0]].day}")
                ],
                chart=self._chart(frame),
                chart_words="Rows, night by night.",
            )

    def front(self) -> Iterator[tuple[str, str]]:
        """The first page, and a badge of each config."""
        newest = {one.facts["name"]: one for one in self.nights}
        for name, one in newest.items():
            short = "passing" if one.facts["tone"] == "ok" else re.split("[,;] ", one.facts["verdict"])[0]
            yield (
                f"badge-{slug(name).removesuffix('.html')}.svg",
                badge(plain(name, 24), plain(short, 40), one.facts["tone"]),
            )
        every = self.trends.sums("vendor")
        total = every.groupby(level=0).sum()
        yield from self._page(
            "index.html",
            TITLE,
            [
                *_collect_gates(self.nights),
                self._vendors(),
                self._build_change_view(self.lasting, "", "Changes that stayed"),
                *_flaky_list(self.flaky),
                self._backend_list(),
                *self._cause_list(),
                *self._models(),
                self._op_list(),
                runs(self.nights),
            ],
            verdicts=[told for name, one in newest.items() for told in _make_verdict_lines(name, one.facts)],
            lead=[
                (
                    "",
                    f"{many(len(self.nights), 'run')}, {self._count('rows')} of {self._count('cells')}, {self._count('failures')}",
                )
            ],
            chart=self._chart(total),
            chart_words=CHART_WORDS,
        )

    def _sum_view(self, by: str, caption: str, more: Sequence[Column]) -> View:
        squares = self.trends.once() if by == "vendor" else self.trends.squares
        newest = squares.groupby(by)[[*COUNTS, "new"]].sum().reset_index()
        columns = [
            *more,
            Column("passed", lambda line: percent(line["passed"], line["judged"]), right=True),
            Column("judged", lambda line: percent(line["judged"], line["valid"]), right=True),
            Column("failed", lambda line: f"{line['failed']:,}", right=True),
            new_column(),
        ]
        return View(f"{by}s", caption, newest, columns, lines=records(newest), open=True)

    def _vendors(self) -> View:
        named = self.trends.squares.groupby("vendor")["backend"].unique().map(sorted).map(", ".join)
        return self._sum_view(
            "vendor",
            "Vendors, by the newest outcome of every op",
            [
                Column("vendor", lambda line: plain(line["vendor"]), foreign=True),
                Column("backends", lambda line: plain(named[line["vendor"]]), foreign=True),
            ],
        )

    def _backend_list(self) -> View:
        vendor = self.trends.squares.drop_duplicates("backend").set_index("backend")["vendor"]
        view = self._sum_view(
            "backend",
            "Backends, by the newest outcome of every op",
            [
                _link("backend", "backend", "backend"),
                Column("vendor", lambda line: plain(vendor[line["backend"]]), foreign=True),
            ],
        )
        lines = sorted(view.all_lines(), key=lambda one: backend_order(vendor[one["backend"]], one["backend"]))
        return replace(view, lines=lines)

    def _causes(self) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
        """What failures are put down to → (night, its line)."""
        found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        for at, one in enumerate(self.nights):
            for line in one.causes:
                found.setdefault(line["reason"] or f"{line['status']} {line['ops']}", []).append((at, line))
        return found

    def _cause_list(self) -> Iterator[View]:
        lines = []
        for reason, seen in self._causes().items():
            at, line = seen[-1]
            lines.append({**line, "reason": reason, "at": at, "first": seen[0][0], "seen": len(seen)})
        if not lines:
            return
        lines.sort(key=lambda one: (-one["at"], one["standing"] != "new", -int(one["rows"])))
        columns = [
            _link("defect", "reason", "defect", length=120),
            Column("standing", lambda line: Cell(line["standing"], tone="alarm" if line["standing"] == "new" else "")),
            Column("rows", lambda line: line["rows"], right=True),
            Column("first", lambda line: self.nights[line["first"]].day),
            Column("last", lambda line: self.nights[line["at"]].day),
        ]
        yield View("defects", "Defects", pd.DataFrame(lines), columns, lines=lines, counted=True, unit="causes")

    def _models(self) -> Iterator[View]:
        lines = [one for one in self.lines if one["op_class"] == OpClass.MODEL.value]
        if lines:
            yield _make_op_index("models", "Models", lines)

    def _op_list(self) -> View:
        return _make_op_index("ops", "Ops", self.lines)


def _link(words: str, name: str, folder: str, up: str = "", length: int = 0) -> Column:
    """A column of what has a page of its own."""

    def cell(line: Line) -> Cell:
        return Cell(plain(line[name], length), href=f"{up}{folder}/{slug(line[name])}")

    return Column(words, cell, foreign=True)


def _render(path: str, title: str, views: Sequence[View], **more: Any) -> str:
    given = {"up": "../" * path.count("/"), "limit": LINES, "words_beside": True, "chart": "", "chart_words": ""}
    given["sources"] = Markup("style-src 'self' file:; img-src 'self' data:")
    return html.render("site.html.j2", title, views, **{**given, **more})


def _make_op_index(name: str, caption: str, lines: Sequence[Line]) -> View:
    """One line for each op, with what it is at worst anywhere."""
    place = {status: k for k, status in enumerate(SEVERITY)}
    found = []
    for label, some in _groups(lines, "label"):
        worst = min(some, key=lambda one: place[one["worst"]])
        failed = sorted(one["backend"] for one in some if _has_failed(one))
        found.append({"label": label, "worst": worst["worst"], "failed": ", ".join(failed), "backends": len(some)})
    columns = [
        _link("op", "label", "op"),
        status("worst", "at worst"),
        Column("fails on", lambda line: plain(line["failed"], 200), foreign=True),
    ]
    return View(name, caption, pd.DataFrame(found), columns, lines=found, counted=True, unit="ops")


#: A gate as an outcome, whose colour it has.
SHOWN = {OPEN: Status.PASS.value, CLOSED: Status.WRONG.value, GATES[INCOMPLETE]: Status.UNSUPPORTED.value}


def _make_verdict_lines(name: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(tone, sentence, small words before it) of a config's newest run and of its gate."""
    yield facts["tone"], facts["verdict"], name
    if facts["gate"]:
        yield {OPEN: "ok", CLOSED: "new"}.get(facts["gate"], ""), facts["gate_said"], name


def _collect_gates(nights: Sequence[Night]) -> Iterator[View]:
    """The gate of each config that has one, night by night."""
    lines = []
    for name in dict.fromkeys(one.facts["name"] for one in nights):
        states = [(at, n.facts["gate"]) for at, n in enumerate(nights) if n.facts["name"] == name and n.facts["gate"]]
        if states:
            series, shut = stretches(states), sum(state == CLOSED for _, state in states)
            told = {"config": name, "now": series[-1].outcome, "since": series[-1].first, "series": series}
            lines.append({**told, "closed": f"{shut} of {len(states)}"})
    columns = [
        Column("config", lambda line: plain(line["config"]), foreign=True),
        Column("now", lambda line: Cell(line["now"], tone="alarm" if line["now"] == CLOSED else "")),
        Column("since", lambda line: nights[line["since"]].day, right=True),
        Column("nights closed", lambda line: line["closed"], right=True),
        Column("night by night", lambda line: _draw_night_strip(nights, line["series"])),
    ]
    if lines:
        yield View("gates", "Gates: may it ship", pd.DataFrame(lines), columns, lines=lines, notes=[STRIPS], open=True)


def _draw_night_strip(nights: Sequence[Night], series: Sequence[Stretch]) -> Cell:
    """The last nights of a series."""
    blocks, left = [], NIGHTS
    for one in reversed(series):
        first, last = nights[one.first].day, nights[one.last].day
        days = first if first == last else f"{first} to {last}"
        words = f"{one.outcome} {days} ({many(one.nights, 'night')})"
        blocks.append((SHOWN.get(one.outcome, one.outcome), min(one.nights, left), words))
        left -= one.nights
        if left <= 0:
            break
    return Cell("", strip=tuple(blocks[::-1]))


def _flaky_list(flaky: Sequence[Line]) -> Iterator[View]:
    """Backends with squares that come and go."""
    lines = [
        {
            "backend": name,
            "squares": len(some),
            "nights": sum(one["bad"] for one in some),
            "ops": [one["label"] for one in some],
        }
        for name, some in _groups(flaky, "backend")
    ]
    lines.sort(key=lambda one: -one["squares"])  # type: ignore[operator]
    columns = [
        _link("backend", "backend", "backend"),
        Column("ops", lambda line: str(line["squares"]), right=True),
        Column("nights failed", lambda line: str(line["nights"]), right=True),
        Column("such as", lambda line: plain(", ".join(line["ops"]), 160), foreign=True),
    ]
    if lines:
        caption = f"Flaky: failed for a single night, or again (at least {TURNS} times)"
        yield View("flaky", caption, pd.DataFrame(lines), columns, lines=lines, open=True)


def _by_chance(changes: pd.DataFrame, flaky: Sequence[Line], every: Sequence[Line]) -> pd.Series:
    """Which changes are of the last night of a backend of which many ops come and go: nobody knows yet whether they stay."""
    last = {name: max(one["series"][-1].last for one in some) for name, some in _groups(every, "backend")}
    boards = pd.Series([one["backend"] for one in flaky], dtype=object).value_counts()
    newest = changes["night"] == changes["backend"].map(last)
    return newest & changes["backend"].isin(boards[boards >= BOARD].index)


def _change(line: Line) -> str:
    return f"{line['change']}, of a flaky backend" if line.get("chance") else str(line["change"])


def _newest(sums: pd.DataFrame) -> str:
    last = sums.iloc[-1]
    return f"{percent(last['passed'], last['judged'])} passed, {int(last['failed'])} failed, {int(last['new'])} new"


def _groups(lines: Sequence[Line], by: str) -> Iterator[tuple[str, list[Line]]]:
    key = operator.itemgetter(by)
    for name, some in groupby(sorted(lines, key=key), key=key):
        yield name, list(some)


def _has_failed(line: Line) -> bool:
    return Status(line["worst"]).failed


def _nights(line: Line) -> str:
    if not line["bad"]:
        return f"0 of {line['nights']}"
    return f"{line['bad']} of {line['nights']}" + f", {many(line['turns'], 'time')} again" * bool(line["turns"])
