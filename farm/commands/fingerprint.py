"""farm fingerprint BACKEND…: in what order, bits and rounding a backend adds, read from outside; what differs between two passports."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
from rich.console import Console

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.exits import INCOMPLETE, OK, allow_interrupts
from farm.fitting import make_console
from farm.options.fingerprint import READ, make_parser
from farm.plan.config import BackendConfig, Config, ConfigError, check_config_backend, is_config_path, load_config
from farm.plan.request import RunRequest, parse_budget_seconds
from farm.report.faces import terminal
from farm.report.tables.passports import (
    SUM,
    compare_two_passports,
    select_newest_readings,
    table_passport_readings,
    view_passport,
    view_passport_differences,
)
from farm.work.budget import apply_budget
from farm.work.launch import LaunchedRun, ready_run_plan
from farm.work.progress import RunProgress, print_preflight_lines
from farm.work.state import RunPlan
from tasks import catalogs
from tasks.cache import default_cache
from tasks.catalogs.critical import DTYPES
from tasks.judge import policy_files
from tasks.model import Refusal
from tasks.nearest import suggest_nearest_names
from tasks.passport import ARITHMETIC
from tasks.passport.sum_trees import decode_tree, draw_tree_text

#: Name of its runs.
NAME = "fingerprint"
#: Lines of a table.
_MOST = 400


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 read, 2 bad input, 3 incomplete."""
    parser = make_parser()
    args = parser.parse_args(argv)
    lake = lakes.open_lake(args.results)
    if args.diff:
        if args.backends:
            parser.error("--diff compares what the lake has: name its two passports and no BACKEND")
        one, other = args.diff
        return _print_fingerprint_difference(lake, one, other, as_json=args.json)
    if not args.backends:
        parser.error("name a BACKEND, e.g. farm fingerprint torch-cpu; farm doctor --list has them")
    backends = _list_asked_backends(args.backends)
    if args.kept:
        readings = pd.concat([_find_asked_readings(lake, backend.name) for backend in backends])
    else:
        run_id, code = _ask_readings(args, backends, lake)
        if code != OK:
            return code
        readings = table_passport_readings(lake, run_id)
    if args.json:
        _print_fingerprint_json(readings)
        return OK
    if not len(readings):
        raise Refusal("nothing was read: farm report says what became of the cases")
    terminal.print_view(view_passport(readings), make_console(), _MOST)
    if args.tree:
        _print_fingerprint_orders(readings)
    return OK


def _list_asked_backends(names: Sequence[str]) -> list[BackendConfig]:
    """Backends by name, and those of configs. Raises ConfigError."""
    found: dict[str, BackendConfig] = {}
    for name in names:
        for backend in load_config(name).backends if is_config_path(name) else [BackendConfig(name=name)]:
            check_config_backend(backend, "BACKEND")
            found.setdefault(backend.name, backend)
    return list(found.values())


def _ask_readings(args: Any, backends: Sequence[BackendConfig], lake: lakes.Lake) -> tuple[str, int]:
    """(the run that reads, exit code). Raises ConfigError."""
    console = Console(stderr=args.json, emoji=False)
    config = Config.model_validate(
        {
            "name": NAME,
            "catalogs": _choose_catalogs_to_read(args.ops, args.dtypes),
            "checks": [ARITHMETIC],
            "backends": backends,
            "deadline_s": 300.0,
        }
    )
    request = RunRequest(
        config,
        policy_files.load_policy(config.policy),
        lake,
        default_cache(),
        "",
        (),
        False,
        how=args.on,
        address=args.address,
        budget_s=parse_budget_seconds(args.budget),
    )
    tell = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    try:
        with ready_run_plan(request, tell=tell) as plan:
            print_preflight_lines(console, plan.offers.values(), plan.offers, plan.describe_sharing)
            if not plan.runs:
                raise ConfigError("none of these backends is available here (see the reasons above)")
            plan = apply_budget(plan)
            run = LaunchedRun(plan)
            run.begin()
            progress = RunProgress(console)
            try:
                with allow_interrupts():
                    run.dispatch(progress)
            finally:
                progress.close(run.state)
            _, missing = run.finish(None)
            for line in _describe_left_out(plan, run.record.get("left_out") or {}):
                tell(line)
            return run.run_id, INCOMPLETE if missing else OK
    except KeyboardInterrupt:
        print("interrupted; farm fingerprint begins anew", file=sys.stderr)
        return "", INCOMPLETE


