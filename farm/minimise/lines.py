"""A script that is too long in fewer lines, which say the same."""

from __future__ import annotations

import ast
import math

#: Lines that a script has at most.
LINES = 40
#: Statements that are read as well with others in their line.
_PLAIN = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return, ast.Assert)


def fewer(lines: list[str]) -> list[str]:
    """Without comments, and with several nodes, then several outputs, then several statements in a line, where there are too many
    lines; as they were where that is still too many: what is long all the same is to be read at least."""
    if len(lines) > LINES:
        lines = [line for k, line in enumerate(lines) if k < 2 or not line.strip().startswith("# ")]
    for name in ("nodes", "expected"):
        over, begins = len(lines) - LINES, f"{name} = ["
        if over <= 0 or begins not in lines:
            continue
        begin = lines.index(begins)
        end = lines.index("]", begin)
        items = [line.strip() for line in lines[begin + 1 : end]]
        if over < len(items):
            each = math.ceil(len(items) / (len(items) - over))
            joined = [begins, *("    " + " ".join(items[k : k + each]) for k in range(0, len(items), each)), "]"]
        else:
            joined = [begins + " ".join(items).rstrip(",") + "]"]
        lines = [*lines[:begin], *joined, *lines[end + 1 :]]
    found = _in_one_line(lines)
    return found if len(found) <= LINES else lines


def _in_one_line(lines: list[str]) -> list[str]:
    """With several statements in a line: no more in any than it takes for LINES of them, where there are enough."""
    over = len(lines) - LINES
    if over <= 0:
        return lines
    runs = _runs(lines)
    longest = max(map(len, runs), default=1)
    saved = {each: [len(x) - math.ceil(len(x) / each) for x in runs] for each in range(2, longest + 1)}
    each = next((k for k, x in saved.items() if sum(x) >= over), longest)
    found = {k: [line] for k, line in enumerate(lines)}
    for run in sorted(runs, key=len, reverse=True):
        for place in run:
            if (behind := (place - run.start) % each) and len(found) > LINES:
                found[place - behind].append(found.pop(place)[0].strip())
    return ["; ".join(x) for x in found.values()]


def _runs(lines: list[str]) -> list[range]:
    """The lines one after another each of which is a plain statement of the same block, and no comment beside it."""
    blocks = dict[int, int]()
    for node in ast.walk(ast.parse("\n".join(lines))):
        for statements in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for x in statements if isinstance(statements, list) else ():
                if isinstance(x, _PLAIN) and 1 < x.lineno == x.end_lineno and _whole(x, lines[x.lineno - 1]):
                    blocks[x.lineno - 1] = id(statements)
    found: list[range] = []
    for k in sorted(blocks):
        if found and found[-1].stop == k and blocks[k - 1] == blocks[k]:
            found[-1] = range(found[-1].start, k + 1)
        else:
            found.append(range(k, k + 1))
    return [x for x in found if len(x) > 1]


def _whole(statement: ast.stmt, line: str) -> bool:
    """Whether a statement is all there is in its line."""
    begin = len(line) - len(line.lstrip())
    return (statement.col_offset, statement.end_col_offset) == (begin, len(line.encode()))
