"""python -m tests.bench [weak|overhead|torch|onnx|quick|full|vendors|million …]: every figure is a ratio or a rate of one run."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from farm import lake
from farm.plan import config as configs
from farm.plan.known import not_known

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = ROOT / "tests" / "plugin"


def environment(cache: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join([str(PLUGIN), str(ROOT)])
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return os.environ | threads | {"PYTHONPATH": path, "FARM_CACHE": str(cache), "PYTHONWARNINGS": "ignore"} | more


def run(command: Sequence[str], env: dict[str, str], codes: Sequence[int] = (0,)) -> tuple[float, float, str]:
    """(wall seconds, CPU seconds of it and its reaped children, stdout)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(list(command), env=env, cwd=ROOT, capture_output=True, text=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def launch(config: Path, results: Path, env: dict[str, str], *more: str) -> tuple[float, float, str]:
    return run([sys.executable, "-m", "farm.launch", str(config), "--results", str(results), *more], env, (0, 1))


def write_config(folder: Path, name: str, catalogs: object, backends: object) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"catalogs": catalogs, "backends": backends}))
    return path


def newest(results: Path) -> pd.DataFrame:
    return lake.read(results, lake.run_ids(results)[-1])


def vendor_matrix(folder: Path) -> None:
    """configs/vendors.yaml from nothing, and again: see `tests.bench.vendors`."""
    from tests.bench import vendors

    vendors.main(folder, environment(folder / "cache"), ROOT / "configs" / "vendors.yaml")


def overhead(folder: Path) -> None:
    """5 ms cells through Ray against the same cells inline, one slot each: span from the first start to the last end."""
    config = write_config(folder, "busy", [{"name": "load", "dtypes": ["float32"], "samples": 20}], ["busy-cpu"])
    env = environment(folder / "cache", FARM_LOAD_OPS="200")
    spans: dict[str, list[float]] = {"inline": [], "ray": []}
    for _ in range(3):
        for how, flags in (("inline", ["--inline"]), ("ray", ["--cpus", "1"])):
            launch(config, folder / f"busy-{how}", env, *flags)
            rows = newest(folder / f"busy-{how}")
            start = rows["started_at"]
            last = rows.loc[start.idxmax()]
            spans[how].append((start.max() - start.min()).total_seconds() + last["run_ms"] / 1e3)
    ray, inline = sorted(spans["ray"])[1], sorted(spans["inline"])[1]
    cells = len(rows)
    print(
        f"overhead: {cells} cells of 5 ms, one slot, median of 3: inline {inline:.2f} s, Ray {ray:.2f} s, "
        f"overhead {100 * (ray / inline - 1):+.2f} % (bound: 3 %)"
    )


def torch_matrix(folder: Path) -> None:
    """CPU time of preparing and executing op_db on torch-cpu against a bare loop, imports left out on both sides."""
    figures: dict[str, list[dict[str, float]]] = {"bare": [], "cold": [], "warm": []}
    for k in range(3):
        env = environment(folder / f"torch-cache-{k}")
        for name, arguments in (
            ("bare", ["bare"]),
            ("cold", ["farm", env["FARM_CACHE"]]),
            ("warm", ["farm", env["FARM_CACHE"]]),
        ):
            _, _, out = run([sys.executable, str(ROOT / "tests" / "bench" / "loops.py"), *arguments], env)
            figures[name].append(json.loads(out.splitlines()[-1]))
    cpu = {name: sorted(f["cpu_s"] for f in many)[1] for name, many in figures.items()}
    cold = sorted(figures["cold"], key=lambda f: f["cpu_s"])[1]
    print(
        f"torch: bare loop {cpu['bare']:.2f} s CPU over {figures['bare'][0]['cases']:.0f} cases (median of 3); "
        f"farm cold {cpu['cold']:.2f} s (preparing {cold['prepare_cpu_s']:.2f}), ratio {cpu['cold'] / cpu['bare']:.2f} (bound: 2); "
        f"warm {cpu['warm']:.2f} s, ratio {cpu['warm'] / cpu['bare']:.2f} (bound: 0.6)"
    )


