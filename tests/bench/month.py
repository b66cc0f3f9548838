"""Nights of real runs over real releases of two runtimes, beside a vendor's own nightly build with a planted regression and a board
of it that fails by chance: does the gate close on the right nights, and what do the site and a bisection tell?"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from farm import lake
from farm.commands import known, site
from farm.report.runs import load_rows_and_record
from farm.report.tables.gate import CLOSED, GATES, JudgedGate, judge_run_gate, read_gate_of_run
from farm.report.tables.view import Report
from farm.work.launch import run_id_at
from tasks.model import Status
from tests.bench import nights
from tests.bench.record import Result
from tests.bench.running import Size, environment, run
from tests.wheels import NAME, release

#: Where the lake, the known failures and the site are kept; by default they are thrown away.
KEEP = "FARM_BENCH_KEEP"
#: The vendor's build, of which a release comes every night, and the board, which keeps the first one.
OWN, BOARD = "nightly-cpu", "nightly-board"


@dataclass(frozen=True)
class Night:
    """One night: its new cells by backend that no evidence excuses, and how many are in quarantine."""

    gate: str
    new: dict[str, int]
    quarantined: int


def month(folder: Path, size: Size) -> Result:
    """Run the nights one after another. A failure of a real release is known from the next night on, as a team would
    write it down."""
    folder = Path(os.environ.get(KEEP) or folder)
    wheels, where = folder / "wheels", folder / "lake"
    for n in range(size["nights"]):
        release(wheels, f"0.{n + 1}", 0.25 if size["broken"] <= n + 1 < size["mended"] else 0)
    links = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    cache = os.environ.get("FARM_CACHE") or str(folder / "cache")
    env = environment(Path(cache), PIP_FIND_LINKS=links)
    listed = folder / "known.yaml"
    listed.write_text("[]\n")
    told = []
    for n in range(size["nights"]):
        found = _night(folder, size, n, env)
        told.append(_told(found))
        _known(found, where, listed, n)
        print(f"night {n + 1}: {told[-1].gate}, {told[-1].new}, {told[-1].quarantined} in quarantine", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        site.main([str(folder / "site"), str(where)])
    return _result(told, size, _bisected(where, size, env) if size["bisect"] else "")


def _night(folder: Path, size: Size, night: int, env: dict[str, str]) -> JudgedGate:
    """Run the config of a night, move its rows to their day, and hold them against the gate there."""
    backends: list[dict[str, Any]] = [
        {"name": name, "packages": [f"{package}=={versions[_turn(versions, night, size)]}"]}
        for name, (package, *versions) in size["releases"].items()
    ]
    board = [(BOARD, 1, {"options": {"fails": size["fails"]}})] * bool(size["fails"])
    for name, number, more in ((OWN, night + 1, {}), *board):
        backends.append({"name": name, "like": OWN, "packages": [f"{NAME}==0.{number}", *size["runtime"]], **more})
    made = {
        "catalogs": [{"name": "onnx", "samples": 1, "dtypes": ["*"], "ops": size["ops"], "exclude": ["*_expanded*"]}],
        "backends": backends,
        "known_failures": "known.yaml",
        "gate": {"new": 0, "flaky": {"times": 2, "of": 10, "backend": 3}},
    }
    config, tonight = folder / "nightly.yaml", folder / "tonight"
    config.write_text(yaml.safe_dump(made))
    shutil.rmtree(tonight, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "farm.launch",
        str(config),
        "--results",
        str(tonight),
        "--on",
        "processes",
        "--cpus",
        "1",
    ]
    run(command, env, (0, 1))
    (run_id,) = lake.run_ids(tonight)
    began = nights.FIRST + night * datetime.timedelta(days=1)
    opened = lake.open_lake(folder / "lake")
    rows = nights.moved(lake.read_table(tonight, run_id), run_id_at(began), began)
    rows, record = load_rows_and_record(opened.uri, nights.keep(opened, rows, lake.read_run(tonight, run_id), began))
    gate = read_gate_of_run(record)
    assert gate is not None
    return judge_run_gate(Report.of(rows, record), gate)


def _turn(versions: Sequence[str], night: int, size: Size) -> int:
    """Which version is the newest in a night: each has as many."""
    return night * len(versions) // int(size["nights"])


def _told(found: JudgedGate) -> Night:
    firm = found.new[found.new["evidence"] == ""]
    return Night(
        GATES[found.code],
        {str(name): int(many) for name, many in firm["backend"].value_counts().items()},
        len(found.new) - len(firm),
    )


def _known(found: JudgedGate, where: Path, listed: Path, night: int) -> None:
    """Write down what the releases of others have newly broken, each op and dtype once; in the first night what the
    vendor's fails as well, but for what the board does by chance."""
    new = found.new
    own = new["backend"].isin([OWN, BOARD])
    new = new[~own | (new["status"] != Status.ERROR.value)] if night == 0 else new[~own]
    for line in new.to_dict("records"):
        key = f"{line['run_id']}:{line['case_id']}:{line['backend']}"
        words = f"{line['kind'] or line['status']} since {line['backend']} {line['runtime_version']}"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            known.main(["add", key, "--results", str(where), "--reason", words, "--file", str(listed)])


