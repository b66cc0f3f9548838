"""May it ship: the items of a config's ``gate``, each with what was found, and what is quarantined as flaky with its evidence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pydantic

from farm import lake as lakes
from farm.commandline import clean_line
from farm.exits import FOUND, INCOMPLETE, OK
from farm.lake.store import keep_unique_rows, make_lake_frame
from farm.plan import match_known
from farm.report.tables.causes import NEW, count_with_noun
from farm.report.tables.coverage import (
    CELL,
    FAILED_STATUSES,
    count_rows_once,
    coverage,
    list_inventory_backends,
    make_reproduce_commands,
    rank_status_column,
    table_unavailable_backends,
)
from farm.report.tables.findings import LAST, list_new_cells_commands
from farm.report.tables.known_failures import BAD, list_known_failures
from farm.report.tables.overview import describe_finding_size
from farm.report.tables.since_last_run import since
from farm.report.tables.view import Report, View, ViewColumn, make_op_column, make_status_column, make_text_column
from farm.report.words import format_percent, format_report_number
from tasks.backends import list_backend_names
from tasks.model import Status
from tasks.nearest import suggest_meant_names

if TYPE_CHECKING:
    from farm.plan.config_schema import Flaky, Floor, Gate

#: What an item may be.
OPEN, CLOSED, ABSENT = "open", "closed", "not there"
#: Cases a run of a flaky backend that fail so often in a row by chance alone: where these are less, it is not chance.
IN_A_ROW = 0.01
#: What a gate is called by its exit code.
GATES = {OK: OPEN, FOUND: CLOSED, INCOMPLETE: "not proved"}


@dataclass(frozen=True)
class GateItem:
    """What is asked, whether it holds (``OPEN``, ``CLOSED``, or ``ABSENT``: there is nothing to ask), and what was
    found."""

    asked: str
    state: str
    said: str


@dataclass(frozen=True)
class JudgedGate:
    """items: in the order of the config; new: cells with failures that no known failure covers, one line each, with
    ``evidence`` ("" or why it is quarantined)."""

    items: tuple[GateItem, ...]
    new: pd.DataFrame

    @property
    def code(self) -> int:
        """The exit code: closed before incomplete."""
        states = {item.state for item in self.items}
        return FOUND if CLOSED in states else INCOMPLETE if ABSENT in states else OK

    @property
    def sentence(self) -> str:
        failed, absent = (
            "; ".join(item.said for item in self.items if item.state == state) for state in (CLOSED, ABSENT)
        )
        quarantined = int((self.new["evidence"] != "").sum())
        also = f"; {count_with_noun(quarantined, 'flaky cell')} in quarantine" * bool(quarantined)
        if failed:
            return f"gate CLOSED: {failed}{also}" + f". Could not be judged: {absent}" * bool(absent)
        if absent:
            return f"gate NOT PROVED, could not be judged: {absent}{also}"
        return (
            f"gate OPEN: {count_with_noun(len(self.items), 'item')} {'hold' if len(self.items) > 1 else 'holds'}{also}"
        )


def read_gate_of_run(run: Mapping[str, Any]) -> Gate | None:
    """The gate of the config that a run's record has; None without one. Raises ConfigError."""
    from farm.plan.config_schema import ConfigError, Gate  # all of a config, of which a report needs nothing else

    config = run.get("config")
    told = config.get("gate") if isinstance(config, dict) else None
    try:
        return None if told is None else Gate.model_validate(told)
    except pydantic.ValidationError as error:
        raise ConfigError(
            f"the gate of run {run.get('run_id')} is of another version ({error.errors()[0]['msg']}); give one with --config"
        ) from None


def judge_run_gate(report: Report, gate: Gate) -> JudgedGate:
    """A run beside its gate."""
    new = _find_new_failures(report, gate.flaky)
    return JudgedGate(tuple(_list_gate_items(report, gate, new)), new)


