"""Runs the zoo of planted faults and their right twins, and counts what each policy catches: python -m farm.selftest"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from farm import lake as lakes
from farm.plan import request as requests
from farm.plan.config import ConfigError
from farm.policies.rejudge import rejudge
from farm.report.tables.coverage import reproduce_command
from farm.report.words import number, percent, plain
from farm.work.launch import Run, ready
from tasks import zoo
from tasks.judge import verdict
from tasks.judge.verdict import Policy, PolicyError
from tasks.model import FAILED, names
from tasks.nearest import nearest

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "zoo.yaml"
DEFAULT_POLICY = "error_units"
#: Apart from the user's own runs: neither `last` nor whoever reads the lake above is to meet planted faults.
RESULTS = "results/_selftest"
#: Kinds of a wrong row that come from what a kernel did, not from its numbers.
PROMISES = ("mutation", "aliasing", "invariant", "nondeterministic")
#: Exit codes.
ALL_CAUGHT, MISSED, BAD_INPUT, INCOMPLETE = 0, 1, 2, 3


@dataclass
class Count:
    """What one policy makes of faults and of their twins: names of the ops.

    caught: some row of the fault failed; imprecise: none did, but one is imprecise, which is a finding for a class of
    `zoo.PRECISION`; escaped: neither; alarms: twins of which some row is anything but a pass.
    """

    caught: list[str] = field(default_factory=list)
    imprecise: list[str] = field(default_factory=list)
    escaped: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    @property
    def found(self) -> int:
        return len(self.caught) + len(self.imprecise)


def count(statuses: Mapping[str, set[str]], faults: Mapping[str, zoo.Fault]) -> Count:
    """The count over ``faults`` and their twins. ``statuses``: op name → statuses of its rows under a policy."""
    made, failed = Count(), set(names(FAILED))
    for name, fault in faults.items():
        found = statuses.get(name, set())
        if found & failed:
            made.caught.append(name)
        elif fault.kind in zoo.PRECISION and "imprecise" in found:
            made.imprecise.append(name)
        else:
            made.escaped.append(name)
    made.alarms = [twin for twin in dict.fromkeys(f.twin for f in faults.values()) if statuses.get(twin) != {"pass"}]
    return made


def statuses(rows: pd.DataFrame, policy: Policy, promises: bool = True) -> dict[str, set[str]]:
    """Op name → statuses that ``policy`` gives its rows, from their stored metrics alone.

    promises: whether what a kernel did beside its numbers (PROMISES) counts, which is no matter of a tolerance.
    """
    if not promises:
        broken = rows["kind"].isin(PROMISES) & rows["classic"].notna()
        numbers = rows["nonfinite"].gt(0).map({True: "nonfinite", False: "numbers"})
        rows = rows.assign(kind=rows["kind"].where(~broken, numbers))
    judged = rows[["op"]].assign(status=rejudge(rows, policy)["status"])
    return {str(op).partition(":")[2]: set(some) for op, some in judged.groupby("op")["status"]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 every fault is caught and no twin is blamed, 1 not so, 2 bad command
    line, 3 the run is incomplete."""
    parser = argparse.ArgumentParser(
        prog="farm selftest",
        description="Run kernels with planted faults and their right twins; count what is caught.",
        epilog="exit code: 0 the policy catches every fault and blames no twin; 1 it does not; 2 bad command line; 3 incomplete",
    )
    parser.add_argument(
        "--ops",
        action="append",
        default=[],
        metavar="GLOB",
        help="only kernels whose name, or whose twin's, matches (may be repeated)",
    )
    parser.add_argument(
        "--policy", default=DEFAULT_POLICY, metavar="P", help="the policy that decides: a name or a path/to/policy.json"
    )
    parser.add_argument(
        "--results", default=RESULTS, metavar="PATH", help=f"the lake: a directory or a URI (s3://…), default {RESULTS}"
    )
    parser.add_argument(
        "--inline", action="store_true", help="in this one process, without isolation: faster, for debugging"
    )
    args = parser.parse_args(argv)
    try:
        policies = {
            p.id: p for p in map(verdict.load, [args.policy, *(n for n in verdict.names() if n != args.policy)])
        }
        faults = _chosen(args.ops)
        rows = _run(args, faults)
    except (ConfigError, PolicyError, lakes.LakeError) as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return BAD_INPUT
    if rows is None:
        return INCOMPLETE
    # The other policies by what a comparison of numbers would have seen: promises are not theirs to keep.
    counts = {
        name: count(statuses(rows, policy, promises=not number), faults)
        for number, (name, policy) in enumerate(policies.items())
    }
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(_table(faults, counts), highlight=False)
    deciding = next(iter(policies))
    _explain(console, rows, faults, counts, deciding, args.results)
    return MISSED if counts[deciding].escaped or counts[deciding].alarms else ALL_CAUGHT


