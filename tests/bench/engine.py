"""Benches of the engine: what Ray costs a cell, what a million cells cost the driver, whole configs cold and warm."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd

from farm import lake
from tests.bench.record import Result
from tests.bench.running import Size, config_of, environment, launch, median, newest, run, write_config


def overhead(folder: Path, size: Size) -> Result:
    """5 ms cells through Ray against the same cells inline, one slot each: span from the first start to the last
    end."""
    catalog = {"name": "load", "dtypes": ["float32"], "samples": size["samples"]}
    config = write_config(folder, "busy", [catalog], ["busy-cpu"])
    env = environment(folder / "cache", FARM_LOAD_OPS=str(size["ops"]))
    spans: dict[str, list[float]] = {"inline": [], "ray": []}
    for _ in range(size["times"]):
        for how, flags in (("inline", ["--on=inline"]), ("ray", [size.get("how", "--on=ray"), "--cpus", "1"])):
            launch(config, folder / f"busy-{how}", env, *flags)
            rows = newest(folder / f"busy-{how}")
            start = rows["started_at"]
            last_ms = float(rows["run_ms"].iloc[int(start.to_numpy().argmax())])
            spans[how].append((start.max() - start.min()).total_seconds() + last_ms / 1e3)
    ray, inline = median(spans["ray"]), median(spans["inline"])
    figures = {"cells": len(rows), "inline s": inline, "ray s": ray, "overhead %": 100 * (ray / inline - 1)}
    return Result(
        figures,
        f"{len(rows)} cells of 5 ms, one slot, median of {size['times']}: inline {inline:.2f} s, Ray {ray:.2f} s, "
        f"overhead {figures['overhead %']:+.2f} % (bound: 3 %)",
    )


def million(folder: Path, size: Size) -> Result:
    """Planned cells on backends that do nothing: planning, driver memory, rows per second into the lake."""
    backends = [f"null-{i:02d}" for i in range(size["backends"])]
    catalog = {"name": "load", "dtypes": ["float32", "float64"], "samples": 1}
    config = write_config(folder, "million", [catalog], backends)
    env = environment(folder / "cache", FARM_LOAD_OPS=str(size["ops"]))
    figures: dict[str, float] = {}
    said = []
    for how, words in (("fake", "driver and lake only"), ("real", "every case started in a child")):
        command = [sys.executable, "-m", "tests.bench.measured", how, str(config), "--results", str(folder / how)]
        _, _, out = run(command, env, (0, 1))
        one = json.loads(re.findall(r"^MEASURED (.*)$", out, re.M)[-1])
        one |= {"rows": lake.read_table(folder / how).num_rows}
        one["rows/s"] = one["rows"] / one["run_s"]
        figures |= {f"{how} {name}": value for name, value in one.items()}
        said.append(f"{words}: {one['rows/s']:.0f} rows/s in {one['peak_gib']:.2f} GiB")
    return Result(
        figures,
        f"{figures['fake cells']:.0f} cells planned in {figures['fake plan_s']:.1f} s (bound: 30 s); {'; '.join(said)} "
        "(bounds: 20000 rows/s and 1 GiB of the driver)",
    )


def whole(folder: Path, size: Size) -> Result:
    """A config from an empty cache and again, report included."""
    config, env = config_of(folder, size), environment(folder / "cache")
    figures: dict[str, float] = {}
    said = []
    for how, bound in size["bounds"].items():
        wall = launch(config, folder / "results", env, *size.get("flags", ()))
        rows = newest(folder / "results")
        record = lake.read_run(folder / "results", lake.run_ids(folder / "results")[-1])
        first = (rows["started_at"].min() - pd.Timestamp(record["started_at"])).total_seconds()
        figures |= {f"{how} s": wall, f"{how} rows": len(rows), f"{how} first case s": first}
        said.append(f"{how} {wall:.1f} s (bound: {bound} s), {len(rows)} rows, first case after {first:.1f} s")
    return Result(figures, "; ".join(said))
