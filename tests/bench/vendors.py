"""configs/vendors.yaml as a whole: environments from nothing, first cell, wall time against CPU time, peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from farm import lake
from tasks.model.status import JUDGED, MEASURED, NOT_VALID, Status, name_statuses
from tests.bench.record import Result
from tests.bench.running import Size, config_of, environment, run

#: Seconds between two looks at the processes.
TICK = 0.5


@dataclass
class Watch:
    """Memory and processor time of a process and all that it started, its own children's children included.

    peak_gib: largest sum of proportional set sizes (shared pages are counted once), sampled; children_s: CPU seconds of
    the processes that run cells; total_s: of all of them.
    """

    process: subprocess.Popen[str]
    peak_gib: float = 0.0
    first_row_s: float = 0.0
    results: Path = Path()
    cpu: dict[tuple[int, float], tuple[bool, float]] = field(default_factory=dict)

    def run(self) -> None:
        began = time.monotonic()
        root = psutil.Process(self.process.pid)
        look = 0
        while self.process.poll() is None:
            look += 1
            total = 0
            try:
                everyone = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                break
            for one in everyone:
                try:
                    with one.oneshot():
                        times, command = one.cpu_times(), " ".join(one.cmdline()[:5])
                        child = "tasks.child" in command
                        spent = (
                            times.user + times.system + (times.children_user + times.children_system if child else 0.0)
                        )
                        self.cpu[one.pid, one.create_time()] = child, spent
                    if look % 4 == 0:
                        total += one.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            self.peak_gib = max(self.peak_gib, total / (1 << 30))
            if not self.first_row_s and any(self.results.glob("run=*/part-*.parquet")):
                self.first_row_s = time.monotonic() - began
            time.sleep(TICK)

    @property
    def children_s(self) -> float:
        return sum(spent for child, spent in self.cpu.values() if child)

    @property
    def total_s(self) -> float:
        return sum(spent for _, spent in self.cpu.values())


def launch(config: Path, results: Path, env: dict[str, str], *more: str) -> tuple[float, Watch]:
    """(wall seconds, what was seen) of a run of ``config``. Exits unless it ended with 0 or 1."""
    began = time.monotonic()
    command = [sys.executable, "-m", "farm.launch", str(config), "--results", str(results), *more]
    log = results.with_suffix(".log")
    with open(log, "w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, text=True)
        watch = Watch(process, results=results)
        watcher = threading.Thread(target=watch.run)
        watcher.start()
        code = process.wait()
        watcher.join()
    if code not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-3000:]}")
    return time.monotonic() - began, watch


def vendors(folder: Path, size: Size) -> Result:
    """Environments from nothing, then the config cold and warm."""
    config, env = config_of(folder, size), environment(folder / "cache")
    began = time.monotonic()
    _, _, out = run([sys.executable, "-m", "farm.envs", "build", str(config)], env, (0, 1))
    built = sum("built in" in line for line in out.splitlines())
    figures: dict[str, float] = {"environments": built, "environments s": time.monotonic() - began}
    said = [f"{built} environments built from nothing in {figures['environments s']:.0f} s (bound: 900 s)"]
    slots = os.cpu_count() or 1
    for how in ("cold", "warm"):
        wall, watch = launch(config, folder / how, env, *size.get("flags", ()))
        run_id = lake.run_ids(folder / how)[-1]
        rows, record = lake.read(folder / how, run_id), lake.read_run(folder / how, run_id)
        numbers = rows[rows["status"].isin(name_statuses(MEASURED))]
        one = {
            "s": wall,
            "rows": len(rows),
            "planned": record["planned"],
            "backends": numbers["backend"].nunique(),
            "vendors": numbers["vendor"].nunique(),
            "children's CPU s": watch.children_s,
            "all CPU s": watch.total_s,
            "share": wall / max(watch.children_s / slots, 1e-9),
            "peak GiB": watch.peak_gib,
            "first rows s": watch.first_row_s,
        }
        figures |= {f"{how} {name}": value for name, value in one.items()}
        said.append(
            f"{how}: {len(rows)} rows of {record['planned']}, judged with numbers: {one['backends']} backends of "
            f"{one['vendors']} vendors (bounds: 23, 14), {wall:.0f} s = {one['share']:.2f} × children's CPU time "
            f"{watch.children_s:.0f} s ÷ {slots} (bound: 1.25), peak memory {watch.peak_gib:.2f} GiB (bound: 6), first rows "
            f"after {watch.first_row_s:.1f} s"
        )
    for name, some in rows.groupby("backend"):
        status = some["status"].map(Status)
        figures[f"{name} judged"] = int(status.isin(JUDGED).sum())
        figures[f"{name} valid"] = int((~status.isin(NOT_VALID)).sum())
        figures[f"{name} passed"] = int(status.isin([Status.PASS, Status.IMPRECISE]).sum())
    return Result(figures, "; ".join(said))
