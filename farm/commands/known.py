"""Known failures and their life: farm known add RUN:CASE:BACKEND --reason … | list | check | seen"""

from __future__ import annotations

import argparse
import contextlib
import glob
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from farm import lake as lakes
from farm.commandline import refuse_in_a_line, write_asked_csv
from farm.exits import FOUND, OK
from farm.fitting import make_console
from farm.lake import minimal
from farm.options.known import make_parser
from farm.plan import known_lists, match_known
from farm.plan.config import load_known_failures
from farm.plan.config_schema import ConfigError
from farm.plan.known_failure import KnownFailure
from farm.plan.whose import FOLDER
from farm.program import name_farm_program
from farm.report.faces import terminal
from farm.report.runs import load_rows_and_record
from farm.report.tables import failures_alike
from farm.report.tables.causes import count_with_noun
from farm.report.tables.coverage import keep_distinct_rows, list_inventory_backends
from farm.report.tables.known_failures import BAD, NOT_TRIED, STATES, list_known_failures, view_known_failures_life
from farm.reproduction.find_case import find_row_of_key, parse_row_key
from tasks.model import Refusal, flags
from tasks.model.failing import describe_failure_manner
from tasks.nearest import suggest_nearest_names

#: Entries that name no row, which are named themselves where they are not more.
_NAMED = 5


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    return {"add": _add_known_failures, "seen": _mark_known_seen}.get(args.command, _show_or_check_known)(args)


def _add_known_failures(args: argparse.Namespace) -> int:
    results = lakes.open_lake(args.results)
    key = parse_row_key(args.key, results)
    row, _ = find_row_of_key(key, results)
    record = lakes.read_run(results, key.run_id)
    table = keep_distinct_rows(lakes.read(results, key.run_id))
    same = [(name, row[name]) for name in ("op", "variant", "dtype", "backend", "check", "distribution")]
    mine = table[pd.concat([table[name] == value for name, value in same], axis=1).all(axis=1)].to_dict("records")
    mine = [line for line in mine if describe_failure_manner(line) == describe_failure_manner(row)]
    told = {name: getattr(args, name) for name in ("reason", "owner", "link", "versions", "expires", "fault")}
    entry = known_lists.check_known_entry(
        known_lists.write_known_entry(row, mine, {**_read_reduced_case(results, row), **told})
    )
    named = known_lists.find_known_list(Path(str(record.get("path") or "")), key.backend)
    usual = FOLDER / f"{key.backend}.yaml" if FOLDER.is_dir() else Path("known.yaml")
    file = args.file or named or usual
    listed = [*(match_known.parse_known_entries(record) or []), *(load_known_failures(file) if file.exists() else [])]
    rows = _add_reduced_ops(pd.DataFrame([row]), results, [*listed, entry])
    if (place := int(match_known.match_known_to_rows(rows, listed).entry[0])) >= 0:
        raise ConfigError(f"{key} is known already: {listed[place].reason}; change that entry, or name another case")
    if match_known.match_known_to_rows(rows, [entry]).entry[0] < 0:
        raise ConfigError(
            f"it would not cover {key}: check --versions and --expires (the row is of {row['runtime_version']}, {match_known.find_day_of_time(row['started_at'])})"
        )
    known_lists.append_known_entry(file, entry)
    covered = match_known.match_known_to_rows(_add_reduced_ops(table, results, [entry]), [entry]).entry
    print(
        f"{file}: {entry.op} on {entry.backend}, which covers {count_with_noun(int((covered >= 0).sum()), 'row')} of the run"
    )
    if named is not None and file.resolve() == named.resolve():
        print(f"{record['path']} names that list: its next run knows the failure")
    else:
        print(f"To use it, add known_failures: {shlex.quote(str(file))} to a config (path relative to the config)")
    return OK


def _add_reduced_ops(rows: pd.DataFrame, results: lakes.Lake, entries: Sequence[KnownFailure]) -> pd.DataFrame:
    rows.attrs["results"] = results.uri
    return failures_alike.add_reduced_column(rows, entries)


def _read_reduced_case(results: lakes.Lake, row: dict[str, Any]) -> dict[str, Any]:
    """Of a generated case that was made small its ops, and the words of its attributes that the row's flags have."""
    if row["catalog"] != "fuzz":
        return {}
    for record in minimal.read_minimal_cases(results, [row["run_id"]]):
        if (record["case_id"], record["backend"]) == (row["case_id"], row["backend"]):
            finding = record["finding"]
            words = [f"*{k}={v}" for k, v in finding["attributes"].items() if isinstance(v, str)]
            return {
                "reduced": finding["ops"],
                "flags": [x for x in words if flags.matches_row_flags(row["flags"], [x])],
            }
    return {}


