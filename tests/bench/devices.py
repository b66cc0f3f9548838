"""Benches of devices that jobs share: how soon all of a machine's cards are at work, and what compiling holds up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from tests.bench.record import Result
from tests.bench.running import Size, environment, launch, newest, write_config


def cards(folder: Path, size: Size) -> Result:
    """Cells of a few milliseconds on stand-ins for so many cards: after the first of them is at work, how soon all are,
    and how much of the time until the last row."""
    count, samples = size["cards"], size["samples"]
    backend = {"name": "gpu-nvidia", "options": {"ms": size["case_ms"]}}
    catalog = {"name": "load", "dtypes": ["float32"], "samples": samples}
    config = write_config(folder, "cards", [catalog], [backend])
    env = environment(folder / "cache", FARM_VENDORS=f"nvidia={count}", FARM_LOAD_OPS=str(size["ops"]))
    launch(config, folder / "results", env, "--on", "processes")
    rows = newest(folder / "results")
    first, last = rows["started_at"].min(), rows["started_at"].max()
    began = rows.groupby("device_ids")["started_at"].min().sort_values()
    all_s = (began.iloc[-1] - first).total_seconds()
    busy = [_busy_s(mine, size["case_ms"]) for _, mine in rows.groupby("device_ids")]
    share = 100 * sum(busy) / (count * max((last - first).total_seconds(), 1e-9))
    figures = {
        "cards": count,
        "at work": len(began),
        "all at work after s": round(all_s, 2),
        "busy %": round(share, 1),
        "rows": len(rows),
    }
    return Result(
        figures,
        f"{len(rows)} cells of {size['case_ms']} ms on {count} stand-ins of cards, without Ray: {len(began)} at work "
        f"{all_s:.1f} s after the first (bound: 2), {share:.1f} % of the time (bound: 95)",
    )


def _busy_s(rows: pd.DataFrame, case_ms: float) -> float:
    """Seconds in which a card had a cell, or was between two that follow one another: what is longer is a wait for
    work."""
    steps = rows["started_at"].sort_values().diff().dt.total_seconds().dropna().to_numpy()
    return float(np.minimum(steps, 10 * case_ms / 1e3).sum()) + case_ms / 1e3


def compilers(folder: Path, size: Size) -> Result:
    """Backends that compile for seconds what runs for milliseconds, on a stand-in of one card: the time of the run, as
    a multiple of what compiling takes on so many CPUs."""
    options = {"ms": size["case_ms"], "compile_ms": size["compile_ms"], "memory_gib": 141}
    backends = [{"name": f"compiler-{k}", "like": "gpu-nvidia", "options": options} for k in range(size["backends"])]
    catalog = {"name": "load", "dtypes": ["float32"], "samples": size["samples"]}
    config = write_config(folder, "compilers", [catalog], backends)
    env = environment(folder / "cache", FARM_VENDORS="nvidia=1", FARM_LOAD_OPS=str(size["ops"]))
    launch(config, folder / "results", env, "--on", "processes", "--cpus", str(size["cpus"]))
    rows = newest(folder / "results")
    ideal_s = len(rows) * size["compile_ms"] / 1e3 / size["cpus"]
    ends = rows["started_at"] + pd.to_timedelta(rows["build_ms"] + rows["run_ms"], unit="ms")
    wall_s = (ends.max() - rows["started_at"].min()).total_seconds()
    figures = {
        "rows": len(rows),
        "wall s": round(wall_s, 1),
        "ideal s": round(ideal_s, 1),
        "ratio": round(wall_s / ideal_s, 3),
    }
    return Result(
        figures,
        f"{size['backends']} backends that compile {size['compile_ms'] / 1e3:g} s a case and run {size['case_ms']} ms, on a stand-in of "
        f"one card and {size['cpus']} CPUs: {wall_s:.0f} s, {wall_s / ideal_s:.2f} times compile seconds ÷ CPUs (bound: 1.2)",
    )
