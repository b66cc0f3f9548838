"""farm fingerprint: what reading passports costs, by backend and op, beside the calls of the device that it makes."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from farm import lake
from farm.fleet import envs
from farm.plan.config import load_config
from tasks.cache import default_cache
from tests.bench.record import Result
from tests.bench.running import Size, config_of, environment, run

#: Ops that a backend's line names.
NAMED = 4


def fingerprint(folder: Path, size: Size) -> Result:
    """Seconds of `farm fingerprint` on the backends of a config whose environments are built (`farm doctor envs build`), with
    cases prepared anew; of them those of the processes that read, with the calls of their devices."""
    config, own = config_of(folder, size), default_cache()
    given = yaml.safe_load(config.read_text())
    built = [
        needed is None or needed.there(own)
        for needed in (envs.find_environment(b.spec()) for b in load_config(config).backends)
    ]
    here = [one for one, there in zip(given["backends"], built) if there]
    absent = [one if isinstance(one, str) else one["name"] for one, there in zip(given["backends"], built) if not there]
    built_config = folder / "built.yaml"
    built_config.write_text(yaml.safe_dump({"catalogs": [{"name": "critical"}], "backends": here}))
    cache = folder / "cache"
    cache.mkdir()
    if (own / "envs").exists():
        (cache / "envs").symlink_to(own / "envs")
    results = folder / "results"
    command = [sys.executable, "-m", "farm", "fingerprint", str(built_config), "--json", "--results", str(results)]
    wall, cpu, _ = run([*command, "--on", "processes", *size["flags"]], environment(cache), (0, 3))
    found = lake.read_passports(str(results))
    figures: dict[str, float] = {"backends": float(found["backend"].nunique()), "wall_s": wall, "cpu_s": cpu}
    lines = []
    for name, mine in found.groupby("backend"):
        seconds, calls = float(mine["cpu_ms"].sum()) / 1000, int(mine["calls"].sum())
        by_op = (mine.groupby("op")["cpu_ms"].sum() / 1000).sort_values(ascending=False)[:NAMED]
        named = ", ".join(f"{str(op).partition(':')[2]} {s:.1f}" for op, s in by_op.items())
        figures |= {f"{name} cpu_s": seconds, f"{name} calls": calls, f"{name} readings": len(mine)}
        lines.append(
            f"{name}: {len(mine)} readings in {seconds:.1f} s, {calls} calls, {1e6 * seconds / calls:.0f} µs each; {named}"
        )
    missing = f"; not built: {', '.join(absent)}" if absent else ""
    first = f"{found['backend'].nunique()} backends in {cpu:.0f} s of CPU, {wall:.0f} by the clock{missing}"
    return Result(figures, "\n".join([first, *lines]))