def noise(folder: Path) -> None:
    """What a draw of the noise floor costs, and how the verdicts on torch-cpu change with the number of draws."""
    most, statuses = 16, {}
    for draws in (1, 2, 4, 8, most):
        out = folder / f"noise-{draws}.json"
        env = environment(folder / f"noise-cache-{draws}")
        _, _, text = run(
            [
                sys.executable,
                str(ROOT / "tests" / "bench" / "loops.py"),
                "noise",
                env["FARM_CACHE"],
                str(draws),
                str(out),
            ],
            env,
        )
        figures = json.loads(text.splitlines()[-1])
        statuses[draws] = json.loads(out.read_text())
        ratio = figures["noise_s"] / figures["due_s"]
        print(
            f"noise: {draws} draws cost {figures['noise_s']:.2f} s, the references of the same cases {figures['reference_s']:.2f} s: "
            f"{ratio:.2f} references per draw (bound: 2)",
            flush=True,
        )
    for draws in list(statuses)[:-1]:
        # Which samples are strong, and so chosen, depends on the noise floor as well: those of both are compared.
        changed = [case for case, status in statuses[draws].items() if status != statuses[most].get(case, status)]
        alarms = sum(statuses[most].get(case) == "pass" for case in changed)
        print(
            f"noise: with {draws} draws {len(changed)} of {len(statuses[most])} verdicts differ from those with {most}, "
            f"{alarms} of them alarms that {most} draws do not raise"
        )


def onnx(folder: Path) -> None:
    """The ONNX node suite on ort-cpu, whole commands: onnx's own pytest runner against the farm, cold and warm."""
    config = write_config(folder, "onnx", [{"name": "onnx", "samples": 1, "dtypes": ["*"]}], ["ort-cpu"])
    env = environment(folder / "onnx-cache")
    runner = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/bench/onnx_runner.py", "-k", "cpu"]
    theirs, theirs_cpu, out = run(runner, env, (0, 1))
    print(
        f"onnx: onnx's own runner {theirs:.1f} s wall, {theirs_cpu:.1f} s CPU ({out.strip().splitlines()[-1].strip('= ')})"
    )
    for name, flags in (("inline", ["--inline"]), ("through Ray, its start and stop included", ["--no-dashboard"])):
        env = environment(folder / f"onnx-cache-{len(flags[0])}")
        for how in ("cold", "warm"):
            wall, _, _ = launch(config, folder / "onnx", env, *flags)
            bound = 3 if how == "cold" else 5
            rows = len(newest(folder / "onnx"))
            print(
                f"onnx: farm {name}, {how} {wall:.1f} s wall, {rows} rows, {theirs / wall:.2f} times as fast (bound: {bound})"
            )


def quick(folder: Path) -> None:
    """configs/quick.yaml from an empty cache and again, report included."""
    _configs(folder, "quick", {"cold": 90, "warm": 90})


def full(folder: Path) -> None:
    """configs/full.yaml from an empty cache and again, report included."""
    _configs(folder, "full", {"cold": 20 * 60, "warm": 5 * 60})


def _configs(folder: Path, name: str, bounds: dict[str, float]) -> None:
    env = environment(folder / f"{name}-cache")
    for how, bound in bounds.items():
        wall, _, _out = launch(ROOT / "configs" / f"{name}.yaml", folder / name, env)
        rows = newest(folder / name)
        first = (rows["started_at"].min() - pd.Timestamp(_started(folder / name))).total_seconds()
        print(
            f"{name}: {how} {wall:.1f} s wall (bound: {bound:.0f} s), {len(rows)} rows, first case after {first:.1f} s"
        )


def _started(results: Path) -> str:
    return str(lake.read_run(results, lake.run_ids(results)[-1])["started_at"])


