"""A table that fits the width of a terminal: folded where that leaves room to read, else its long columns below each line. It has no
frame: what is copied from it, or read in a log, is words and numbers."""

from __future__ import annotations

import io
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

#: A column of text is folded to no less than this.
LEAST = 20
#: One of which only the end is shown is cut to no less than this.
LEAST_END = 12
#: Blanks between columns, and before what stands below a line.
GAP, INDENT = 2, 4
#: Columns of a file or a pipe.
PIPED = 100
_BLANKS_AT_END = re.compile(r" +(?=\n)")


class _NoBlanksAtEnds(io.TextIOBase):
    """A file or a pipe whose lines end where their words do: rich fills them up to the width of what stands there."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As standard output's: rich draws with the letters that it has."""
        return sys.stdout.encoding

    def write(self, text: str, /) -> int:
        return sys.stdout.write(_BLANKS_AT_END.sub("", text))

    def flush(self) -> None:
        sys.stdout.flush()


def make_console() -> Console:
    """The terminal; a file or a pipe has the width that COLUMNS says, else that of a log people read."""
    if sys.stdout.isatty():
        return Console(highlight=False, emoji=False)
    columns = shutil.get_terminal_size((PIPED, 50)).columns
    return Console(file=_NoBlanksAtEnds(), width=columns, highlight=False, emoji=False)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TableHead:
    """The head of a column. right: numbers, which are never folded; stays: it stands beside the first, however wide it is;
    below: it stands below its line, however much room there is."""

    words: str
    right: bool = False
    stays: bool = False
    below: bool = False


def fit_table(
    title: str, heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], width: int
) -> RenderableType:
    """A table of ``lines`` (cells and a style each) that no terminal of ``width`` columns crops."""
    widths, kept, _ = _lay_table_out(heads, lines, width)
    made: RenderableType = (
        _build_folded_table(heads, lines, widths) if widths else _move_columns_below(heads, lines, kept)
    )
    return Group(Text(title, style="bold"), made)  # not the table's own title, which is folded to its width


def count_table_lines(heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], width: int) -> int:
    """Lines of the screen, about, that `fit_table` takes, without title and heads."""
    return _lay_table_out(heads, lines, width)[2]


def _lay_table_out(
    heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], width: int
) -> tuple[list[int], dict[int, int], int]:
    """(width of each column, none where the long ones stand below their line; those that stand beside each other even
    then; lines of the screen)."""
    natural = [
        max([_measure_cell_width(Text(h.words)), *(_measure_cell_width(cells[n]) for cells, _ in lines)])
        for n, h in enumerate(heads)
    ]
    least = [_find_least_width(head, [cells[n] for cells, _ in lines]) for n, head in enumerate(heads)]
    room = width - GAP * (len(heads) - 1)
    widths, kept = _share_table_width(natural, least, room), _select_columns_beside(heads, lines, width)
    folded, below = _count_screen_lines(lines, widths), _count_lines_below(lines, kept, width)
    beside = sum(least) <= room and folded <= below and not any(head.below for head in heads)
    return (widths, kept, folded) if beside else ([], kept, below)


def cut_table(
    title: str, heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], width: int
) -> RenderableType:
    """A table with each line on one of the screen: the last column has what the others leave, and ends with "…". Where
    they leave too little, the longest of them is cut at its beginning: the end of an op's name tells more. Where that
    would leave nothing to read of it, each line takes several of the screen (`fit_table`)."""
    widths = [
        max(len(head.words), *(_flatten_cell(cells[n]).cell_len for cells, _ in lines)) for n, head in enumerate(heads)
    ]
    long = max(range(len(heads) - 1), key=lambda n: 0 if heads[n].right else widths[n])
    spare = width - GAP * (len(heads) - 1)
    over = sum(widths[:-1]) + min(widths[-1], LEAST) - spare
    if over > 0 and widths[long] - over < LEAST_END:
        return fit_table(title, heads, lines, width)
    widths[long] -= max(over, 0)
    widths[-1] = spare - sum(widths[:-1])
    cut = []
    for cells, style in lines:
        row = [_flatten_cell(cell) for cell in cells]
        if row[long].cell_len > widths[long]:
            row[long] = Text("…", row[long].style) + row[long][1 - widths[long] :]
        row[-1].truncate(widths[-1], overflow="ellipsis")
        cut.append((row, style))
    return Group(Text(title, style="bold"), _build_folded_table(heads, cut, widths))


