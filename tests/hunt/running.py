"""The instances through ``farm run``, as somebody runs them who has them, beside what is found of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pandas as pd

from tests.bench.running import newest, run, write_config
from tests.hunt import kernels, onnx_models
from tests.hunt.pointed import MARK
from tests.hunt.reports import ITSELF, MISSED, POINTED, REPORTS, Report

HERE = Path(__file__).parent
#: Those of the config that `farm init` writes.
DISTRIBUTIONS = ("own", "adversarial", "fuzz")
#: The worst first.
ORDER = (
    "wrong",
    "crash",
    "error",
    "timeout",
    "fallback",
    "imprecise",
    "invalid",
    "unsupported",
    "unavailable",
    "pass",
    "vacuous",  # a fuzzed case without elements beside others
)
#: What is found of a fault, the best first.
BEST = (ITSELF, POINTED, MISSED)
#: Exit codes of a run that has judged everything, and of one that lacks a backend.
ENDED = (0, 1, 3)


@dataclass(frozen=True)
class Found:
    """What a run says of a report: the worst status of fault and twin, in the default form and pointed at."""

    report: Report
    status: str
    twin: str
    pointed: str = ""
    pointed_twin: str = ""

    @property
    def found(self) -> str:
        told = {self.report.status, "wrong"}
        if self.report.found == POINTED and not self.report.pointed:  # the instance itself points at it
            return POINTED if self.status in told else MISSED
        return ITSELF if self.status in told else POINTED if self.pointed in told else MISSED

    @property
    def differs(self) -> str:
        """What is worse than `reports` says, "" where nothing is."""
        if self.twin != self.report.sound or self.pointed_twin not in ("", "pass"):
            return f"the sound twin is {self.twin if self.twin != self.report.sound else self.pointed_twin}"
        return (
            f"found {self.found}, not {self.report.found}"
            if BEST.index(self.found) > BEST.index(self.report.found)
            else ""
        )


def asked(patterns: Sequence[str] = ()) -> list[Report]:
    """The reports of which the place or the op matches one of ``patterns``, all by default."""
    return [r for r in REPORTS if not patterns or any(fnmatch(x, p) for p in patterns for x in (r.where, r.op))]


def ask(reports: Sequence[Report], folder: Path, env: Mapping[str, str], seed: int = 0) -> list[Found]:
    """Run every instance: kernels together, the models of each backend together."""
    folder.mkdir(parents=True, exist_ok=True)
    statuses: dict[tuple[str, str, str], str] = {}
    for name, catalogs, backend, more in _runs(reports, folder):
        place = folder / name
        place.mkdir()
        config = write_config(place, name, catalogs, [backend], seed=seed, deadline_s=300.0, **more)
        command = [
            sys.executable,
            "-m",
            "farm",
            "run",
            str(config),
            "--on",
            "processes",
            "--results",
            str(place / "lake"),
        ]
        run(command, env, ENDED)
        statuses |= _worst(newest(place / "lake"))
    return [_of(report, statuses) for report in reports]


def _runs(reports: Sequence[Report], folder: Path) -> list[tuple[str, list[Any], str, dict[str, Any]]]:
    """(name, catalogs, backend, further keys) of each run that the reports take."""
    found = []
    users = [r for r in reports if r.op.startswith("user:")]
    if users:
        modules = [str(HERE / "kernels.py"), *[str(HERE / "pointed.py")] * any(r.pointed for r in users)]
        ops = sorted({x.partition(":")[2] for r in users for x in (r.op, r.twin)})
        ops += [f"{x}{MARK}" for x in sorted({x.partition(":")[2] for r in users if r.pointed for x in (r.op, r.twin)})]
        user = {"name": "user", "samples": 8, "distributions": list(DISTRIBUTIONS), "modules": modules, "ops": ops}
        gradients = {x.name for x in kernels.THEME.__farm_ops__ if x.gradient}
        more = {"checks": ["forward", *["backward"] * bool(gradients & set(ops))], "dtypes": ["*"]}
        found.append(("kernels", [user], "torch-cpu", more))
    for backend in dict.fromkeys(r.backend for r in reports if r.op.startswith("models:")):
        files = onnx_models.write(folder / "onnx")
        names = {
            x.partition(":")[2] for r in reports if r.backend == backend and r.op[0] == "m" for x in (r.op, r.twin)
        }
        own = [{"name": x, **(files.get(x) or {"model": f"{_file(x)}:{x}"})} for x in sorted(names)]
        found.append((backend, [{"name": "models", "own": own, "samples": 2}], backend, {}))
    for report in reports:
        if report.op.startswith("torch:"):
            ops = [report.op.partition(":")[2]]
            dtypes = [report.dtype, report.twin_dtype]
            found.append(("torch", [{"name": "torch", "ops": ops}], report.backend, {"dtypes": dtypes}))
    return found


def _file(model: str) -> Path:
    """The file of a module."""
    return next(x for x in sorted(HERE.glob("compiled*.py")) if f"class {model}(" in x.read_text())


def _worst(rows: pd.DataFrame) -> dict[tuple[str, str, str], str]:
    """The worst status of each (op, dtype, backend), and of all dtypes together under ""."""
    found: dict[tuple[str, str, str], str] = {}
    for op, dtype, backend, status in zip(rows["op"], rows["dtype"], rows["backend"], rows["status"]):
        for key in ((op, dtype, backend), (op, "", backend)):
            found[key] = min(found.get(key, status), status, key=ORDER.index)
    return found


def _of(report: Report, statuses: Mapping[tuple[str, str, str], str]) -> Found:
    def status(op: str, dtype: str) -> str:
        return statuses.get((op, dtype, report.backend), "not run")

    found = [status(report.op, report.dtype), status(report.twin, report.twin_dtype)]
    if report.pointed:
        found += [status(f"{x}{MARK}", "") for x in (report.op, report.twin)]
    return Found(report, *found)
