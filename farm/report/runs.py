"""Which rows a report is about: those of one run, of several, or the newest of every case."""

from __future__ import annotations

import contextlib
import datetime
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc

from farm import lake
from farm.commandline import warn_in_a_line
from farm.lake.store import RUN_WORDS, find_run_by_word, keep_unique_rows, make_lake_frame
from farm.report.tables import changes
from farm.report.tables.coverage import list_inventory_backends, select_latest_rows

#: By how much clocks may differ.
CLOCKS = pd.Timedelta(minutes=1)
#: What is earlier is no time that a clock has told.
TIMED = pd.Timestamp("2000-01-01", tz="UTC")


def merge_run_records(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One description for several runs, oldest first: a backend is available when any run had it."""
    backends: dict[str, Any] = {}
    for run in runs:
        for name, said in list_inventory_backends(run.get("inventory")).items():
            if said.get("available") or not backends.get(name, {}).get("available"):
                backends[name] = said
    last = runs[-1] if runs else {}
    known = [entry for run in reversed(runs) for entry in (run.get("config") or {}).get("known_failures") or ()]
    named = {b["name"]: b for run in runs for b in (run.get("config") or {}).get("backends") or ()}
    return {
        "run_id": f"{len(runs)} runs",
        "runs": len(runs),
        "name": "the newest outcome of every case: " + ", ".join(str(run.get("run_id")) for run in runs[-5:]),
        "config": {
            "known_failures": list({json.dumps(entry, sort_keys=True): entry for entry in known}.values()),
            "backends": list(named.values()),
            "catalogs": [c for r in runs if not r.get("ops") for c in (r.get("config") or {}).get("catalogs") or ()],
        },
        "inventory": {"backends": backends},
        "quarantined": [record for run in runs for record in run.get("quarantined") or ()],
        "versions": last.get("versions"),
        "started_at": runs[0].get("started_at") if runs else None,
        "finished_at": last.get("finished_at"),
    }


def _read_run_or_warn(results: lake.Lake, run_id: str) -> dict[str, Any]:
    """The record of a run, which says at least whose it is; what it holds of another kind than a record's is left out."""
    try:
        record = lake.read_run(results, run_id)
    except lake.LakeError as problem:
        warn_in_a_line(f"{problem}; its rows are reported without config and inventory")
        return {"run_id": run_id}
    for name in ("config", "inventory"):
        if not isinstance(record.get(name) or {}, Mapping):
            warn_in_a_line(f"the record of run {run_id} has no mapping as {name}: its rows are reported without")
            del record[name]
    return record | {"run_id": str(record.get("run_id") or run_id)}


def name_diff_sides(results: str, sides: Sequence[str]) -> list[str]:
    """The sides of a diff as `farm.report.tables.changes.diff` takes them, each with the id of its run: a run (all its
    backends), RUN:BACKEND, or a backend of the run that is asked about.

    Raises LakeError for a lake without runs, or with too few; ValueError for a run beside a backend, which are no pair.
    """
    known = lake.list_known_runs(results)
    runs = [find_run_by_word(results, name.partition(":")[0]) for name in sides]
    whole = [":" not in name and run in known for name, run in zip(sides, runs, strict=True)]
    if any(whole) and not all(whole):
        run, other = (sides[k] for k in (whole.index(True), whole.index(False)))
        raise ValueError(
            f"--diff: {run} is a run, {other} is not one: give two runs, or a backend of it as {run}:BACKEND"
            f" ({describe_known_runs(known)})"
        )
    return [run + colon + rest for run, (_, colon, rest) in zip(runs, (name.partition(":") for name in sides))]


def describe_known_runs(known: Sequence[str]) -> str:
    """How the newest runs of a lake are called, in a few words; ``known``: their ids, oldest first."""
    words = {place: word for word, place in RUN_WORDS.items()}
    named = [
        f"{known[place]} ({words[place]})" if place in words else known[place]
        for place in range(-1, -6, -1)[: len(known)]
    ]
    return f"runs, newest first: {', '.join(named)}" + ", …" * (len(known) > len(named))


def load_rows_and_record(results: str, run_id: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows and description of one run, of one by its place (`farm.lake.store.RUN_WORDS`), or the newest outcome of every case ("all").

    Raises LakeError, with the nearest ids, when there is no such run.
    """
    opened = lake.open_lake(results)
    known = lake.list_known_runs(opened)
    run_id = find_run_by_word(opened, run_id)
    rows = lake.read(opened, None if run_id == "all" else run_id)
    warn_of_early_runs(find_early_runs(rows))
    if run_id == "all":
        return select_latest_rows(rows, known), merge_run_records([_read_run_or_warn(opened, name) for name in known])
    return rows, _read_run_or_warn(opened, run_id)


def find_run_before(results: str, run: Mapping[str, Any]) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """Rows (of these the columns that a comparison reads) and record of the last finished run of the same config before
    ``run``, by the config's name; None for none.

    Only rows of what ``run`` has a row of too. An earlier run without any is passed over: it was narrowed to something
    else.
    """
    if not (results and run.get("name") and run.get("config")):
        return None
    opened, run_id = lake.open_lake(results), str(run.get("run_id"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lake.LakeWarning)  # said when the run itself was reported
        if run_id not in (ids := lake.run_ids(opened)):
            return None
        now = lake.read_table(opened, run_id, ["case_id"])["case_id"].combine_chunks()
    for earlier in reversed(ids[: ids.index(run_id)]):
        with contextlib.suppress(lake.LakeError), warnings.catch_warnings():
            warnings.simplefilter("ignore", lake.LakeWarning)
            record = lake.read_run(opened, earlier)
            if record.get("name") != run["name"] or record.get("run_id") == run_id or not record.get("finished_at"):
                continue
            if _list_own_models_of_run(record) != _list_own_models_of_run(
                run
            ):  # --model a.py:Model and --model b.py:Model have one name
                continue
            table = lake.read_table(opened, earlier, [*changes.READ, "farm_version"])
            if len(rows := keep_unique_rows(table.filter(pc.is_in(table["case_id"], now)))):
                return make_lake_frame(rows), record
    return None


def _list_own_models_of_run(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(folder, model) of each model of the user's own that a run names."""
    config = run.get("config")
    catalogs = config.get("catalogs", []) if isinstance(config, Mapping) else []
    return sorted((str(c.get("root", "")), str(own.get("model", ""))) for c in catalogs for own in c.get("own") or [])


def choose_report_folder(results: str, run_id: str) -> Path:
    """Where a report goes: beside the rows of a local lake, into the working directory for a remote one."""
    if "://" in results:
        return Path(f"report-{run_id}")
    return Path(results) / "_report" if run_id == "all" else Path(results) / f"run={run_id}" / "_report"


def load_rows_for_report(results: str, run_id: str, sides: Sequence[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """`load_rows_and_record`, or for ``sides`` of a diff (`name_diff_sides`) of which one names its run, the rows of
    the runs named and, for a side without one, of ``run_id``; each with its own run_id.

    A run that is named is read whole: the newest outcome of every case would hide an older one.
    """
    known = lake.list_known_runs(results) if sides else []
    named = [name.partition(":")[0] for name in sides if ":" in name or name in known]
    if not named:
        return load_rows_and_record(results, run_id)
    loaded = [
        load_rows_and_record(results, name) for name in dict.fromkeys([*named, *([run_id] if len(named) < 2 else [])])
    ]
    rows = pd.concat([rows for rows, _ in loaded], ignore_index=True)
    rows.attrs = dict(loaded[0][0].attrs)
    return rows, loaded[-1][1]


def read_run_start(run_id: str) -> str:
    """When a run began, as its id says, in ISO form; "" where it does not."""
    try:
        return datetime.datetime.strptime(f"{run_id[:15]} +0000", "%Y%m%d-%H%M%S %z").isoformat()
    except ValueError:
        return ""


def find_early_runs(rows: pd.DataFrame) -> pd.Series:
    """Of runs with rows that began before the run itself did, by the date in its id, by how much: clocks disagree."""
    timed = rows[rows["started_at"] >= TIMED]  # a row without a time has the epoch's first days
    begun = timed.groupby("run_id", observed=True)["started_at"].min()
    told = pd.to_datetime(
        pd.Series({name: read_run_start(name) or None for name in begun.index}), utc=True, format="ISO8601"
    )
    before = told - begun
    return before[before > CLOCKS]


def warn_of_early_runs(wrong: pd.Series) -> None:
    """Say of what `find_early_runs` found that clocks disagree; nothing of nothing."""
    if len(wrong):
        runs = "1 run" if len(wrong) == 1 else f"{len(wrong):,} runs"
        words = f"rows of {runs} began before it by the date in its id, {wrong.idxmax()} by {wrong.max().round('s')}"
        warn_in_a_line(f"clocks disagree: {words}; runs are in the order of their ids")
