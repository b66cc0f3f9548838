"""The verdict on given inputs and outputs is the same, bit for bit, whatever the process, threads and order of cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.judge import policy_files
from tasks.judge.error_metrics import BLOCK, Metrics, compare_outputs
from tasks.model import Group, Leaf, OpClass, Status, get_numpy_dtype
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

CLASSES = (OpClass.COMPOSITE, OpClass.EXACT, OpClass.ELEMENTARY, OpClass.DISCONTINUOUS)
DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "int64", "bool")
#: Ops of several classes; prepared once, judged in every child.
OPS = (
    "torch:sum",
    "torch:mm",
    "torch:exp",
    "torch:log_softmax",
    "torch:sort",
    "torch:transpose",
    "critical:gelu",
    "critical:bmm",
)

CHILD = """
import json, random, sys
from tests.tasks.test_determinism import judged_rows, judged_arrays
order = random.Random(int(sys.argv[2])).sample(range(10_000), 10_000)
print(json.dumps([judged_arrays(order), judged_rows(sys.argv[1], order)]))
"""


def case(number: int) -> tuple[list[np.ndarray], list[Leaf]]:
    """Outputs and expected outputs of one cell: several blocks long, with a noise floor and some NaN."""
    g = np.random.default_rng(number)
    dtype = DTYPES[number % len(DTYPES)]
    size = int(g.integers(1, 3 * BLOCK))
    y = g.normal(size=size) * 10.0 ** g.integers(-6, 5, size)
    a = y.copy()
    if number % 3:  # the others are right
        a *= 1 + g.normal(size=size) * 1e-3
        a[g.random(size) < 0.01] = np.nan if number % 2 else 0.0
    with np.errstate(all="ignore"):
        if dtype == "complex64":
            y, a = y + 1j * y[::-1], a + 1j * a[::-1]
        elif dtype in ("int64", "bool"):
            y, a = y.astype(dtype), np.nan_to_num(a).astype(dtype)
        return [a.astype(get_numpy_dtype(dtype))], [Leaf(dtype, y.shape, y, np.abs(g.normal(size=size)) * 1e-4)]


def spell(metrics: Metrics, status: Status, kind: str) -> list[object]:
    """Every bit of the metrics, and the verdict."""
    return [*(x.hex() if isinstance(x, float) else x for x in vars(metrics).values()), status.value, kind]


def judged_arrays(order: list[int]) -> dict[str, list[object]]:
    policy = policy_files.load_policy("error_units")
    done = {}
    for number in [i for i in order if i < 28]:
        actual, expected = case(number)
        for op_class in CLASSES:
            metrics = compare_outputs(actual, expected, op_class)
            done[f"{number} {op_class}"] = spell(
                metrics,
                *policy_files.judge_by_policy(metrics, policy, "torch:x", op_class.value, expected[0].dtype, "float64"),
            )
    return dict(sorted(done.items()))


def judged_rows(cache: str, order: list[int]) -> dict[str, list[object]]:
    """The rows of prepared cases on torch-cpu, without the times and where the batch had them."""
    items = [
        make_item_of_whole_group(prepare_group(Group(op, "", "float16" if k % 2 else "float32", 3), Path(cache))[1])
        for k, op in enumerate(OPS)
    ]
    items = [items[i] for i in order if i < len(items)]
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    done = {}
    for row in (done.row.values() for done in runner.run(items)):
        kept = {k: v for k, v in row.items() if not k.endswith("_ms") and k != "started_at"}
        name = f"{row['op']} {row['dtype']} {row['sample']}"
        done[name] = [f"{k}={v.hex() if isinstance(v, float) else v}" for k, v in sorted(kept.items())]
    return dict(sorted(done.items()))


def child(cache: Path, seed: int, threads: int) -> str:
    env = (
        os.environ
        | {"PYTHONHASHSEED": str(seed)}
        | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS")}
    )
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(cache), str(seed)], env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()[-1]


def test_verdicts_do_not_depend_on_process_threads_or_order(cache: Path) -> None:
    pytest.importorskip("torch")
    said = [child(cache, seed, threads) for seed, threads in ((1, 1), (2, 2))]
    arrays, rows = json.loads(said[0])
    assert len(arrays) == 28 * len(CLASSES) and len(rows) >= 2 * len(OPS)
    assert {"pass", "wrong"} <= {line[-2] for line in arrays.values()}
    assert {status for line in rows.values() for status in line if status.startswith("status=")} >= {"status=pass"}
    assert len(set(said)) == 1, [k for other in said[1:] for k in rows if json.loads(other)[1].get(k) != rows[k]][:3]
    # This process, in yet another order, after whatever ran before.
    assert (
        json.dumps([judged_arrays(list(range(10_000))[::-1]), judged_rows(str(cache), list(range(10_000)))]) == said[0]
    )


def test_one_bit_of_an_output_is_seen() -> None:
    """What the comparison above rests on: it is not blind."""
    actual, expected = case(0)
    first = spell(compare_outputs(actual, expected), Status.PASS, "")
    largest = int(np.nanargmax(np.abs(actual[0])))
    actual[0][largest] = np.nextafter(actual[0][largest], np.float32(np.inf))
    assert spell(compare_outputs(actual, expected), Status.PASS, "") != first
