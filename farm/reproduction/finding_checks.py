"""What a finding holds a result to: functions that its run.py contains as they stand.

Each prints what it compares and returns 1 where the failure is there, else 0. run: calls the runtime, with inputs, and
gives arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def load_case(path: Any) -> tuple:
    """(inputs by name, other arrays by name) of a file of arrays "name:dtype": one of a dtype that numpy lacks is kept
    as its bits."""
    arrays = {key.rpartition(":")[0]: x.view(key.rpartition(":")[2]) for key, x in np.load(path).items()}
    inputs = {name[len("input.") :]: x for name, x in arrays.items() if name.startswith("input.")}
    return inputs, {name: x for name, x in arrays.items() if not name.startswith("input.")}


def compare_output(got: list, case: dict) -> int:
    """Whether an output is further from the exact result than is allowed."""
    count = sum(name.startswith("exact.") for name in case)
    wrong = int(len(got) != count)
    for k, a in enumerate(map(np.asarray, got[:count])):
        dtype, y, allowed = (case[f"{name}.{k}"] for name in ("dtype", "exact", "allowed"))
        print(f"got {a.dtype} {a.shape} {a.ravel()[:8]}\nexpected {dtype} {y.shape} {y.ravel()[:8]}")
        if (a.dtype.name, a.shape) != (dtype, y.shape):
            wrong = 1
            continue
        right = (a == y) | (a != a) & (y != y)
        if y.dtype.kind == "f":
            right |= (a == y.astype(a.dtype)) & ~np.isfinite(a)
        elif y.dtype.kind == "c":  # whichever part is not finite
            right |= ~np.isfinite(a) & ~np.isfinite(y.astype(a.dtype))
        if np.any(allowed > 0):
            if (largest := case.get(f"largest.{k}")) is not None:  # what an overflow at the border stands for
                a = np.where(np.isinf(a) & np.isfinite(y.astype(a.dtype)), np.copysign(largest, a), a)
            off = np.abs(np.subtract(a, y, dtype=np.result_type(y, float)))
            right |= (off <= allowed) & (allowed > 0) & (np.isfinite(a) == np.isfinite(y)) | np.isinf(allowed)
            if not np.all(right):
                print(
                    f"difference {off[~right].max():.3g}, allowed {np.broadcast_to(allowed, y.shape)[~right].min():.3g}"
                )
        wrong |= int(not np.all(right))
    return wrong


def join_pairs(got: list, places: list) -> list:
    """Outputs whose complex numbers left a model as pairs of real ones, in the last axis."""
    joined = [np.ascontiguousarray(x) for x in got]
    for k in places:
        if joined[k].shape[-1:] == (2,) and joined[k].dtype in (np.float32, np.float64):
            joined[k] = joined[k].view(np.complex64 if joined[k].dtype == np.float32 else np.complex128)[..., 0]
    return joined


def compare_equal(got: list, case: dict) -> int:
    """Whether an output, of text, is not what is expected."""
    count = sum(name.startswith("exact.") for name in case)
    wrong = int(len(got) != count)
    for k, a in enumerate(map(np.asarray, got[:count])):
        y = case[f"exact.{k}"]
        print(f"got {a.shape} {a.ravel()[:8]}\nexpected {y.shape} {y.ravel()[:8]}")
        wrong |= int(a.shape != y.shape or bool(np.any(a != y)))
    return wrong


def compare_shapes(got: list, expected: list, finite: list) -> int:
    """Whether an output has another dtype or shape; those at the places `finite` are to have finite numbers."""
    found = [(str(a.dtype), a.shape) for a in map(np.asarray, got)]
    print("got", found, "expected", expected)
    if found != expected:
        return 1
    return int(not all(np.isfinite(got[k].astype(complex)).all() for k in finite))


def compare_bias(got: list, case: dict, bound: float) -> int:
    """Whether outputs are nearly all off to one side, by `bound` of the units that are allowed on the average."""
    wrong = 0
    for k, a in enumerate(map(np.asarray, got)):
        y, unit = case[f"exact.{k}"], case[f"allowed.{k}"]
        with np.errstate(all="ignore"):
            off = (a.astype(float) - y) / unit
            means = [float(np.mean(x[np.isfinite(x)])) for x in (off, off * np.sign(y))]
        print(f"output {k}: mean error {means[0]:.3g} units, {means[1]:.3g} away from 0; bias begins at {bound:g}")
        wrong |= int(max(map(abs, means)) >= bound)
    return wrong


def compare_signs(got: list, case: dict) -> int:
    """Whether a zero has the other sign."""
    wrong = 0
    for k, a in enumerate(map(np.asarray, got)):
        y = case[f"exact.{k}"]
        zeros = (a == 0) & (y == 0)
        other = zeros & (np.signbit(a) != np.signbit(y))
        print(f"output {k}: {int(other.sum())} of {int(zeros.sum())} zeros have the other sign")
        wrong |= int(other.any())
    return wrong


def find_changed_inputs(run: Any, inputs: Any, held: Any) -> int:
    """Whether the call changes an input; held: places of those that it may not, None for all."""
    before = [x.copy() for x in inputs]
    run(inputs)
    changed = [k for k, x in enumerate(inputs) if x.tobytes() != before[k].tobytes()]
    wrong = [k for k in changed if held is None or k in held]
    for k in wrong:
        print(f"input {k}: {before[k].ravel()[:8]} is then {inputs[k].ravel()[:8]}")
    return int(bool(wrong))


def find_shared_memory(run: Any, inputs: Any) -> int:
    """Whether an output is memory of an input."""
    got = run(inputs)
    shared = [(i, k) for i, a in enumerate(got) for k, x in enumerate(inputs) if np.may_share_memory(a, x)]
    print("outputs and inputs that share memory:", shared)
    return int(bool(shared))


def compare_runs(run: Any, inputs: Any, times: int) -> int:
    """Whether runs on the same inputs give other bytes."""
    copy = (
        (lambda x: {k: v.copy() for k, v in x.items()})
        if isinstance(inputs, dict)
        else (lambda x: [v.copy() for v in x])
    )
    runs = [[np.array(x) for x in run(copy(inputs))] for _ in range(times)]
    for got in runs:
        print([x.ravel()[:8] for x in got])
    bytes_ = [[x.tolist() if x.dtype == object else x.tobytes() for x in got] for got in runs]
    return int(any(x != bytes_[0] for x in bytes_))


def compare_processes(run: Any, inputs: Any, threads: list) -> int:
    """Whether processes of these numbers of threads give other bytes; one that dies tells nothing."""
    import hashlib
    import subprocess
    import sys

    if len(sys.argv) > 1:  # one of these processes
        got = [np.array(x) for x in run(inputs, threads=int(sys.argv[1]))]
        text = repr([(x.shape, x.tolist() if x.dtype == object else x.tobytes()) for x in got])
        print("\n" + hashlib.sha256(text.encode()).hexdigest(), [x.ravel()[:4].tolist() for x in got])
        return 0
    said = []
    for count in threads:
        command = [sys.executable, *["-I"] * sys.flags.isolated, __file__, str(count)]
        done = subprocess.run(command, capture_output=True, text=True)
        said.append("" if done.returncode else done.stdout.splitlines()[-1])
        print(f"{count} threads: {said[-1]}")
    return int(bool(said[0]) and len(set(said)) > 1)


def compare_batches(run: Any, inputs: Any, rows: list, place: int, count: int) -> int:
    """Whether the first row is other bytes at a place among `count` than alone; rows: the inputs, by name or place,
    that have rows."""

    def among(x: Any) -> Any:  # the first row first, in the middle and last, others between
        turn = int(x.dtype.kind not in "biuO")
        others = [*(x[k : k + 1] for k in range(1, len(x))), np.roll(x[:1].ravel(), turn).reshape(x[:1].shape)]
        return np.concatenate(
            [x[:1] if k in (0, count // 2, count - 1) else others[k % len(others)] for k in range(count)]
        )

    named = inputs if isinstance(inputs, dict) else dict(enumerate(inputs))
    one = {k: x[:1] if k in rows else x for k, x in named.items()}
    many = {k: among(x) if k in rows else x for k, x in named.items()}
    given = (one, many) if isinstance(inputs, dict) else (list(one.values()), list(many.values()))
    alone, batch = map(run, given)
    pairs = [(a, b[place : place + 1]) for a, b in zip(alone, batch)]
    print(f"alone and among {count}:", [(a.ravel()[:4], b.ravel()[:4]) for a, b in pairs])
    return int(any(a.tobytes() != b.tobytes() for a, b in pairs))


def find_result(run: Any, inputs: Any) -> int:
    """Whether there is a result, where the reference raises."""
    print("it returned", run(inputs), "where the reference raises")
    return 1


def find_no_error(run: Any, inputs: Any) -> int:
    """Of what raises, dies or hangs: that it does not."""
    print("it did not fail:", run(inputs))
    return 0


def find_disorder(got: list, x: Any, step: float, eps: float, smallest: float) -> int:
    """Whether results of ascending inputs fall (step 1) or rise (-1) by more than one place."""
    x, y = (np.asarray(v).astype(float).ravel() for v in (x, got[0]))
    place = eps * np.maximum(np.abs(y), smallest)  # one place off is no disorder
    order = np.argsort(x, kind="stable")
    x, y, place = x[order], step * y[order], place[order]
    highest = np.fmax.accumulate(y)
    wrong = np.flatnonzero(highest - y > place)
    wrong = wrong[[x[np.argmax(y[: k + 1] == highest[k])] < x[k] for k in wrong]] if len(wrong) else wrong
    for k in wrong[:8]:
        print(f"f({x[k]}) = {step * y[k]}, where a smaller input gave {step * highest[k]}")
    return int(len(wrong) > 0)


def find_asymmetry(got: list, x: Any, sign: float) -> int:
    """Whether f(-x) is not f(x) (sign 1) or not -f(x) (sign -1)."""
    x, y = (np.asarray(v).astype(float).ravel() for v in (x, got[0]))
    results = dict(zip(x.tolist(), y.tolist()))
    wrong = [v for v in results if -v in results and abs(results[-v] - sign * results[v]) > 0]
    for v in wrong[:8]:
        print(f"f({v}) = {results[v]}, f({-v}) = {results[-v]}")
    return int(bool(wrong))


def find_outside(got: list, x: Any, low: float, high: float) -> int:
    """Whether results lie outside of the bounds."""
    x, y = (np.asarray(v).astype(float).ravel() for v in (x, got[0]))
    wrong = np.flatnonzero((y < low) | (y > high))
    for k in wrong[:8]:
        print(f"f({x[k]}) = {y[k]} is outside [{low:g}, {high:g}]")
    return int(len(wrong) > 0)


def find_missed_point(got: list, x: Any, point: float, value: float) -> int:
    """Whether f(point) is another number than the value."""
    x, y = (np.asarray(v).astype(float).ravel() for v in (x, got[0]))
    wrong = np.flatnonzero((x == point) & ((y < value) | (y > value)))
    for k in wrong[:8]:
        print(f"f({point:g}) = {y[k]}, which is {value:g} exactly")
    return int(len(wrong) > 0)


def find_other_twice(got: list, x: Any, inverse: bool) -> int:
    """Whether f(f(x)) is not f(x), or not x of an op that is its own inverse; looked up among the inputs."""
    x, y = (np.asarray(v).astype(float).ravel() for v in (x, got[0]))
    results = dict(zip(x.tolist(), y.tolist()))
    twice = {v: results[results[v]] for v in results if results[v] in results}
    wrong = [v for v in twice if abs(twice[v] - (v if inverse else results[v])) > 0]
    for v in wrong[:8]:
        print(f"f({v}) = {results[v]}, f({results[v]}) = {twice[v]}")
    return int(bool(wrong))


def find_order_asymmetry(got: list) -> int:
    """Whether f(a, b), of all pairs, is not f(b, a)."""
    y = np.asarray(got[0]).astype(float)
    wrong = np.argwhere(~((y == y.T) | np.isnan(y) & np.isnan(y.T)))
    for i, j in wrong[:8]:
        print(f"result {i}, {j} is {y[i, j]}; {j}, {i} is {y[j, i]}")
    return int(len(wrong) > 0)