def _list_gate_items(report: Report, gate: Gate, new: pd.DataFrame) -> Iterator[GateItem]:
    said = report.verdict
    if "name" not in report.run:
        yield GateItem("a complete run", ABSENT, "the run has no record, so it may be incomplete")
    elif said.missing or said.gone or not said.finished:
        yield GateItem("a complete run", ABSENT, said.conclusion)
    elif said.left_out:
        yield GateItem("a complete run", ABSENT, said.left_out)
    if said.unusable:
        yield GateItem("what you gave the backends can be used", CLOSED, said.unusable)
    if not said.judged:
        yield GateItem("something judged", ABSENT, "nothing was judged")
    counted = new[new["evidence"] == ""]
    asked, found = (
        f"at most {count_with_noun(gate.new, 'cell')} with new failures",
        f"{count_with_noun(len(counted), 'cell')} with new failures",
    )
    if len(counted) > gate.new and not said.recorded:
        found = f"{count_with_noun(len(counted), 'cell')} failed, and no record says which are known (name a list with --config)"
        yield GateItem(asked, ABSENT, found)
    else:
        yield GateItem(asked, _state_gate_item(len(counted) <= gate.new), found)
    if gate.imprecise is not None:
        yield _count_imprecise_item(report, gate.imprecise)
    if gate.less_precise is not None:
        yield _check_less_precise_cells(report, gate.less_precise)
    for share in gate.coverage:
        yield _check_coverage_floor(report, share)
    for floor in gate.speedup:
        yield _check_speedup_floor(report, floor)
    if gate.known:
        entries = match_known.parse_known_entries(report.run) or []
        bad = list_known_failures(report.rows, entries)
        bad = bad[bad["state"].isin(BAD)]
        told = ", ".join(f"{line.state}: {line.op} on {line.backend}" for line in bad.head(3).itertuples())
        words = f"{count_with_noun(len(bad), 'known failure')} stale, expired or otherwise" + f" ({told})" * bool(told)
        yield GateItem("no known failure stale, expired or otherwise", _state_gate_item(bad.empty), words)


def _state_gate_item(holds: bool) -> str:
    return OPEN if holds else CLOSED


def _count_imprecise_item(report: Report, most: int) -> GateItem:
    rows = report.rows
    found = rows[(rows["status"] == Status.IMPRECISE.value) & (rows["standing"] == NEW)]
    count = len(found.drop_duplicates(CELL))
    asked = f"at most {count_with_noun(most, 'cell')} with imprecise results"
    return GateItem(asked, _state_gate_item(count <= most), f"{count_with_noun(count, 'cell')} with imprecise results")


def _check_less_precise_cells(report: Report, most: int) -> GateItem:
    asked = f"at most {count_with_noun(most, 'cell')} fourfold less precise than in the last run"
    earlier = since(report)
    if earlier is None:
        return GateItem(asked, OPEN, "there is no earlier run of this config in the lake")
    count = int((earlier.cells["change"] == "less precise").sum())
    return GateItem(
        asked,
        _state_gate_item(count <= most),
        f"{count_with_noun(count, 'cell')} less precise than in {earlier.run_id}",
    )


def _select_floor_rows(report: Report, floor: Floor) -> pd.DataFrame:
    rows = report.rows
    chosen = {label: _meets_gate_floor(label, floor) for label in rows["label"].unique()}
    backends = {name: any(fnmatchcase(name, glob) for glob in floor.backends) for name in rows["backend"].unique()}
    return rows[rows["label"].map(chosen).astype(bool) & rows["backend"].map(backends).astype(bool)]


def _meets_gate_floor(label: str, floor: Floor) -> bool:
    return any(fnmatchcase(name, glob) for glob in floor.ops for name in (label, label.partition(":")[2]))


def _describe_floor_globs(floor: Floor) -> str:
    return " ".join(
        f"{words} {', '.join(globs)}" for words, globs in (("of", floor.ops), ("on", floor.backends)) if globs != ["*"]
    )


def _find_absent_backends(report: Report, floor: Floor) -> str:
    """The backends asked for that were unavailable, and names that nothing has."""
    missing = table_unavailable_backends(report.run.get("inventory")).index
    away = [name for name in missing if any(fnmatchcase(name, glob) for glob in floor.backends)]
    told = [f"{', '.join(away)} unavailable (farm doctor says why)"] if away else []
    seen = sorted({*report.rows["backend"], *list_inventory_backends(report.run.get("inventory"))})
    there = {*seen, *list_backend_names()}
    for name in floor.backends:
        if not has_magic(name) and name.partition("@")[0] not in there:
            told.append(f"there is no backend {name}{suggest_meant_names(name, there)}")
    for name in _find_lost_ops(report, floor):
        bare = {x if ":" in name else x.partition(":")[2] for x in report.rows["label"]}
        told.append(f"the run has no op {name}{suggest_meant_names(name, bare)}")
    return "".join(f", {words}" for words in told)


def _find_lost_ops(report: Report, floor: Floor) -> list[str]:
    """The ops that a floor names and the run has not."""
    labels = [x for label in report.rows["label"].unique() for x in (label, label.partition(":")[2])]
    return [glob for glob in floor.ops if not any(fnmatchcase(label, glob) for label in labels)]