def million(folder: Path) -> None:
    """10⁶ planned cells on backends that do nothing: planning, driver memory, rows per second into the lake."""
    backends = [f"null-{i:02d}" for i in range(20)]
    config = write_config(
        folder, "million", [{"name": "load", "dtypes": ["float32", "float64"], "samples": 1}], backends
    )
    env = environment(folder / "million-cache", FARM_LOAD_OPS="25000")
    for how, name in (
        ("fake", "driver and lake alone, its supervisors faked"),
        ("real", "all processes, judged in children"),
    ):
        command = [sys.executable, "-m", "tests.bench.measured", how, str(config), "--results", str(folder / how)]
        _, _, out = run(command, env, (0, 1))
        figures = json.loads(re.findall(r"^MEASURED (.*)$", out, re.M)[-1])
        rows = lake.read_table(folder / how).num_rows
        print(
            f"million ({name}): {figures['cells']} cells planned in {figures['plan_s']:.1f} s (bound: 30), {rows} rows, "
            f"{rows / figures['run_s']:.0f} rows/s (bound: 20000), driver's peak memory {figures['peak_gib']:.2f} GiB (bound: 1)",
            flush=True,
        )


def weak(folder: Path) -> None:
    """Prepared samples that a zero or constant output would pass, among those that count as evidence."""
    _, _, out = run([sys.executable, "-m", "tests.bench.weak"], environment(folder / "weak-cache"))
    print(out.strip())


def zoo(folder: Path) -> None:
    """The planted faults and their twins under every policy: what `python -m farm.selftest` prints."""
    _, _, out = run(
        [sys.executable, "-m", "farm.selftest", "--results", str(folder / "zoo")],
        environment(folder / "zoo-cache"),
        (0, 1),
    )
    print(
        "\n".join(
            line for line in out.splitlines() if re.match(r"(\S+|steep points): .* (caught|wrong)|imprecise", line)
        )
    )


def verdicts(folder: Path) -> None:
    """torch's op_db on torch-cpu: how near it is to its references, and how many outcomes no cause is known of."""
    known = ROOT / "configs" / "known" / "torch-cpu.yaml"
    config = folder / "verdicts.yaml"
    config.write_text(
        yaml.safe_dump(
            {"catalogs": [{"name": "torch", "samples": 8}], "backends": ["torch-cpu"], "known_failures": str(known)}
        )
    )
    launch(config, folder / "verdicts", environment(folder / "verdicts-cache"), "--inline")
    rows = newest(folder / "verdicts")
    judged = rows[
        rows["status"].isin(["pass", "imprecise", "wrong"]) & ~rows["op_class"].isin(["random", "uninitialised"])
    ]
    in_ulps = judged["op_class"].isin(["exact", "elementary"])
    distance = (
        judged["max_ulp"]
        .where(in_ulps, judged["error_units"])
        .where(judged["kind"] != "nonfinite", float("inf"))
        .fillna(0.0)
    )
    cells = distance.groupby([judged["op"], judged["variant"], judged["dtype"]]).max()
    print(
        f"verdicts: {len(rows)} cases, {len(cells)} comparable cells: {100 * (cells <= 4).mean():.1f} % within 4 units or ulps (bound: 95), "
        f"{100 * (cells <= 2).mean():.1f} % within 2"
    )
    others = not_known(rows[~rows["status"].isin(["pass", "invalid", "vacuous"])], configs.load(config))
    print(
        f"verdicts: {(rows['status'] == 'wrong').sum()} wrong, {(rows['status'] == 'imprecise').sum()} imprecise, "
        f"{(rows['status'] == 'error').sum()} errors; {len(others)} of them not in {known.relative_to(ROOT)} (bound: 0)"
    )


BENCHES = {
    "zoo": zoo,
    "verdicts": verdicts,
    "weak": weak,
    "overhead": overhead,
    "torch": torch_matrix,
    "noise": noise,
    "onnx": onnx,
    "million": million,
    "quick": quick,
    "full": full,
    "vendors": vendor_matrix,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "which",
        nargs="*",
        choices=[*BENCHES, []],
        help="default: all but full and vendors, which take half an hour each",
    )
    chosen = parser.parse_args().which or [name for name in BENCHES if name not in ("full", "vendors")]
    print(f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}")
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="farm-bench-") as folder:
            BENCHES[name](Path(folder))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
