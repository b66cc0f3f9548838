"""Benches of preparing and executing against what anyone would write: op_db in a bare loop, ONNX's own runner."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.model import Status
from tests.bench.record import Result
from tests.bench.running import LOOPS, Size, environment, median, newest, run, write_config


def torch_matrix(folder: Path, size: Size) -> Result:
    """CPU time of preparing and executing op_db on torch-cpu against a bare loop, imports left out on both sides."""
    found: dict[str, list[dict[str, float]]] = {"bare": [], "cold": [], "warm": []}
    for k in range(size["times"]):
        env = environment(folder / f"cache-{k}", BENCH_EVERY=str(size["every"]))
        for name, arguments in (
            ("bare", ["bare"]),
            ("cold", ["farm", env["FARM_CACHE"]]),
            ("warm", ["farm", env["FARM_CACHE"]]),
        ):
            _, _, out = run([sys.executable, LOOPS, *arguments], env)
            found[name].append(json.loads(out.splitlines()[-1]))
    cpu = {name: median([one["cpu_s"] for one in many]) for name, many in found.items()}
    preparing = median([one["prepare_cpu_s"] for one in found["cold"]])
    cases = found["bare"][0]["cases"]
    figures = {f"{name} s": seconds for name, seconds in cpu.items()}
    figures |= {"cases": cases, "preparing s": preparing}
    figures |= {f"{name} ratio": cpu[name] / cpu["bare"] for name in ("cold", "warm")}
    return Result(
        figures,
        f"bare loop {cpu['bare']:.2f} s CPU over {cases:.0f} cases (median of {size['times']}); farm cold {cpu['cold']:.2f} s "
        f"(preparing {preparing:.2f} s), ratio {figures['cold ratio']:.2f} (bound: 2); warm {cpu['warm']:.2f} s, ratio "
        f"{figures['warm ratio']:.2f} (bound: 0.6)",
    )


def noise(folder: Path, size: Size) -> Result:
    """What a draw of the noise floor costs, and how the verdicts on torch-cpu change with the number of draws."""
    statuses: dict[int, dict[str, str]] = {}
    figures: dict[str, float] = {}
    for draws in size["draws"]:
        out = folder / f"noise-{draws}.json"
        env = environment(folder / f"cache-{draws}", BENCH_EVERY=str(size["every"]))
        _, _, text = run([sys.executable, LOOPS, "noise", env["FARM_CACHE"], str(draws), str(out)], env)
        one = json.loads(text.splitlines()[-1])
        statuses[draws] = json.loads(out.read_text())
        figures[f"references a draw, {draws} draws"] = one["noise_s"] / max(one["due_s"], 1e-9)
    most = max(statuses)
    said = []
    for draws in [d for d in statuses if d != most]:
        # Which samples are strong, and so chosen, depends on the noise floor as well: those of both are compared.
        changed = [case for case, status in statuses[draws].items() if status != statuses[most].get(case, status)]
        figures[f"verdicts that differ, {draws} draws"] = len(changed)
        figures[f"of them alarms, {draws} draws"] = sum(statuses[most].get(case) == Status.PASS for case in changed)
        said.append(f"{draws}: {len(changed)}")
    dearest = max(v for k, v in figures.items() if k.startswith("references"))
    return Result(
        figures,
        f"a draw costs at most {dearest:.2f} references (bound: 2); verdicts of {len(statuses[most])} that differ from those "
        f"with {most} draws, by number of draws: {', '.join(said)}",
    )


def onnx(folder: Path, size: Size) -> Result:
    """The ONNX node suite on ort-cpu, whole commands where `farm run` puts them: onnx's own pytest runner against the
    farm, cold and warm, by wall and by CPU time."""
    catalog = {"name": "onnx", "samples": 1, "dtypes": ["*"], "ops": size["ops"]}
    config = write_config(folder, "onnx", [catalog], ["ort-cpu"])
    env = environment(folder / "cache")
    runner = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/bench/onnx_runner.py"]
    theirs, their_cpu, _ = run([*runner, "-k", size["tests"]], env, (0, 1))
    figures = {"onnx's runner s": theirs, "onnx's runner CPU s": their_cpu}
    said = []
    command = [sys.executable, "-m", "farm", "run", str(config), "--results", str(folder / "onnx")]
    for how, bound in (("cold", 4), ("warm", 10)):
        wall, cpu, _ = run(command, env, (0, 1))
        figures |= {f"{how} s": wall, f"{how} CPU s": cpu, "rows": len(newest(folder / "onnx"))}
        said.append(f"{how} {wall:.1f} s ({cpu:.1f} s CPU), {theirs / wall:.2f} times as fast (bound: {bound})")
    return Result(
        figures,
        f"onnx's own runner {theirs:.1f} s ({their_cpu:.1f} s CPU); the farm, {figures['rows']} rows: {'; '.join(said)}",
    )