def _chosen(globs: Sequence[str]) -> dict[str, zoo.Fault]:
    """The faults that globs name, by themselves or by their twin; all if there is no glob. Raises ConfigError for none."""
    every = zoo.faults()
    chosen: set[str] = set() if globs else set(every)
    for glob in globs:
        found = {n for n, f in every.items() if fnmatch.fnmatchcase(n, glob) or fnmatch.fnmatchcase(f.twin, glob)}
        if not found:
            raise ConfigError(f"--ops: no kernel {glob!r}{nearest(glob, [*zoo.twins(), *every])}")
        chosen |= found
    return {name: fault for name, fault in every.items() if name in chosen}


def _run(args: argparse.Namespace, faults: Mapping[str, zoo.Fault]) -> pd.DataFrame | None:
    """The rows of a run of the faults and their twins; None for an incomplete run, whose output is then shown."""
    twins = list(dict.fromkeys(f.twin for f in faults.values()))
    print(
        f"{len(faults)} faults of {len({f.kind for f in faults.values()})} classes in {len(twins)} ops, each beside its right twin"
    )
    ops = [f"user:{name}" for name in [*faults, *twins]] if args.ops else []
    lake = lakes.open_lake(args.results)
    lakes.check_writable(lake)
    with ready(requests.new(str(CONFIG), lake, ops, how="inline" if args.inline else "no-ray")) as plan:
        run = Run(plan)
        run.begin()
        try:
            run.dispatch(lambda dispatcher: None)
            rows, missing = run.finish()
        except OSError as error:
            missing = str(error)
    if missing:
        print(f"error: incomplete: {missing}", file=sys.stderr)
        return None
    print(f"run {run.run_id}: {len(rows)} rows in {args.results}")
    return rows


def _table(faults: Mapping[str, zoo.Fault], counts: Mapping[str, Count]) -> Table:
    """Per class of fault and policy: faults caught, and right twins of such faults that are blamed."""
    table = Table(
        title="Faults caught and right twins blamed, by class of fault and policy", title_justify="left", box=box.SIMPLE
    )
    table.add_column("class of fault", no_wrap=True)
    for heading in ("faults", "twins", *(f"{name}\ncaught blamed" for name in counts)):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind in sorted({f.kind for f in faults.values()}, key=str.casefold):
        table.add_row(*_line(kind, {n: f for n, f in faults.items() if f.kind == kind}, counts))
    table.add_section()
    table.add_row(*_line("all", faults, counts))
    return table


def _line(heading: str, some: Mapping[str, zoo.Fault], counts: Mapping[str, Count]) -> list[str]:
    twins = {f.twin for f in some.values()}
    cells = [heading, str(len(some)), str(len(twins))]
    for made in counts.values():
        found = len(some.keys() & {*made.caught, *made.imprecise})
        cells.append(f"{found:6} {len(twins & set(made.alarms)):6}")
    return cells


def _explain(
    console: Console,
    rows: pd.DataFrame,
    faults: Mapping[str, zoo.Fault],
    counts: Mapping[str, Count],
    deciding: str,
    results: str,
) -> None:
    """Print the totals of every policy, and what escaped or was a false alarm under the one that decides."""

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    twins = {f.twin for f in faults.values()}
    for name, made in counts.items():
        apart = f", {len(made.imprecise)} of them as imprecise" if made.imprecise else ""
        seen = "" if name == deciding else " by the numbers alone"
        line(
            f"{name}: {percent(made.found, len(faults))} of the faults caught{seen}{apart}; {percent(len(made.alarms), len(twins))} of the twins blamed"
        )
    made = counts[deciding]
    if steep := {n: f for n, f in faults.items() if f.kind == "steep point"}:
        right = {f.twin for f in steep.values()}
        passed = percent(len(right - set(made.alarms)), len(right))
        line(
            f"steep points: {percent(len(steep.keys() & set(made.caught)), len(steep))} of the faults wrong, {passed} of the right ones pass"
        )
    if made.imprecise:
        line(f"imprecise, not wrong (faults that lose digits and no more): {', '.join(made.imprecise)}")
    for name in made.escaped:
        fault = faults[name]
        line(f"escaped: {name} ({fault.kind}, of {fault.twin}): {_worst(rows, name, results)}")
    for name in made.alarms:
        line(f"false alarm: {name}: {_worst(rows, name, results)}")


def _worst(rows: pd.DataFrame, name: str, results: str) -> str:
    """Metrics of the row of an op that is farthest off, and the command that shows it."""
    some = rows[rows["op"] == f"user:{name}"]
    if some.empty:
        return "it has no rows"
    bad = some[some["status"] != "pass"]
    some = bad if len(bad) else some
    row = some.iloc[int(some["error_units"].fillna(0).to_numpy().argmax())]
    command = reproduce_command(row["run_id"], row["case_id"], row["backend"], results, row["status"])
    text = f"{row['status']} at most, {number(row['error_units'])} error units, {number(row['max_ulp'])} ulps"
    return f"{text} {plain(row['error'], 200)}\n  {command}"


if __name__ == "__main__":
    sys.exit(main())
