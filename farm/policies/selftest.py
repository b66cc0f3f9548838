"""The zoo of planted faults and their right twins: run, and counted by what each policy makes of it."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from rich.console import Console, RenderableType
from rich.text import Text

from farm import lake as lakes
from farm.commandline import clean_line
from farm.fitting import TableHead, fit_table
from farm.plan import request as requests
from farm.plan.config import ConfigError
from farm.policies.rejudge import rejudge_rows
from farm.report.tables.causes import count_with_noun
from farm.report.tables.coverage import write_reproduce_command
from farm.report.words import format_percent, format_report_number
from farm.work.launch import LaunchedRun, ready_run_plan
from tasks import zoo
from tasks.judge.policy_files import Policy
from tasks.model import FAILED, Status
from tasks.nearest import suggest_nearest_names

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "zoo.yaml"
#: Kinds of a wrong row that come from what a kernel did, not from its numbers.
PROMISES = ("mutation", "aliasing", "invariant", "nondeterministic", "race", "out_of_bounds", "layout")


@dataclass(frozen=True)
class FaultCount:
    """What one policy makes of faults and of their twins: names of the ops, and the dtypes in which faults escape.

    caught: in every dtype that it is planted in some row of the fault failed or, of a class of `zoo.PRECISION`, is
    imprecise, which is a finding there; imprecise: none failed in any; escaped: in some dtype all pass; alarms: twins
    of which some row is neither a pass nor vacuous, as those of drawn inputs without elements are, and those of which
    no row of a dtype passes.
    """

    caught: list[str] = field(default_factory=list)
    imprecise: list[str] = field(default_factory=list)
    escaped: dict[str, list[str]] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)

    @property
    def detected(self) -> int:
        return len(self.caught) + len(self.imprecise)


#: Op name → dtype → statuses of its rows there under a policy.
Statuses = Mapping[str, Mapping[str, set[str]]]


def count_caught_faults(statuses: Statuses, faults: Mapping[str, zoo.Fault]) -> FaultCount:
    """The count over ``faults`` and their twins."""
    made = FaultCount()
    for name, fault in faults.items():
        findings = (*FAILED, *[Status.IMPRECISE] * (fault.kind in zoo.PRECISION))
        by_dtype = statuses.get(name, {})
        missed = [dtype for dtype, found in by_dtype.items() if found.isdisjoint(findings)]
        if missed or not by_dtype:
            made.escaped[name] = missed
        elif any(not found.isdisjoint(FAILED) for found in by_dtype.values()):
            made.caught.append(name)
        else:
            made.imprecise.append(name)
    for twin in list_fault_twins(faults):
        by_dtype = statuses.get(twin, {})
        if not by_dtype or any(found - {Status.VACUOUS} != {Status.PASS} for found in by_dtype.values()):
            made.alarms.append(twin)
    return made


def list_fault_twins(faults: Mapping[str, zoo.Fault]) -> list[str]:
    """The right kernels beside faults, each once."""
    return list(dict.fromkeys(name for fault in faults.values() for name in (fault.twin, *fault.honest)))


def rejudge_fault_statuses(rows: pd.DataFrame, policy: Policy, promises: bool = True) -> Statuses:
    """The statuses that ``policy`` gives rows, from their stored metrics alone.

    promises: whether what a kernel did beside its numbers (PROMISES) counts, which is no matter of a tolerance.
    """
    if not promises:
        broken = rows["kind"].isin(PROMISES) & rows["classic"].notna()
        numbers = rows["nonfinite"].gt(0).map({True: "nonfinite", False: "numbers"})
        rows = rows.assign(kind=rows["kind"].where(~broken, numbers))
    judged = rows[["op", "dtype"]].assign(status=rejudge_rows(rows, policy)["status"])
    if promises and "cheat" in rows:  # of a kernel whose time alone is a lie
        judged["status"] = judged["status"].mask(rows["cheat"].fillna("") != "", Status.WRONG.value)
    made: dict[str, dict[str, set[str]]] = {}
    for (op, dtype), some in judged.groupby(["op", "dtype"])["status"]:
        made.setdefault(str(op).partition(":")[2], {})[str(dtype)] = set(some)
    return made


def select_planted_faults(globs: Sequence[str]) -> dict[str, zoo.Fault]:
    """The faults that globs name, by themselves or by their twin; all if there is no glob. Raises ConfigError for
    none."""
    every = zoo.faults()
    names: set[str] = set() if globs else set(every)
    for glob in globs:
        found = {n for n, f in every.items() if fnmatch.fnmatchcase(n, glob) or fnmatch.fnmatchcase(f.twin, glob)}
        if not found:
            raise ConfigError(f"--ops: no kernel {glob!r}{suggest_nearest_names(glob, [*zoo.twins(), *every])}")
        names |= found
    return {name: fault for name, fault in every.items() if name in names}


def run_planted_faults(faults: Mapping[str, zoo.Fault], results: str, how: str) -> pd.DataFrame | None:
    """The rows of a run of the faults and their twins; None for an incomplete run, whose output is then shown."""
    right, classes = list_fault_twins(faults), {fault.kind for fault in faults.values()}
    print(
        f"{count_with_noun(len(faults), 'fault')} of {len(classes)} class{'es' * (len(classes) != 1)} in "
        f"{count_with_noun(len(right), 'op')}, each beside its right twin"
    )
    some = faults.keys() < zoo.faults().keys()
    ops = [f"user:{name}" for name in (*faults, *right)] if some else []
    # Of a few, what judges them and no more: each check of the config would else be asked of each of them.
    checks = (
        sorted({x for one in zoo.specimens() if one.wrong.keys() & faults.keys() for x in one.checks}) if some else []
    )
    lake = lakes.open_lake(results)
    lakes.check_lake_writable(lake)
    with ready_run_plan(requests.make_run_request(str(CONFIG), lake, ops, checks=checks, how=how)) as plan:
        made = LaunchedRun(plan)
        made.begin()
        try:
            made.dispatch(lambda dispatcher: None)
            rows, missing = made.finish()
        except OSError as error:
            missing = str(error)
    if missing:
        print(f"error: incomplete: {missing}", file=sys.stderr)
        return None
    print(f"run {made.run_id}: {len(rows)} rows in {results}")
    return rows


def find_misnamed_cheats(rows: pd.DataFrame, faults: Mapping[str, zoo.Fault]) -> dict[str, str]:
    """Of the kernels that cheat: those of which no row has the kind that they must be given, and which one a row
    has."""
    made = {}
    for name, fault in faults.items():
        if fault.kind.startswith(zoo.CHEAT):
            some = rows[rows["op"] == f"user:{name}"]
            said = [*some["kind"].fillna(""), *some["cheat"].fillna("")]
            if fault.kind.removeprefix(zoo.CHEAT) not in said:
                made[name] = ", ".join(sorted(set(filter(None, said)))) or "nothing"
    return made


def table_faults(faults: Mapping[str, zoo.Fault], counts: Mapping[str, FaultCount], width: int) -> RenderableType:
    """Per class of fault and policy: faults caught, and right twins of such faults that are blamed."""
    heads = ["faults", "twins", *(f"{name} caught blamed" for name in counts)]
    kinds = sorted({f.kind for f in faults.values()}, key=str.casefold)
    lines = [
        (_make_fault_line(kind, {n: f for n, f in faults.items() if f.kind == kind}, counts), "") for kind in kinds
    ]
    return fit_table(
        "Faults caught and right twins blamed, by class of fault and policy",
        [TableHead("class of fault"), *(TableHead(words, right=True) for words in heads)],
        [*lines, (_make_fault_line("all", faults, counts), "bold")],
        width,
    )


def _make_fault_line(heading: str, some: Mapping[str, zoo.Fault], counts: Mapping[str, FaultCount]) -> list[Text]:
    right = list_fault_twins(some)
    cells = [heading, str(len(some)), str(len(right))]
    for one in counts.values():
        found = len(some.keys() & {*one.caught, *one.imprecise})
        cells.append(f"{found:6} {len(set(right) & set(one.alarms)):6}")
    return list(map(Text, cells))


def explain_faults(
    console: Console,
    rows: pd.DataFrame,
    faults: Mapping[str, zoo.Fault],
    counts: Mapping[str, FaultCount],
    deciding: str,
    results: str,
) -> None:
    """Print the totals of every policy, and what escaped or was a false alarm under the one that decides."""

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    for name, made in counts.items():
        apart = f", {len(made.imprecise)} of them as imprecise" if made.imprecise else ""
        seen = "" if name == deciding else " by the numbers alone"
        line(
            f"{name}: {format_percent(made.detected, len(faults))} of the faults caught{seen}{apart}; {format_percent(len(made.alarms), len(list_fault_twins(faults)))} of the twins blamed"
        )
    made = counts[deciding]
    if steep := {n: f for n, f in faults.items() if f.kind == "steep point"}:
        right = set(list_fault_twins(steep))
        passed = format_percent(len(right - set(made.alarms)), len(right))
        line(
            f"steep points: {format_percent(len(steep.keys() & set(made.caught)), len(steep))} of the faults wrong, {passed} of the right ones pass"
        )
    if made.imprecise:
        line(f"imprecise, not wrong (faults that lose digits and no more): {', '.join(made.imprecise)}")
    if cheats := [name for name, fault in faults.items() if fault.kind.startswith(zoo.CHEAT)]:
        misnamed = find_misnamed_cheats(rows, faults)
        line(f"cheats: {format_percent(len(cheats) - len(misnamed), len(cheats))} named rightly")
        for name, said in misnamed.items():
            line(f"misnamed: {name}: {said}, not {faults[name].kind.removeprefix(zoo.CHEAT)}")
    for name, dtypes in made.escaped.items():
        fault, there = faults[name], rows[rows["dtype"].isin(dtypes)]
        line(
            f"escaped: {name} ({fault.kind}, of {fault.twin}) in {', '.join(dtypes)}: {_describe_worst_row(there, name, results)}"
        )
    for name in made.alarms:
        line(f"false alarm: {name}: {_describe_worst_row(rows, name, results)}")


def _describe_worst_row(rows: pd.DataFrame, name: str, results: str) -> str:
    """Metrics of the row of an op that is farthest off, and the command that shows it."""
    some = rows[rows["op"] == f"user:{name}"]
    if some.empty:
        return "it has no rows"
    bad = some[~some["status"].isin([Status.PASS, Status.VACUOUS])]
    some = bad if len(bad) else some
    row = some.iloc[int(some["error_units"].fillna(0).to_numpy().argmax())]
    command = write_reproduce_command(row["run_id"], row["case_id"], row["backend"], results, row["status"])
    text = f"{row['status']} at most, {format_report_number(row['error_units'])} error units, {format_report_number(row['max_ulp'])} ulps"
    return f"{text} {clean_line(row['error'], 200)}\n  {command}"
