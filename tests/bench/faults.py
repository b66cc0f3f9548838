"""A bench of injected faults: disks that fill, parts cut off, two drivers at once, nodes that are killed, cut off and drained, a
head that restarts. What each kind cost against a run in peace."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from farm import lake
from farm.exits import BAD_INPUT, INCOMPLETE
from tests.bench.kills import CASE, Killer
from tests.bench.network import OPEN, Cluster
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, environment, run, write_config

#: How often a run is resumed before it is given up.
RESUMES = 40
#: Samples of an op of runs on this machine alone, and on the cluster; milliseconds of a case here and there.
HERE, THERE, CASE_MS = 30, 250, (5, 100)
#: Kills of one run.
KILLS = 40
#: Ops that fail as they should: what a fault makes of their rows would be seen as well.
SOUND = ["planted:none", "planted:nan", "planted:raise", "planted:segfault"]


@dataclass
class Tally:
    """What a kind of faults cost. other: rows of another status than in peace."""

    faults: int = 0
    runs: int = 0
    lost: int = 0
    doubled: int = 0
    other: int = 0


@dataclass
class War:
    """Runs of one config under faults. flags: how it runs; expected: status by case of a run in peace."""

    folder: Path
    config: Path
    flags: list[str]
    expected: pd.Series
    chance: random.Random
    env: Mapping[str, str]
    tally: Tally = field(default_factory=Tally)
    inside: list[str] = field(default_factory=list)  # what a driver's command begins with
    again: tuple[int, ...] = (-9, INCOMPLETE)  # how a driver ends that is to be resumed
    differ: list[str] = field(default_factory=list)
    ended: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _cluster: Cluster | None = None

    def cluster(self) -> Cluster:
        """The one that drivers run on from then on."""
        if self._cluster is None:
            self._cluster = self.ended.enter_context(Cluster.of(self.folder, self.env))
            self.inside, self.flags = self._cluster.inside, ["--address", self._cluster.address]
        return self._cluster

    def results(self) -> Path:
        """A lake of the next run's own."""
        self.tally.runs += 1
        made = self.folder / f"lake-{self.tally.runs}"
        made.mkdir(parents=True)
        return made

    def driver(self, results: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [*self.inside, sys.executable, "-m", "farm.launch", str(self.config), "--results", str(results)]
        with open(self.folder / f"{results.name}.log", "ab") as log:
            return subprocess.Popen(
                [*command, *self.flags, *more], env=dict(self.env), cwd=ROOT, stdout=log, stderr=log
            )

    def to_end(
        self, results: Path, strike: Callable[[subprocess.Popen[bytes]], None], heal: Callable[[], None]
    ) -> None:
        """A run to its end, resumed as often as it takes. strike: told of every driver; heal: after each."""
        for _ in range(RESUMES):
            driver = self.driver(results, *(["--resume", "last"] if begun(results) else []))
            strike(driver)
            driver.wait()
            heal()
            if driver.returncode in (0, 1):
                return
            if driver.returncode not in self.again:
                break
        log = (self.folder / f"{results.name}.log").read_text()[-3000:]
        sys.exit(f"a driver under faults ended with {driver.returncode}:\n{log}")

    def compare(self, results: Path) -> None:
        """Every run of a lake, its rows as they lie there, with the one in peace."""
        for run_id in lake.run_ids(results):
            found = lake.read_table(results, run_id, [*CASE, "status"]).to_pandas()
            self.tally.doubled += int(found.duplicated(CASE).sum())
            now = found.drop_duplicates(CASE).set_index(CASE)["status"]
            both = pd.concat([self.expected, now], axis=1, keys=["a", "b"])
            self.tally.lost += int(both["b"].isna().sum())
            other = both[both["b"].notna() & (both["a"] != both["b"])]
            self.tally.other += len(other)
            self.differ += [f"{results}: {' on '.join(map(str, k))}: {a}, now {b}" for k, (a, b) in other.T.items()]


#: What makes a run under so many faults at most.
Kind = Callable[[War, Path, int], None]


def begun(results: Path) -> bool:
    return any(results.glob("run=*/_run.json"))


def parts(results: Path) -> list[Path]:
    return sorted(results.glob("run=*/part-*.parquet"))


def until(driver: subprocess.Popen[bytes], condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait for something as long as the driver lives; whether it came."""
    end = time.monotonic() + seconds
    while driver.poll() is None and time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


# --- on this machine ------------------------------------------------------------------------------------------------


def killed(war: War, results: Path, most: int) -> None:
    """Children and drivers, killed."""
    killer = Killer(min(most, KILLS), {*range(1, KILLS, 7)}, 0.5, war.chance, {})
    war.to_end(results, lambda driver: killer.haunt(driver, results), lambda: None)
    war.tally.faults += sum(killer.killed.values())


def full_disk(war: War, results: Path, most: int) -> None:
    """The lake's disk is full in mid run, up to three times; it has room again when the run is resumed."""
    left, filler = [min(most, war.chance.randint(1, 3))], results / "filler"

    def strike(driver: subprocess.Popen[bytes]) -> None:
        if left[0] and until(driver, lambda: begun(results)):
            time.sleep(war.chance.uniform(0.0, 1.5))
            _fill(filler, war.chance.randrange(3) * 4096)
            left[0] -= 1
            driver.wait()
            war.tally.faults += driver.returncode in (BAD_INPUT, INCOMPLETE)

    war.again = (BAD_INPUT, INCOMPLETE)  # a disk without room for a byte is refused at the start
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(results)], check=True)
    war.to_end(results, strike, lambda: filler.unlink(missing_ok=True))


