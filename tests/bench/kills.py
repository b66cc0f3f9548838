"""A bench of SIGKILLs at random, in children, what they are forked from, workers and drivers, each driver resumed: what it cost against a run in peace."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil

from farm import lake
from farm.exits import INCOMPLETE
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, config_of, environment, launch, newest

#: Columns that name a case on a backend.
CASE = ["case_id", "backend"]
#: Seconds between two looks at processes that are to be killed.
LOOK_S = 0.02
#: How often a run is resumed before it is given up.
RESUMES = 20


@dataclass
class Killer:
    """Kills processes of a driver at random until ``left`` are dead; ``drivers``: the numbers at which it is the
    driver."""

    left: int
    drivers: set[int]
    every_s: float
    chance: random.Random
    killed: dict[str, int]

    def haunt(self, driver: subprocess.Popen[bytes], results: Path) -> None:
        """Kill until the driver has ended, one way or the other, from when its run is in the lake and can be
        resumed."""
        while driver.poll() is None:
            time.sleep(self.chance.expovariate(1 / self.every_s) if self.left else LOOK_S)
            if not self.left or not _begun(results):
                continue
            if self.left in self.drivers:
                self.drivers.discard(self.left)
                driver.kill()
                self._count("drivers")
            elif found := _victims(driver.pid):
                kind = self.chance.choice(sorted(found))
                try:
                    self.chance.choice(found[kind]).kill()
                except psutil.NoSuchProcess:
                    continue
                self._count(kind)

    def _count(self, kind: str) -> None:
        self.left -= 1
        self.killed[kind] = self.killed.get(kind, 0) + 1


def _begun(results: Path) -> bool:
    return any(results.glob("run=*/_run.json"))


def _victims(driver: int) -> dict[str, list[psutil.Process]]:
    """The children of a driver, what they are forked from, and its workers, by kind."""
    found: dict[str, list[psutil.Process]] = {}
    try:
        for process in psutil.Process(driver).children(recursive=True):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            # Without its agents a node of Ray ends by itself: they are none of the farm's workers.
            worker = line.startswith("ray::") and "Agent" not in line
            kinds = {"children": "tasks.child" in line, "fork servers": "tasks.fork_server" in line, "workers": worker}
            kind = next((name for name, holds in kinds.items() if holds), "")
            if kind:
                found.setdefault(kind, []).append(process)
    except psutil.NoSuchProcess:
        pass
    return found


def kills(folder: Path, size: Size) -> Result:
    """Runs of a config in which processes are killed at random, against one in which none is; cold caches."""
    config = config_of(folder, size)
    more = size.get("env", {})
    launch(config, folder / "peace", environment(folder / "cache", **more))
    expected = newest(folder / "peace").set_index(CASE)["status"]
    figures = {"rows": float(len(expected)), "lost": 0.0, "doubled": 0.0, "other status": 0.0, "runs": 0.0}
    killed: dict[str, int] = {}
    differ: list[str] = []
    for how, number in size["kills"].items():
        drivers = {number * (k + 1) // (size["drivers"] + 1) for k in range(size["drivers"])}
        killer = Killer(number, drivers, size["every_s"], random.Random(size["seed"]), killed)
        while killer.left:
            figures["runs"] += 1
            results = folder / f"war-{figures['runs']:.0f}"
            _one(config, results, [how], environment(folder / f"cache-{figures['runs']:.0f}", **more), killer)
            found = lake.read_table(results).select([*CASE, "status"]).to_pandas()
            figures["doubled"] += found.duplicated(CASE).sum()
            both = pd.concat([expected, found.drop_duplicates(CASE).set_index(CASE)["status"]], axis=1, keys=["a", "b"])
            figures["lost"] += both["b"].isna().sum()
            other = both[both["b"].notna() & (both["a"] != both["b"])]
            figures["other status"] += len(other)
            differ += [f"{' on '.join(map(str, key))}: {a}, killed {b}" for key, (a, b) in other.T.items()]
    print("\n".join(differ[:20]), file=sys.stderr)
    figures |= {f"killed {kind}": float(number) for kind, number in killed.items()}
    return Result(
        figures,
        f"{sum(killed.values())} SIGKILLs ({', '.join(f'{n} {kind}' for kind, n in sorted(killed.items()))}) in "
        f"{figures['runs']:.0f} runs of {len(expected)} rows: {figures['lost']:.0f} rows lost, "
        f"{figures['doubled']:.0f} doubled, {figures['other status']:.0f} with a changed status (bound: 0)",
    )


def _one(config: Path, results: Path, flags: list[str], env: Mapping[str, str], killer: Killer) -> None:
    """A run of a config to its end, resumed as often as it takes."""
    command = [sys.executable, "-m", "farm.launch", str(config), "--results", str(results), *flags]
    for _ in range(RESUMES):
        resume = ["--resume", "last"] if _begun(results) else []
        with open(results.with_suffix(".log"), "ab") as log:
            driver = subprocess.Popen([*command, *resume], env=dict(env), cwd=ROOT, stdout=log, stderr=log)
            killer.haunt(driver, results)
        if driver.returncode in (0, 1):
            return
        if driver.returncode not in (-9, INCOMPLETE):
            break
    sys.exit(f"{' '.join(command)} ended with {driver.returncode}:\n{results.with_suffix('.log').read_text()[-3000:]}")