def _bisected(where: Path, size: Size, env: dict[str, str]) -> str:
    """The last line of what a bisection says of the planted regression, from a night that had it."""
    run_id = lake.run_ids(where)[size["broken"] - 1]
    rows = lake.read(where, run_id, {"backend": [OWN], "status": ["wrong"]})
    key = f"{run_id}:{rows[rows['case_id'].str.contains('softmax_')]['case_id'].iloc[0]}:{OWN}"
    versions = f"0.1..0.{size['mended'] - 1}"
    more = ["--packages", *size["runtime"]] if size["runtime"] else []
    command = [sys.executable, "-m", "farm", "bisect", key, "--versions", versions, "--results", str(where)]
    return run([*command, "--package", NAME, *more], env)[2].strip().splitlines()[-1]


def _result(told: list[Night], size: Size, bisected: str) -> Result:
    """right: nights on which the gate is as what happened wants it. The first finds what nobody knows yet; the board
    may close it until there is evidence."""
    turns = [[_turn(of, n, size) for n in range(len(told))] for _, *of in size["releases"].values()]
    upgrades = {n for turn in turns for n in range(len(told)) if n == 0 or turn[n] != turn[n - 1]}
    planted = [size["broken"] <= n < size["mended"] for n in range(1, len(told) + 1)]
    wanted = [n == 0 or bool(told[n].new.get(OWN)) == here for n, here in enumerate(planted)]
    real = [n for n, one in enumerate(told) if set(one.new) - {OWN, BOARD}]
    unasked = [n for n in real if n not in upgrades]
    shut = [n for n, one in enumerate(told) if one.gate == CLOSED]
    figures = {
        "nights": len(told),
        "releases": sum(len(of) - 1 for of in size["releases"].values()),
        "closed": len(shut),
        "closed_planted": sum(planted[n] for n in shut),
        "planted": sum(planted),
        "closed_upgrade": len(real),
        "closed_flaky": sum(set(told[n].new) == {BOARD} for n in shut),
        "closed_for_nothing": len(unasked) + wanted.count(False),
        "quarantined": sum(one.quarantined for one in told),
    }
    text = (
        f"{figures['nights']} nights, {figures['releases']} releases of {len(size['releases'])} runtimes: closed on {figures['closed_planted']} of "
        f"{figures['planted']} nights with the planted regression, on {len(real)} nights with a release that broke something (or with the first "
        f"look), on {figures['closed_flaky']} for the board alone, for nothing on {figures['closed_for_nothing']}; {figures['quarantined']} flaky cells "
        f"in quarantine. {bisected}"
    )
    return Result(figures, text)