def _check_coverage_floor(report: Report, floor: Floor) -> GateItem:
    asked = " ".join(filter(None, (f"coverage at least {floor.at_least:g}", _describe_floor_globs(floor))))
    rows = _select_floor_rows(report, floor)
    total = coverage(count_rows_once(rows), by=()).iloc[0] if len(rows) else {"judged": 0, "valid": 0}
    left_out = _count_left_out_of_floor(report, floor)
    valid = total["valid"] + left_out
    if not valid:
        return GateItem(asked, ABSENT, f"{asked}: nothing planned and valid{_find_absent_backends(report, floor)}")
    holds = total["judged"] / valid >= floor.at_least
    found = f"it is {format_percent(total['judged'], valid)}"
    if not holds and (total["judged"] + left_out) / valid >= floor.at_least:  # once they are judged as well
        return GateItem(asked, ABSENT, f"{asked}: {found}")
    return _judge_gate_floor(report, floor, asked, holds, found)


def _count_left_out_of_floor(report: Report, floor: Floor) -> int:
    """Cases that a floor is about and --budget left out: they are not judged."""
    cases = (report.run.get("left_out") or {}).get("cases") or {}
    return sum(
        count
        for label, by_backend in cases.items()
        for name, count in by_backend.items()
        if _meets_gate_floor(label, floor) and any(fnmatchcase(name, glob) for glob in floor.backends)
    )


def _check_speedup_floor(report: Report, floor: Floor) -> GateItem:
    """A cell is too slow if its whole interval of confidence is below the floor."""
    asked = " ".join(filter(None, (f"speedup at least {floor.at_least:g}", _describe_floor_globs(floor))))
    rows = _select_floor_rows(report, floor)
    rows = rows[rows["speedup"].notna()]
    if rows.empty:
        return GateItem(asked, ABSENT, f"{asked}: no speedup was measured")
    slow = rows[rows["speedup_high"].fillna(rows["speedup"]) < floor.at_least].sort_values("speedup")
    told = (
        f", {slow['label'].iloc[0]} on {slow['backend'].iloc[0]} {format_report_number(slow['speedup'].iloc[0])}"
        if len(slow)
        else ""
    )
    return _judge_gate_floor(
        report, floor, asked, slow.empty, f"{len(slow)} of {count_with_noun(len(rows), 'case')} below it{told}"
    )


def _judge_gate_floor(report: Report, floor: Floor, asked: str, holds: bool, said: str) -> GateItem:
    """What was found of a floor, which is not proved while a backend that it names had no row."""
    there = report.rows["backend"].unique()
    lost = [glob for glob in floor.backends if not any(fnmatchcase(name, glob) for name in there)]
    lost += _find_lost_ops(report, floor)
    if holds and lost:
        return GateItem(
            asked,
            ABSENT,
            f"{asked}: {said}, but nothing ran on {', '.join(lost)}{_find_absent_backends(report, floor)}",
        )
    return GateItem(asked, _state_gate_item(holds), f"{asked}: {said}")


def _find_new_failures(report: Report, flaky: Flaky | None) -> pd.DataFrame:
    """Cells with new failures, the worst first: their worst row with ``samples`` (that fail so) and ``evidence``."""
    rows = report.rows
    new = rows[
        (rows["standing"] == NEW) & (rows["status"].isin(FAILED_STATUSES) | (rows["status"] == Status.INVALID.value))
    ]
    order = new.assign(rank=rank_status_column(new["status"]), size=-new["error_units"].fillna(float("inf")))
    order = order.sort_values(["rank", "size", "case_id"], kind="stable")
    of_case = _explain_flaky_failure(report, new, flaky) if flaky and len(new) else {}
    told = [of_case.get(pair, "") for pair in zip(order["case_id"], order["backend"])]
    order = order.assign(proof=told, firm=[not text for text in told])
    order = order.sort_values("firm", ascending=False, kind="stable")  # one sample that is not flaky is enough
    worst = order.drop_duplicates(CELL).rename(columns={"proof": "evidence"})
    counts = new.groupby(CELL, dropna=False).size().rename("samples")
    worst = worst.join(counts, on=CELL) if len(worst) else worst.assign(samples=0)
    return worst.assign(
        reproduce=make_reproduce_commands(worst, str(rows.attrs.get("results", "results")))
    ).reset_index(drop=True)