def _measure_cell_width(cell: Text) -> int:
    return max((line.cell_len for line in cell.split("\n")), default=0)


def _find_least_width(head: TableHead, cells: Sequence[Text]) -> int:
    widest = max(map(_measure_cell_width, cells), default=0)
    word = max(map(len, head.words.split()), default=0)
    return max(word, widest if head.right else min(widest, LEAST), 1)


def _share_table_width(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The least of every column, and of what is left as much as it needs, those first that need little."""
    made, spare = list(least), room - sum(least)
    order = sorted(range(len(made)), key=lambda n: natural[n] - least[n])
    for place, n in enumerate(order):
        more = min(natural[n] - made[n], spare // (len(order) - place))
        made[n] += max(more, 0)
        spare -= max(more, 0)
    return made


def _build_folded_table(
    heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], widths: Sequence[int]
) -> Table:
    made = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    for head, width in zip(heads, widths, strict=True):
        made.add_column(Text(head.words), justify="right" if head.right else "left", overflow="fold", width=width)
    for cells, style in lines:
        made.add_row(*cells, style=style)
    return made


def _count_screen_lines(lines: Sequence[tuple[Sequence[Text], str]], widths: Sequence[int]) -> int:
    """Lines on the screen, about, of a table that is folded."""
    return sum(max(-(-_measure_cell_width(cell) // width) for cell, width in zip(cells, widths)) for cells, _ in lines)


def _count_lines_below(lines: Sequence[tuple[Sequence[Text], str]], kept: Mapping[int, int], width: int) -> int:
    """The same of one whose long columns stand below."""
    below = [cell for cells, _ in lines for n, cell in enumerate(cells) if n not in kept and not _is_empty_cell(cell)]
    return len(lines) + sum(-(-(_measure_cell_width(cell) + LEAST) // width) for cell in below)


def _flatten_cell(cell: Text) -> Text:
    """A cell on one line."""
    return Text(" ").join(cell.split("\n"))


def _is_empty_cell(cell: Text) -> bool:
    return cell.plain in ("", "–")


def _select_columns_beside(
    heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], width: int
) -> dict[int, int]:
    """The columns that have room side by side, and their widths; the first and those that stay are always among them."""
    widths = {
        n: max([*map(len, head.words.split()), *(_flatten_cell(cells[n]).cell_len for cells, _ in lines), 1])
        for n, head in enumerate(heads)
        if not head.below
    }
    while sum(w + GAP for w in widths.values()) - GAP > width:
        moved = [n for n in widths if n and not heads[n].stays]
        if not moved:
            break
        del widths[max(moved, key=widths.__getitem__)]
    return widths


def _move_columns_below(
    heads: Sequence[TableHead], lines: Sequence[tuple[Sequence[Text], str]], widths: Mapping[int, int]
) -> Group:
    """Short columns side by side, every other one on a line of its own below, after its head; the first of text, which
    says what the line is about, above."""
    kept = list(widths)
    name = next((n for n, head in enumerate(heads) if not head.right), 0)
    words = {n: textwrap.wrap(heads[n].words, widths[n]) or [""] for n in kept}
    high = max(map(len, words.values()))

    def side_by_side(cells: Sequence[Text], style: str) -> Text:
        made = []
        for n in kept:
            cell = _flatten_cell(cells[n])
            if heads[n].right or n != kept[-1]:
                cell.align("right" if heads[n].right else "left", widths[n])
            made.append(cell)
        joined = Text(" " * GAP).join(made)
        joined.stylize_before(style)
        return joined

    parts: list[RenderableType] = []
    for k in range(high):  # heads of fewer lines stand at the bottom
        row = [Text(([""] * (high - len(words.get(n, ""))) + words.get(n, []))[k]) for n in range(len(heads))]
        parts.append(side_by_side(row, "bold"))
    for cells, style in lines:
        if name not in kept:
            above = _flatten_cell(cells[name])
            above.stylize_before(style)
            parts.append(above)
        parts.append(side_by_side(cells, style))
        for n, head in enumerate(heads):
            if n not in (*kept, name) and not _is_empty_cell(cells[n]):
                text = Text(f"{head.words}: ", style="dim").append_text(_flatten_cell(cells[n]))
                parts.append(Padding(text, (0, 0, 0, INDENT), expand=False))
    return Group(*parts)