def _fill(path: Path, but: int) -> None:
    """Fill a disk up to some bytes."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    with contextlib.suppress(OSError):
        os.truncate(path, max(path.stat().st_size - but, 0))


def cut_parts(war: War, results: Path, most: int) -> None:
    """Parts of the lake cut off anywhere: while the driver writes more, after it was killed, and of a run that has
    ended."""
    rounds = [war.chance.randint(1, 4)]

    def strike(driver: subprocess.Popen[bytes]) -> None:
        if rounds[0] and until(driver, lambda: parts(results)):
            rounds[0] -= 1
            time.sleep(war.chance.uniform(0.0, 2.0))
            if war.chance.random() < 0.7:
                driver.kill()
                driver.wait()
            war.tally.faults += sum(_cut(path, war.chance) for path in parts(results)[-3:])

    war.to_end(results, strike, lambda: None)
    war.tally.faults += sum(_cut(path, war.chance) for path in parts(results))
    war.to_end(results, lambda driver: None, lambda: None)


def _cut(path: Path, chance: random.Random) -> bool:
    """Cut a part off; False if it is gone, or is cut off already."""
    with contextlib.suppress(OSError):
        whole = path.read_bytes()
        if whole[-4:] == b"PAR1":
            os.truncate(path, chance.randrange(len(whole)))
            return True
    return False


def two_drivers(war: War, results: Path, most: int) -> None:
    """Two drivers on one lake: of two runs that begin at once; or both are killed, and each run is resumed by two."""
    both = [war.driver(results), war.driver(results)]
    war.tally.faults += 1
    if war.chance.random() < 0.5:
        codes = [driver.wait() for driver in both]
    else:
        for driver in both:
            until(driver, lambda: len(list(results.glob("run=*/part-*"))) > 1)
            driver.kill()
            driver.wait()
        runs = [run_id for run_id in lake.run_ids(results) for _ in range(2)]
        again = [war.driver(results, "--resume", run_id) for run_id in runs]
        codes = [driver.wait() for driver in again]
        war.tally.faults += len(runs) // 2
    if not {0, 1, INCOMPLETE}.issuperset(codes):
        sys.exit(f"two drivers ended with {codes}:\n{(war.folder / f'{results.name}.log').read_text()[-3000:]}")
    for run_id in lake.run_ids(results) if INCOMPLETE in codes else ():
        war.driver(results, "--resume", run_id).wait()


# --- on a cluster ---------------------------------------------------------------------------------------------------


def on_cluster(strike_one: Callable[[Cluster, random.Random], None], every_s: float) -> Kind:
    """Faults of a cluster, one after another while a driver runs on it."""

    def strikes(war: War, results: Path, most: int) -> None:
        cluster = war.cluster()
        number = war.tally.faults + most

        def strike(driver: subprocess.Popen[bytes]) -> None:
            while until(driver, lambda: parts(results)) and war.tally.faults < number:
                time.sleep(war.chance.expovariate(1 / every_s))
                if driver.poll() is None:
                    strike_one(cluster, war.chance)
                    war.tally.faults += 1

        war.to_end(results, strike, cluster.mend)

    return strikes


#: Kind → a run under so many faults of it at most.
KINDS: dict[str, Kind] = {
    "killed": killed,
    "full disks": full_disk,
    "parts cut off": cut_parts,
    "two drivers": two_drivers,
    "nodes killed": on_cluster(Cluster.kill, 1.0),
    "partitions": on_cluster(Cluster.cut_off, 0.5),
    "drains": on_cluster(Cluster.drain, 0.5),
    "heads restarted": on_cluster(Cluster.restart_head, 1.0),
}


#: Those that need no namespace; those of a cluster.
PLAIN, FAR = ("killed", "parts cut off", "two drivers"), tuple(KINDS)[4:]


def one_kind(folder: Path, kind: str, number: int, seed: int) -> dict[str, float]:
    """Faults of a kind, and what they cost."""
    far = kind in FAR
    loads = {"name": "load", "dtypes": ["float32"], "samples": THERE if far else HERE}
    catalogs = [loads, {"name": "planted", "ops": SOUND, "samples": 6}]
    backends = [{"name": "null-cpu", "options": {"ms": CASE_MS[far]}}, "planted-cpu"]
    skip = [
        {"ops": ["load:*"], "backends": ["planted-cpu"], "reason": "it adds one"},
        {"ops": ["planted:*"], "backends": ["null-cpu"], "reason": "it does not"},
    ]
    config = write_config(folder, "faults", catalogs, backends, skip=skip, node_wait_s=600)
    env = environment(folder / "cache", **OPEN)
    run(
        [sys.executable, "-m", "farm.launch", str(config), "--results", str(folder / "peace"), "--on", "processes"],
        env,
        (0, 1),
    )
    peace = lake.read(folder / "peace").set_index(CASE)["status"]
    war = War(folder / "war", config, ["--on", "processes"], peace, random.Random(seed), env)
    with war.ended:
        while war.tally.faults < number:
            results = war.results()
            KINDS[kind](war, results, number - war.tally.faults)
            war.compare(results)
            print(kind, vars(war.tally), file=sys.stderr, flush=True)
    print("\n".join(war.differ[:20]), file=sys.stderr)
    return {"rows": float(len(peace)), **{name: float(n) for name, n in vars(war.tally).items()}}


def faults(folder: Path, size: Size) -> Result:
    """So many faults of every kind; what mounts disks or makes a network does so in namespaces of its own, and as
    root."""
    figures: dict[str, float] = {}
    said = []
    for kind, number in size["kinds"].items():
        place = folder / kind.replace(" ", "-")
        place.mkdir()
        apart = [] if kind in PLAIN else ["unshare", "-m", "-n"]
        command = [*apart, sys.executable, "-m", "tests.bench.faults", str(place), kind, str(number), str(size["seed"])]
        _, _, out = run(command, environment(folder / "cache"))
        one: dict[str, Any] = json.loads(re.findall(r"^MEASURED (.*)$", out, re.M)[-1])
        figures |= {f"{kind}, {name}": value for name, value in one.items()}
        said.append(
            f"{kind} {one['faults']:.0f} (in {one['runs']:.0f} runs of {one['rows']:.0f} rows): {one['lost']:.0f} lost, "
            f"{one['doubled']:.0f} doubled, {one['other']:.0f} of another status"
        )
        print(said[-1], flush=True)
    total = sum(value for name, value in figures.items() if name.endswith(", faults"))
    return Result(figures | {"faults": total}, f"{total:.0f} faults; {'; '.join(said)} (bound: 0 of 1,000)")


if __name__ == "__main__":
    where, what, number, seed = sys.argv[1:]
    print("MEASURED " + json.dumps(one_kind(Path(where), what, int(number), int(seed))))
