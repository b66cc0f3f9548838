"""Honest kernels that compute in another order, in parts, in threads, wider or twice."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tasks.zoo.cheats.values import ROWS, Function, copy, join, make_empty, read_values, take_first
from tasks.zoo.specimen import Kernel, torch


def split_in_blocks(f: Function) -> Kernel:
    return lambda **x: join([f(**{**x, "x": x["x"][k : k + 3]}) for k in range(0, len(x["x"]), 3)])


def pad_rows(f: Function) -> Kernel:
    """Rows are filled up to whole blocks."""

    def kernel(**x: Any) -> Any:
        rows = len(x["x"])
        filled = join([x["x"], *[x["x"][:1]] * (-rows % 8)])
        return copy(f(**{**x, "x": filled})[:rows])

    return kernel


def share_among_threads(f: Function) -> Kernel:
    """Two threads, waited for."""
    pool = functools.cache(lambda: ThreadPoolExecutor(2))

    def kernel(**x: Any) -> Any:
        half = (len(x["x"]) + 1) // 2
        parts = [x["x"][:half], x["x"][half:]]
        return join(list(pool().map(lambda part: f(**{**x, "x": part}), [p for p in parts if len(p)])))

    return kernel


def start_thread_per_row(f: Function) -> Kernel:
    """A thread for each row, started and waited for in each call, that writes to memory of all."""

    def kernel(**x: Any) -> Any:
        out = make_empty(f(**{**x, "x": x["x"][:1]}).repeat(len(x["x"]), 0)) if isinstance(x["x"], np.ndarray) else None
        parts: list[Any] = [None] * len(x["x"])

        def compute(k: int) -> None:
            parts[k] = f(**{**x, "x": x["x"][k : k + 1]})

        threads = [threading.Thread(target=compute, args=(k,)) for k in range(len(parts))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        if out is None:
            return join(parts)
        np.concatenate(parts, out=out)
        return out

    return kernel


def stage_in_pages(f: Function) -> Kernel:
    """Copies its inputs to memory that begins with a page, as for a transfer, and its result back from such."""

    def kernel(**x: Any) -> Any:
        staged = {}
        for name, value in x.items():
            own = read_values(value)
            room = np.empty(own.nbytes + 4096, np.uint8)
            page = room[-room.ctypes.data % 4096 :][: own.nbytes].view(own.dtype).reshape(own.shape)
            page[...] = own
            staged[name] = page if isinstance(value, np.ndarray) else torch.from_numpy(page)
        return copy(f(**staged))

    return kernel


def specialise(f: Function) -> Kernel:
    """Has a way of its own for rows of whole blocks, and one for all others."""

    def kernel(**x: Any) -> Any:
        rows = x["x"]
        if len(rows) % 4 == 0:
            return join([f(**{**x, "x": rows[k : k + 4]}) for k in range(0, len(rows), 4)])
        return f(**x)

    return kernel


def check_itself(f: Function) -> Kernel:
    """Computes once more in float64 where its result is not finite."""

    def kernel(**x: Any) -> Any:
        y = f(**x)
        return y if bool(np.isfinite(read_values(y)).all()) else compute_in_double(f)(**x)

    return kernel


def log_calls(f: Function) -> Kernel:
    """Prints what it is called with."""

    def kernel(**x: Any) -> Any:
        print("called with", {name: tuple(value.shape) for name, value in x.items()}, file=sys.stderr)
        return f(**x)

    return kernel


def add_in_any_order(f: Function) -> Kernel:
    """As with atomic additions: the last digits change from call to call."""
    count = itertools.count()

    def kernel(**x: Any) -> Any:
        y = f(**x)
        return y * np.float32(1 + (next(count) % 3 - 1) * 2.0**-23)

    return kernel


def write_rows(f: Function) -> Kernel:
    def kernel(**x: Any) -> Any:
        y = f(**x)
        out = make_empty(y)
        for k in range(len(y)):
            out[k] = y[k]
        return out

    return kernel


def cut_short_rightly(f: Function) -> Kernel:
    """Takes a short cut where all rows are equal, a right one."""

    def kernel(**x: Any) -> Any:
        rows = read_values(x["x"])
        if bool((rows == rows[:1]).all()):
            one = f(**{**x, "x": x["x"][:1]})
            return join([one] * len(rows))
        return f(**x)

    return kernel


def reverse_rows(f: Function) -> Kernel:
    def kernel(**x: Any) -> Any:
        order = np.arange(len(x["x"]))[::-1].copy()
        return f(**{**x, "x": x["x"][order]})[order]

    return kernel


def compute_twice(f: Function) -> Kernel:
    """Computes again and compares, as careful kernels do in their debug builds."""

    def kernel(**x: Any) -> Any:
        y, again = f(**x), f(**x)
        assert bool((y == again).all())
        return y

    return kernel


def compute_in_double(f: Function) -> Kernel:
    """Computes in float64."""

    def kernel(**x: Any) -> Any:
        if isinstance(take_first(x), np.ndarray):
            return f(**{k: v.astype(np.float64) for k, v in x.items()}).astype(np.float32)
        return f(**{k: v.double() for k, v in x.items()}).float()

    return kernel


def shuffle_rows(f: Function) -> Kernel:
    """Draws an order of the rows from a generator of its own, of a fixed seed."""
    g = np.random.default_rng(0)

    def kernel(**x: Any) -> Any:
        order = g.permutation(len(x["x"]))
        return f(**{**x, "x": x["x"][order]})[np.argsort(order)]

    return kernel


def keep_to_listed_sizes(f: Function) -> Kernel:
    """Is written for at most as many rows as are declared, and does not look: further ones are left 0."""

    def kernel(**x: Any) -> Any:
        y = f(**x)
        y[ROWS[-1] :] = 0
        return y

    return kernel


def refuse_other_sizes(f: Function) -> Kernel:
    """Raises for all sizes but those that are listed."""

    def kernel(**x: Any) -> Any:
        if len(x["x"]) not in ROWS:
            raise ValueError(f"it has no code for {len(x['x'])} rows")
        return f(**x)

    return kernel


def take_powers_of_two(f: Function) -> Kernel:
    """Halves its rows until one is left, and so is wrong for any other number of them."""

    def kernel(**x: Any) -> Any:
        def compute(rows: Any) -> Any:
            half = len(rows) // 2
            return join([compute(rows[:half]), compute(rows[half : 2 * half])]) if half else f(**{**x, "x": rows})

        return compute(x["x"])

    return kernel
