"""A view: one table of a report, computed once; every face (terminal, Markdown, CSV, page) renders any of them.

Adding a view is adding a file to this package: a function of a `Report` with the decorator `view`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pandas as pd

from farm.commandline import clean_line
from farm.report.once import freeze_frame
from farm.report.tables.causes import RunVerdict, causes, match_known_failures, verdict
from farm.report.tables.coverage import add_code_column, find_column_values, keep_distinct_rows
from farm.report.tables.ranking import ranking
from farm.report.words import DASH, format_percent, format_report_number
from tasks.model import label_op

FACES = ("terminal", "markdown", "csv", "page")
Line = Mapping[str, Any]


@dataclass(frozen=True)
class ViewCell:
    """What stands in one place of a table. status: shown with its sign and colours; small: beneath, in small print;
    square: LABEL|BACKEND of the page's heat map that it leads to; asks: the filters of the page that the text leads to
    (the square is then led to by the small print); share: of 1, shown as a bar where there are bars; rest: it takes the
    rest of its line; curve: numbers in their order, drawn under the text with a line at ``bound``; tree: the order of a
    sum (`tasks.passport.sum_trees.encode_tree`), drawn under the text on a page; parts: the text in parts, each with a
    status that colours it; href: the page that the text leads to; strip: outcomes in their order, as (status, how many,
    words), drawn beside the text; heat: (value, words) in their order, drawn on a page instead of the text as squares
    that are coloured by how far they are from ``bound``, those at the places ``marked`` with a frame; spark: counts in
    their order, as a small picture; tone: "alarm", "bad", "warn", "good" or "dim"."""

    text: str
    status: str = ""
    small: str = ""
    square: str = ""
    asks: Mapping[str, str] = field(default_factory=dict)
    share: float | None = None
    rest: bool = False
    parts: tuple[tuple[str, str], ...] = ()
    tone: str = ""
    href: str = ""
    strip: tuple[tuple[str, int, str], ...] = ()
    curve: tuple[float, ...] = ()
    bound: float | None = None
    spark: tuple[int, ...] = ()
    tree: tuple[int, ...] = ()
    heat: tuple[tuple[float, str], ...] = ()
    marked: tuple[int, ...] = ()


@dataclass(frozen=True)
class ViewColumn:
    """A column as people see it: its words and how a line's cell is made.

    foreign: the text comes from elsewhere and is quoted where quoting is due; status: the status that the column
    counts; faces: where it is shown; stays: in a narrow terminal too it stands beside the first; short: the cell in
    fewer words, where a line has but one of the screen.
    """

    words: str
    cell: Callable[[Line], ViewCell | str]
    right: bool = False
    foreign: bool = False
    status: str = ""
    faces: tuple[str, ...] = FACES
    stays: bool = False
    short: Callable[[Line], ViewCell | str] | None = None


def make_text_column(name: str, words: str = "", length: int = 0, faces: tuple[str, ...] = FACES) -> ViewColumn:
    """A column of text that comes from elsewhere."""
    return ViewColumn(words or name, lambda line: clean_line(line[name], length) or DASH, foreign=True, faces=faces)


def build_number_column(name: str, words: str = "") -> ViewColumn:
    """A column of numbers."""
    return ViewColumn(words or name.replace("_", " "), lambda line: format_report_number(line[name]), right=True)


def make_rate_column(part: str, whole: Callable[[Line], int], words: str) -> ViewColumn:
    """A column of shares, with their denominators."""
    return ViewColumn(words, lambda line: format_percent(line[part], whole(line)), right=True)


def make_status_column(name: str = "status", words: str = "") -> ViewColumn:
    """A column of statuses."""
    return ViewColumn(words or name, lambda line: ViewCell(str(line[name]), status=str(line[name])))


def label_line_op(line: Line) -> str:
    """An op with its variant."""
    return label_op(str(line["op"]), str(line["variant"] or ""))


def make_op_column(words: str = "op") -> ViewColumn:
    """The op of a line, which leads to its square."""
    return ViewColumn(
        words,
        lambda line: ViewCell(
            clean_line(label_line_op(line)), square=f"{label_line_op(line)}|{line.get('backend', '')}"
        ),
        foreign=True,
    )


@dataclass(frozen=True)
class View:
    """One table of a report.

    name: of its CSV file; caption; frame: all of it, as pandas and CSV have it. lines: what people see (default: the
    frame's), with ``columns`` (default: the frame's own; a name, or name and words, is that column of the frame as it
    is); unit: what a line is called; turns: column of whose values the first come before the second ones, where not all
    lines can be shown; style: "sum" or "grey" of a line; lead: sentences before the table, notes: after it; empty: said
    instead of a table without lines (default: nothing is shown); command: column of the commands that show a line; see:
    words and a command each, after the table; index: whether the frame's index is part of it; open: whether the page
    shows it at once; counted: whether its title says how many lines there are; most: of them shown, where it is not for
    the face to say; screen: of them shown on a terminal, and how many of its lines they take: where they would take
    more, each has one and is cut; compares: whether it sums over many ops, and is no news of a run of few.
    """

    name: str
    caption: str
    frame: pd.DataFrame
    columns: Sequence[ViewColumn | str | tuple[str, str]] = ()
    lines: Sequence[Line] | None = None
    unit: str = "cells"
    turns: str = ""
    style: Callable[[Line], str] = lambda line: ""
    lead: Sequence[str] = ()
    notes: Sequence[str] = ()
    empty: str = ""
    command: str = ""
    see: Sequence[tuple[str, str]] = ()
    index: bool = False
    open: bool = False
    counted: bool = False
    most: int = 0
    screen: int = 0
    faces: tuple[str, ...] = FACES
    compares: bool = False

    def all_lines(self) -> Sequence[Line]:
        """Every line that people may see."""
        if self.lines is not None:
            return self.lines
        frame = self.frame.reset_index() if self.index else self.frame
        return [dict(zip(map(str, line), line.values(), strict=True)) for line in frame.to_dict("records")]

    def select_lines(self, limit: int) -> list[Line]:
        """At most ``limit`` lines, the first of every turn before the second of any."""
        lines, seen = list(self.all_lines()), {}  # type: ignore[var-annotated]
        if self.turns:
            turn = []
            for line in lines:
                turn.append(seen.setdefault(line[self.turns], 0))
                seen[line[self.turns]] += 1
            kept = sorted(sorted(range(len(lines)), key=turn.__getitem__)[: self.most or limit])
            return [lines[k] for k in kept]
        return lines[: self.most or limit]

    def title(self, limit: int) -> str:
        """The caption, with how many lines there are and how many of them are shown."""
        if not self.counted:
            return self.caption
        many, shown = len(self.all_lines()), self.most or limit
        noun, of, more = re.match(r"(.*?)( of |, which |, an? |, no |$)(.*)", self.unit).groups()  # type: ignore[union-attr]
        unit = re.sub(r"s\b", "", noun) + of + more if many == 1 else self.unit
        return f"{self.caption}: {many} {unit}" + (f", {shown} shown" if many > shown else "")

    def columns_for(self, face: str) -> list[ViewColumn]:
        """The columns that a face shows."""
        named = ((one, "") if isinstance(one, str) else one for one in self.columns or map(str, self._names()))
        own = [one if isinstance(one, ViewColumn) else self._plain(*one) for one in named]
        return [column for column in own if face in column.faces]

    def _plain(self, name: str, words: str) -> ViewColumn:
        """A column of the frame as it is; an op with its variant, where its own columns are named."""
        if name == "status":
            return make_status_column(name, words)
        if name == "op" and self.columns and "variant" in self.frame:
            return make_op_column(words or name)
        numeric = name in self.frame and pd.api.types.is_numeric_dtype(self.frame[name])
        return build_number_column(name, words) if numeric else make_text_column(name, words)

    def _names(self) -> list[Any]:
        return [*(self.frame.index.names if self.index else ()), *self.frame.columns]


def make_view_cell(column: ViewColumn, line: Line) -> ViewCell:
    """The cell of a line in a column."""
    made = column.cell(line)
    return made if isinstance(made, ViewCell) else ViewCell(made)


@dataclass(frozen=True, eq=False)
class Report:
    """What views are made of. rows: `keep_distinct_rows` rows of the lake with their standing (`farm.report.tables.causes`); run:
    their ``_run.json``; by: one more column to sum by. What is worked out of them is so once, on first use."""

    rows: pd.DataFrame
    run: Mapping[str, Any] = field(default_factory=dict)
    by: str = "backend"
    #: Known failures that were not seen: `farm.report.stale`.
    stale: pd.DataFrame = field(default_factory=pd.DataFrame)

    @classmethod
    def of(cls, rows: pd.DataFrame | Report, run: Mapping[str, Any], by: str = "backend") -> Report:
        """That of lake rows; a report is returned as it is."""
        if isinstance(rows, Report):
            return rows
        attrs = dict(rows.attrs)  # pandas forgets them
        told, stale = match_known_failures(keep_distinct_rows(rows), run)
        rows = add_code_column(told, run)
        rows.attrs.update(attrs)
        return cls(freeze_frame(rows), run, by, stale)

    def values(self, column: str) -> frozenset[Any]:
        """What its rows have in a column."""
        return find_column_values(self.rows, column)

    @functools.cached_property
    def verdict(self) -> RunVerdict:
        """What to conclude."""
        return verdict(self.rows, self.run)

    @functools.cached_property
    def causes(self) -> pd.DataFrame:
        """Why rows failed: `farm.report.causes`."""
        return causes(self.rows)

    @functools.cached_property
    def ranking(self) -> pd.DataFrame:
        """Who is best: `farm.report.ranking`."""
        return ranking(self.rows)

    @functools.cached_property
    def views(self) -> list[View]:
        """All views, in their order, for every face the same ones."""
        import_tables()
        found: list[View] = []
        for _, only, make in sorted(_MAKERS.values(), key=lambda one: one[0]):
            try:
                made = make(self) if only(self) else ()
                found.extend([made] if isinstance(made, View) else list(made or ()))  # a generator may fail on its way
            except Exception as error:  # one view must not take the others, nor the end of a run, with it
                name = f"{make.__module__}.{make.__name__}"
                warnings.warn(f"the view {name} failed: {type(error).__name__}: {error}", ViewWarning, stacklevel=2)
        return found

    @property
    def inventory(self) -> Mapping[str, Any]:
        return self.run.get("inventory") or {}


Maker = Callable[[Report], "View | Iterable[View] | None"]
Made = TypeVar("Made", bound=Maker)
_MAKERS: dict[str, tuple[int, Callable[[Report], Any], Maker]] = {}


class ViewWarning(UserWarning):
    """A view of a report that cannot be made; the others are."""


def view(place: int, only: Callable[[Report], Any] = lambda report: True) -> Callable[[Made], Made]:
    """Register a function that makes one view or several of a `Report`; ``place``: its order among them; ``only``:
    whether a report has anything for it to show, asked first."""
    if not isinstance(place, int):
        raise TypeError("write @view(PLACE): a number, the view's order in the report")

    def register(make: Made) -> Made:
        _MAKERS[f"{make.__module__}.{make.__name__}"] = (place, only, make)
        return make

    return register


def import_tables() -> None:
    """Import every module of this package, which registers its views."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