def _explain_flaky_failure(report: Report, new: pd.DataFrame, flaky: Flaky) -> dict[tuple[str, str], str]:
    """Why a case on a backend is held to be flaky, by both: how often it passed again in the last runs on the same
    inputs with the same version of the runtime, after it had failed."""
    results, this = name_report_rows(report)
    if not results:
        return {}
    opened = lakes.open_lake(results)
    columns = [*lakes.KEY, "attempts", "status", "digest", "runtime_version"]
    where = {"backend": sorted(set(new["backend"]))}
    if not flaky.backend:
        where["case_id"] = sorted(set(new["case_id"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lakes.LakeWarning)  # said when the run itself was read
        ids = [name for name in lakes.run_ids(opened) if name <= this][-flaky.of :]
        table = make_lake_frame(
            keep_unique_rows(pa.concat_tables([lakes.read_table(opened, name, columns, where) for name in ids]))
        )
    keys = ["case_id", "backend", "digest", "runtime_version"]
    now = report.rows[report.rows["backend"].isin(where["backend"])]
    latest = now[[*keys, "status"]].drop_duplicates(["case_id", "backend"]).rename(columns={"status": "now"})
    same = table.fillna("").merge(latest, on=keys)
    same = same.sort_values(["backend", "case_id", "run_id"], kind="stable")
    pair = same.groupby(["backend", "case_id"], sort=False)
    same["failed"] = same["status"].isin(FAILED_STATUSES)
    same["so"] = same["status"] == same["now"]  # what is known to be wrong may raise by chance
    same["again"] = pair["failed"].shift(fill_value=False) & (same["status"] == Status.PASS.value)
    told = same.groupby(["case_id", "backend"]).agg(
        runs=("failed", "size"), failed=("failed", "sum"), again=("again", "sum"), row=("so", _count_failures_in_a_row)
    )
    of_backend = same.groupby("backend").agg(
        again=("again", "sum"), share=("again", "mean"), cases=("case_id", "nunique")
    )
    found = {}
    for case in zip(new["case_id"], new["backend"]):
        if case not in told.index:
            continue
        line, its = told.loc[case], of_backend.loc[case[1]]
        in_a_row, others = int(line["row"]), int(its["again"])
        chance = (
            its["cases"] * its["share"] ** in_a_row
        )  # cases a run that fail so often in a row where each fails by chance
        runs = f"{count_with_noun(int(line['runs']), 'run')} of the same inputs and version"
        if line["again"] >= flaky.times:
            found[case] = f"flaky: failed in {line['failed']} of {runs}, and passed {line['again']} times in between"
        elif flaky.backend and others >= flaky.backend and line["runs"] > in_a_row:
            words = f"flaky backend: in {runs} {count_with_noun(others, 'failure')} of it passed again; this one"
            if in_a_row == 1:
                found[case] = f"{words} did not fail like this in the previous run"
            elif chance >= IN_A_ROW:
                found[case] = (
                    f"{words} failed {in_a_row} times in a row, as {format_report_number(chance)} cases a run do by chance"
                )
    return found


def _count_failures_in_a_row(so: pd.Series) -> int:
    """In how many of the last runs it failed so, without one in between that did not."""
    return int(so[::-1].cummin().sum())


def name_report_rows(report: Report) -> tuple[str, str]:
    """The lake and the run of a report."""
    return str(report.rows.attrs.get("results", "")), str(report.run.get("run_id"))


def view_gate(report: Report, found: JudgedGate, other_known: bool = False) -> list[View]:
    """Items, and the cells with new failures: on a terminal the worst of them, and how to see all; then those in
    quarantine, with their evidence.

    other_known: known failures took the place of the run's own. A report of the run then calls other cells new: it is not
    pointed to, and no cell is left to it."""
    items = pd.DataFrame([vars(item) for item in found.items])
    shown = (make_text_column("state"), make_text_column("asked"), make_text_column("said", "found"))
    columns = (
        make_status_column(), make_op_column(), make_text_column("dtype"), make_text_column("backend"),
        ViewColumn(
            "what (worst case)",
            lambda line: clean_line(describe_finding_size(line), 300),
            foreign=True,
            short=lambda line: clean_line(describe_finding_size(line, brief=True)),
        ),
    )  # fmt: skip
    quarantined = found.new["evidence"] != ""
    counted = found.new[~quarantined].reset_index(drop=True)
    of_cells: dict[str, Any] = {"unit": "cells", "counted": True, "command": "reproduce"}
    brief: dict[str, Any] = (
        {} if other_known else {"see": list_new_cells_commands(report, len(found.new)), "screen": LAST}
    )
    return [
        View("gate", "Gate", items, shown, unit="items", counted=True),
        View(
            "gate_flaky",
            "Flaky, in quarantine",
            found.new[quarantined].reset_index(drop=True),
            (*columns[:-1], ViewColumn("quarantined", lambda line: line["evidence"], foreign=True), columns[-1]),
            **of_cells,
        ),
        View("gate_new", "New failures", counted, columns, **of_cells, **brief),
    ]
