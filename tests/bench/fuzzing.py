"""Fuzzing measured: which of twenty mutants of a sound runtime are found, what the twin is blamed for, what a case costs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from farm import lake
from tasks.catalogs.fuzz.catalog import VARIANT, Fuzz
from tasks.fuzz import table
from tasks.model import FAILED, Group, name_statuses
from tests.bench.record import Result
from tests.bench.running import PLUGIN, Size, environment, run, write_config

if str(PLUGIN) not in sys.path:
    sys.path.insert(0, str(PLUGIN))


#: Ops whose cases are graphs: the mutants are of single operators, and a case's cost is told of those.
MANY = ["*+", "graph", "rewritten"]


def fuzz(folder: Path, size: Size) -> Result:
    """``farm fuzz`` on all mutants and their sound twin at once, for some seeds; then what it takes to make a case."""
    from planted_fuzz import MUTANTS

    config = write_config(
        folder, "mutants", [{"name": "fuzz", "exclude": MANY}], [f"mutant-{name}" for name in ("sound", *MUTANTS)]
    )
    found, blamed, spent, rows = [], [], [], 0
    for seed in size["seeds"]:
        results = folder / f"lake{seed}"
        command = [sys.executable, "-m", "farm", "fuzz", str(config), "--on", "inline", "--seed", str(seed)]
        command += ["--cases", str(size["cases"]), "--seconds", str(size["seconds"]), "--results", str(results)]
        _, cpu, _ = run(command, environment(folder / f"cache{seed}"), (0, 1))
        table_of = lake.read(results)
        failed = set(table_of.loc[table_of["status"].isin(name_statuses(FAILED)), "backend"])
        found.append(len(failed - {"mutant-sound"}))
        blamed.append(
            int(((table_of["backend"] == "mutant-sound") & table_of["status"].isin(name_statuses(FAILED))).sum())
        )
        spent.append(cpu)
        rows += len(table_of)
        lacking = sorted({f"mutant-{name}" for name in MUTANTS} - failed)
        print(f"seed {seed}: {found[-1]} of {len(MUTANTS)}, {cpu:.0f} CPU-s, not found: {', '.join(lacking) or 'none'}")
    made_ms, accepted = _made(size["each"])
    ort = _on_ort(folder, size)
    figures = {
        "mutants": len(MUTANTS),
        "found_least": min(found),
        "twin_failures": sum(blamed),
        "cpu_s_most": round(max(spent), 1),
        "made_ms": round(made_ms, 2),
        "accepted_percent": round(accepted, 1),
        "ort_cases_per_s": round(ort, 0),
    }
    text = (
        f"{min(found)} or more of {len(MUTANTS)} mutants found in each of {len(found)} runs of at most {max(spent):.0f} CPU-seconds "
        f"({rows:,} rows), {sum(blamed)} failures of the sound twin; a case takes {made_ms:.2f} ms to generate and to have its "
        f"reference, floor and second opinion; {accepted:.1f} % are accepted; {ort:.0f} cases a CPU-second with ONNX Runtime"
    )
    return Result(figures, text)


def _made(each: int) -> tuple[float, float]:
    """(CPU-milliseconds of a case, percent of them that are a valid case), ``each`` of every op and dtype."""
    catalog = Fuzz()
    catalog.load()
    list(catalog.samples(Group("fuzz:Conv", VARIANT, "float32", 1), 4))  # imports
    count = sound = 0
    begun = time.process_time()
    for op in table.SPECS:
        for dtype in table.list_fuzz_dtypes(op):
            for sample in catalog.samples(Group(f"fuzz:{op}", VARIANT, dtype, each, 11), 4):
                count += 1
                sound += sample.failure is None
    return (time.process_time() - begun) * 1e3 / count, 100.0 * sound / count


def _on_ort(folder: Path, size: Size) -> float:
    """Cases a CPU-second of all that a run on ONNX Runtime takes, its start apart."""
    config = write_config(folder, "ort", [{"name": "fuzz", "dtypes": ["float32"], "exclude": MANY}], ["ort-cpu"])
    spent = []
    for cases in (1, size["ort"]):
        command = [sys.executable, "-m", "farm", "fuzz", str(config), "--on", "inline", "--cases", str(cases)]
        command += ["--seconds", str(size["seconds"]), "--results", str(folder / f"ort{cases}")]
        spent.append(run(command, environment(folder / f"ort-cache{cases}"), (0, 1))[1])
    return (len(lake.read(folder / f"ort{size['ort']}")) - 1) / max(spent[1] - spent[0], 1e-9)
