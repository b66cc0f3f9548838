"""A lake of many runs: what a report, a diff, the history of an op and compaction take there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from farm import lake
from tests.bench import nights
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, config_of, environment, launch

#: Names another lake than `results`, whose newest run's rows are multiplied.
LAKE = "FARM_BENCH_LAKE"
#: Where the lake is kept for the next time; by default it is thrown away.
KEEP = "FARM_BENCH_KEEP"


def source(folder: Path, size: Size) -> tuple[pa.Table, dict[str, object]]:
    """Rows and record of the run that is multiplied: the newest of a lake that is there, or one of the size's own
    config."""
    of = Path(os.environ.get(LAKE) or ROOT / "results")
    if "config" in size:
        of = folder / "one"
        launch(config_of(folder, size), of, environment(folder / "cache"), "--on", "inline")
    if not (ids := lake.run_ids(of)):
        sys.exit(f"no runs in {of}: run `farm run configs/vendors.yaml` first, or name another lake in ${LAKE}")
    rows = lake.read_table(of, ids[-1])
    step = max(rows.num_rows / size["rows"], 1.0)
    rows = rows.take([int(at * step) for at in range(min(rows.num_rows, size["rows"]))])
    return rows, lake.read_run(of, ids[-1])


def watched(command: Sequence[str], env: dict[str, str]) -> tuple[float, float]:
    """(wall seconds, GiB at most) of a command. Exits unless it ends with 0 or 1."""
    began = time.perf_counter()
    with open(os.devnull, "w") as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), 1)]
        pid = os.posix_spawn(sys.executable, [sys.executable, "-m", *command], env, file_actions=actions)
        _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        sys.exit(f"python -m {' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used.ru_maxrss / (1 << 20)


def merged(opened: lake.Lake, rows: pa.Table, many: int) -> float:
    """Rows a second of compacting a run of so many rows in ten parts."""
    copies = -(-many // (10 * rows.num_rows))
    for part in range(10):
        made = [_renamed(rows, part * copies + copy) for copy in range(copies)]
        lake.append_part(opened, "big", pa.concat_tables(made).to_batches())
    began = time.perf_counter()
    lake.compact_run(opened, "big")
    return 10 * copies * rows.num_rows / (time.perf_counter() - began)


def _renamed(rows: pa.Table, number: int) -> pa.Table:
    at = rows.schema.get_field_index("case_id")
    return rows.set_column(at, rows.schema.field(at), pc.binary_join_element_wise(rows["case_id"], str(number), "@"))


def lakes(folder: Path, size: Size) -> Result:
    """Write the lake, if it is not there, and ask it."""
    rows, record = source(folder, size)
    opened = lake.open_lake(Path(os.environ.get(KEEP) or folder) / "lake")
    ids = lake.run_ids(opened)
    if len(ids) != size["runs"]:
        ids = []
        for run_id in nights.write(opened, rows, record, size["runs"], hours=8.0, parts=4):
            lake.compact_run(opened, run_id)
            ids.append(run_id)
    many = rows.num_rows * len(ids)
    op = pc.mode(rows["op"].dictionary_encode().combine_chunks().indices)[0]["mode"].as_py()
    op = rows["op"].dictionary_encode().combine_chunks().dictionary[op].as_py()
    backend = rows["backend"][0].as_py()
    env, where = environment(folder / "cache"), opened.uri
    report_s, report_gib = watched(["farm.report", where, "--out", str(folder / "out")], env)
    sides = [f"{name}:{backend}" for name in (ids[-2], ids[-1])]
    diff_s, diff_gib = watched(
        ["farm.report", where, "--run", "all", "--diff", *sides, "--out", str(folder / "out")], env
    )
    history_s, history_gib = watched(["farm", "history", op, "--results", where], env)
    found = lake.read_table(opened, None, ["op"], {"op": [op]})
    rate = merged(lake.open_lake(folder / "merged"), rows, size["merged"])
    figures = {
        "rows": many,
        "runs": len(ids),
        "mib": sum(path.stat().st_size for path in Path(where).rglob("part-*")) / (1 << 20),
        "report_s": report_s,
        "diff_s": diff_s,
        "history_s": history_s,
        "history_rows": len(found),
        "peak_gib": max(report_gib, diff_gib, history_gib),
        "compact_rows_s": rate,
    }
    text = (
        f"{many:,} rows in {len(ids):,} runs, {figures['mib']:.0f} MiB: report of the newest {report_s:.1f} s, diff of two "
        f"{diff_s:.1f} s, history of one op ({len(found):,} rows) {history_s:.1f} s; {figures['peak_gib']:.2f} GiB at most; "
        f"{rate:,.0f} rows a second compacted"
    )
    return Result(figures, text)
