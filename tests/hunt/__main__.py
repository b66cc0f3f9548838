"""Public reports about wrong numbers, and what the farm finds of each: python -m tests.hunt [PATTERN…] [--seed N] [--markdown]

PATTERN: a glob of reports (repository#number) or ops. Exit code 1 if what is found differs from what
`tests.hunt.reports` says, or a sound twin does not pass.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tasks.cache import default_cache
from tests.bench.running import environment
from tests.hunt.running import Found, ask, asked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt", description=__doc__)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true", help="the table as the manual has it")
    args = parser.parse_args()
    reports = asked(args.patterns)
    if not reports:
        parser.error(f"no report matches {' '.join(args.patterns)}")
    with tempfile.TemporaryDirectory(prefix="farm-hunt-") as folder:
        found = ask(reports, Path(folder), environment(default_cache()), args.seed)
    print("\n".join(markdown(found) if args.markdown else map(_line, found)))
    told = Counter(x.found for x in found)
    differ = [x for x in found if x.differs]
    if args.markdown:
        print("\n".join(map(_line, differ)), end="\n" * bool(differ))
    print(f"{len(found)} reports: " + ", ".join(f"{n} {how}" for how, n in told.items()) + f"; {len(differ)} differ")
    return int(bool(differ))


def _line(x: Found) -> str:
    pointed = f" ({x.pointed} when pointed at)" if x.pointed else ""
    told = f"{x.report.where:40} {x.report.op:58} {x.status}{pointed}; twin {x.twin}; found {x.found}"
    return told + (f"   DIFFERS: {x.differs}" if x.differs else "")


def markdown(found: list[Found]) -> list[str]:
    """The table of the manual."""
    lines = ["| report | what is wrong | runs on | the farm says | found | at first |", "|---|---|---|---|---|---|"]
    for x in found:
        r = x.report
        runs = r.note if r.backend != "torch-cpu" or r.note.startswith("eager") else "a kernel"
        said = (
            x.status if not x.pointed or x.status in (r.status, "wrong") else f"{x.status}; {x.pointed} when pointed at"
        )
        lines.append(f"| [{r.where}]({r.link}) | {r.kind} | {runs} | {said} | {x.found} | {r.first} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