def _read_known_run(args: argparse.Namespace) -> tuple[pd.DataFrame, dict[str, Any], list[KnownFailure]]:
    """The distinct rows of the run, its record, and the known failures that are asked about. Raises ConfigError."""
    listed = [x for path in args.lists for x in load_known_failures(path)]  # a list that is not there is said first
    rows, run = load_rows_and_record(args.results, args.run)
    entries = listed if args.lists else match_known.parse_known_entries(run)
    if entries is None:
        raise ConfigError(f"the record of run {run.get('run_id')} does not list known failures; name a list")
    return keep_distinct_rows(rows), run, entries


def _mark_known_seen(args: argparse.Namespace) -> int:
    rows, run, entries = _read_known_run(args)
    met = match_known.match_known_to_rows(failures_alike.add_reduced_column(rows, entries), entries)
    asked = match_known.make_pattern_matcher([args.backend])
    news: dict[int, set[str]] = {}
    for k, backend in zip(met.entry[met.first].tolist(), rows["backend"][met.first]):
        if asked([backend]):
            news.setdefault(k, set()).add(backend)
    place = _find_known_entries(args.lists or [Path(str(run.get("path") or ""))])
    files: dict[Path, dict[known_lists.EntryPlace, tuple[KnownFailure, list[str]]]] = {}
    for k, backends in sorted(news.items()):
        entry = entries[k]
        if (at := place.get(_strip_known_seen(entry))) is None:
            raise ConfigError(f"no list has the entry {entry.op} on {entry.backend}: {entry.reason}; name its list")
        names = [glob.escape(name) for name in sorted(backends)]
        files.setdefault(at.file, {})[at] = (entry, names)
        print(f"{at}: {entry.op} on {entry.backend}: seen on {', '.join(names)}")
    for file, those in files.items():
        known_lists.add_seen_to_known(file, those)
    print(f"{count_with_noun(len(news), 'known failure')} of run {run.get('run_id')} seen on another backend")
    return OK


def _show_or_check_known(args: argparse.Namespace) -> int:
    rows, run, entries = _read_known_run(args)
    entries = _keep_asked_backends(entries, args.backend, rows, run)
    place = _find_known_entries(args.lists or [Path(str(run.get("path") or ""))])
    frame = list_known_failures(rows, entries).assign(place=[str(place.get(_strip_known_seen(k), "")) for k in entries])
    checking = args.command == "check"
    untried = frame["state"] == NOT_TRIED
    shown = frame[frame["state"].isin(BAD)] if checking else frame.iloc[untried.argsort(kind="stable")]
    if not args.lists and not checking and untried.sum() > _NAMED:
        shown = frame[~untried]  # a config may name the lists of all runtimes there are
    title = f"Known failures and run {run.get('run_id')}"
    if len(shown):
        terminal.print_view(view_known_failures_life(shown, title), make_console(), len(shown))
    if checking and (args.lists or untried.sum() <= _NAMED):
        for line in frame[untried].head(_NAMED).itertuples():
            print(f"{f'{line.place}: ' * bool(line.place)}{NOT_TRIED}: {line.op} on {line.backend}: {line.reason}")
    counts = frame["state"].value_counts()
    print(
        f"{count_with_noun(len(frame), 'known failure')}: "
        + ", ".join(f"{counts[x]:,} {x}" for x in STATES if x in counts)
        + f" (shown where their list is named, and by --csv: {name_farm_program()} known list LIST)"
        * (not checking and len(shown) < len(frame))
    )
    if args.csv:
        write_asked_csv(shown if checking else frame, args.csv)
    return FOUND if checking and len(shown) else OK


def _keep_asked_backends(
    entries: Sequence[KnownFailure], backend: str, rows: pd.DataFrame, run: dict[str, Any]
) -> list[KnownFailure]:
    """The entries of the backends that --backend asks for. Raises Refusal where none names one that the run has not: a
    check of nothing would pass."""
    asked = match_known.make_pattern_matcher([backend])
    listed = {str(one["name"]) for one in (run.get("config") or {}).get("backends") or ()}
    there = {*rows["backend"], *list_inventory_backends(run.get("inventory")), *listed}
    mine = [name for name in there if asked([name])]
    kept = [x for x in entries if asked([x.backend]) or match_known.make_pattern_matcher([x.backend])([backend, *mine])]
    # An entry of every backend names none.
    if entries and not mine and not any(asked([x.backend]) or x.backend != "*" for x in kept):
        names = sorted({*there, *(x.backend for x in entries)})
        raise Refusal(
            f"--backend: neither the run nor a known failure is of backend {backend!r}{suggest_nearest_names(backend, names)}"
        )
    return kept


def _strip_known_seen(entry: KnownFailure) -> KnownFailure:
    """An entry without where it was seen, which a list may have noted since a run recorded it."""
    return entry.model_copy(update={"seen": ()})


def _find_known_entries(files: Sequence[Path]) -> dict[KnownFailure, known_lists.EntryPlace]:
    """Where the entries (`_strip_known_seen`) of files stand; of a config that the run's record names only what can still be
    read."""
    found: dict[KnownFailure, known_lists.EntryPlace] = {}
    for file in files:
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            found |= {_strip_known_seen(entry): at for entry, at in known_lists.find_known_places(file).items()}
    return found