def _describe_left_out(plan: RunPlan, left_out: Mapping[str, Any]) -> list[str]:
    """What a budget left unread, by backend: how many of its questions (an op in a dtype at so many rows and terms),
    and of which ops."""
    cases, whole = left_out.get("cases", {}), plan.whole
    if whole is None:
        return []
    lines = []
    for b in range(len(plan.matrix.backends)):
        name = plan.name(b)
        ops = {op.partition(":")[2]: by_name[name] for op, by_name in cases.items() if name in by_name}
        if ops:
            listed = ", ".join(f"{op} {count}" for op, count in ops.items())
            lines.append(
                f"not read of {name}: {sum(ops.values())} of {int(whole.wanted[:, b].sum())} questions ({listed})"
            )
    return lines


def _choose_catalogs_to_read(ops: Sequence[str], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """The catalogs of `READ` with the ops of which sums are read that some patterns name, and the dtypes that they
    have. Raises ConfigError for a dtype that none has."""
    known = [x for own in READ.values() for x in own]
    if unknown := next((x for x in dtypes or () if x not in known), ""):
        raise ConfigError(f"--dtypes: {unknown} is none in which sums are read{suggest_nearest_names(unknown, known)}")
    found = []
    for name, own in READ.items():
        read = {x.label.partition(":")[2] for x in catalogs.get_catalog(name).entries() if ARITHMETIC in x.checks}
        named = [x for x in ops or ["*"] if fnmatch.filter(read | {x.partition(".")[0] for x in read}, x)]
        wanted = [x for x in dtypes or own if x in own]
        if named and wanted:
            found.append({"name": name, "ops": named, "dtypes": wanted, "samples": 1})
    # What no catalog has is refused by the first, with the nearest name.
    return found or [{"name": "critical", "ops": ops or ["*"], "dtypes": dtypes or list(DTYPES), "samples": 1}]


def _find_asked_readings(lake: lakes.Lake, name: str) -> pd.DataFrame:
    """The newest readings of BACKEND, or those of RUN_ID:BACKEND. Raises Refusal."""
    run_id, _, backend = name.rpartition(":")
    found = table_passport_readings(lake, run_id or None)
    mine = found[found["backend"] == backend]
    if mine.empty:
        known = sorted(set(found["backend"]))
        has = f"; it has {', '.join(known)}" if known else ""
        raise Refusal(
            f"{lake.uri} has no passport of {name}{suggest_nearest_names(backend, known)}{has}; make it: farm fingerprint {backend}"
        )
    return select_newest_readings(mine).drop_duplicates(["backend", *SUM, "sample", "where"], keep="last")


def _print_fingerprint_difference(lake: lakes.Lake, one: str, other: str, as_json: bool) -> int:
    found = compare_two_passports(_find_asked_readings(lake, one), _find_asked_readings(lake, other))
    if as_json:
        for line in found.to_dict("records"):
            print(json.dumps({k: None if v != v else v for k, v in line.items()}, default=str))
        return OK
    terminal.print_view(view_passport_differences(found, one, other), make_console(), _MOST)
    return OK


def _print_fingerprint_json(readings: pd.DataFrame) -> None:
    for line in readings.to_dict("records"):
        plain = {k: list(v) if isinstance(v, tuple) else None if v is None or v != v else v for k, v in line.items()}
        print(json.dumps(plain, default=str, ensure_ascii=False))


def _print_fingerprint_orders(readings: pd.DataFrame) -> None:
    """Each distinct order once, with what it is the order of."""
    of: dict[tuple[int, ...], list[str]] = {}
    named = dict(zip(readings["tree"], readings["kind"]))
    for line in readings[readings["tree"].notna()].to_dict("records"):
        what = f"{line['backend']} {line['op'].partition(':')[2]} {line['dtype']}"
        of.setdefault(line["tree"], []).append(what)
    for parents, whats in of.items():
        tree = decode_tree(parents)
        few = list(dict.fromkeys(whats))
        print(f"\n{', '.join(few[:4])}{f' and {len(few) - 4} more' if len(few) > 4 else ''}: {named[parents]}")
        print(draw_tree_text(tree))
