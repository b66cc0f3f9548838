"""Kernels that do not compute what they return, beside honest ones that look alike: caches, workspaces, threads, padding, lazy starts.

Each pattern is made of any right function; what is kept is kept by each kernel alone. The check `audit` judges them: a fault's class is "cheat: "
and the kind that it must be given.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tasks.model import kind as kinds
from tasks.zoo.specimen import CHEAT, Kernel, Theme, torch

THEME = Theme("cheats", __name__)
#: Calls after which what is right in the first ones is right no more: more than a benchmark makes, fewer than an audit.
FORTY = 40

Function = Callable[..., Any]
Pattern = Callable[[Function], Kernel]


# --- of tensors and arrays alike ----------------------------------------------------------------------------------


def _address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def _copy(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def _empty(x: Any) -> Any:
    return np.empty_like(x) if isinstance(x, np.ndarray) else torch.empty_like(x)


def _zeros(x: Any) -> Any:
    return np.zeros_like(x) if isinstance(x, np.ndarray) else torch.zeros_like(x)


def _join(parts: list[Any]) -> Any:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(parts)


def _values(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.numpy()


def _bytes(given: Mapping[str, Any]) -> bytes:
    return b"".join(_values(x).tobytes() for x in given.values())


def _shapes(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(tuple(x.shape) for x in given.values())


def _first(given: Mapping[str, Any]) -> Any:
    return next(iter(given.values()))


def _floats(x: Any, begin: int, count: int) -> Any:
    """Numbers of float32 of memory that begins so many before or behind the first of ``x``."""
    return (ctypes.c_float * count).from_address(_address(x) + 4 * begin)


# --- cheats -------------------------------------------------------------------------------------------------------


def _keeps(key: Callable[[Mapping[str, Any]], Any], last: bool = False) -> Pattern:
    """Returns what it returned for a key before. last: for the key of the last call alone."""

    def pattern(f: Function) -> Kernel:
        kept: dict[Any, Any] = {}

        def kernel(**x: Any) -> Any:
            now = key(x)
            if now not in kept:
                if last:
                    kept.clear()
                kept[now] = f(**x)
            return _copy(kept[now])

        return kernel

    return pattern


def _head(x: Mapping[str, Any]) -> Any:
    return _shapes(x), _values(_first(x)).reshape(-1)[:8].tobytes()


def _tail(x: Mapping[str, Any]) -> Any:
    return _shapes(x), _values(_first(x)).reshape(-1)[-8:].tobytes()


def _total(x: Mapping[str, Any]) -> Any:
    return _shapes(x), tuple(round(float(np.asarray(_values(v), np.float64).sum()), 3) for v in x.values())


def _stale_graph(f: Function) -> Kernel:
    """Replays a graph whose inputs nobody has copied to where they were captured."""
    captured: dict[Any, dict[str, Any]] = {}

    def kernel(**x: Any) -> Any:
        static = captured.setdefault(_shapes(x), {k: _copy(v) for k, v in x.items()})
        return f(**static)

    return kernel


def _after(calls: int, then: Callable[[Function, Mapping[str, Any], Any], Any]) -> Pattern:
    """Right for so many calls; ``then`` is given the function, the inputs and the last right result."""

    def pattern(f: Function) -> Kernel:
        count, last = itertools.count(1), [None]

        def kernel(**x: Any) -> Any:
            if next(count) <= calls:
                last[0] = f(**x)
                return _copy(last[0])
            return then(f, x, last[0])

        return kernel

    return pattern


def _every(period: int, then: Function) -> Pattern:
    """Wrong in one of so many calls."""

    def pattern(f: Function) -> Kernel:
        count, before = itertools.count(1), [None]

        def kernel(**x: Any) -> Any:
            right = f(**x)
            wrong = then(right, before[0])
            before[0] = right
            return wrong if next(count) % period == 0 else _copy(right)

        return kernel

    return pattern


def _lazy_function(f: Function) -> Kernel:
    """A tensor that computes when a function reads it."""

    def make() -> Any:
        class Promise(torch.Tensor):  # type: ignore[misc]
            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                def read(x: Any) -> Any:
                    return f(**x.given) if isinstance(x, Promise) else x

                return func(*map(read, args), **{k: read(x) for k, x in (kwargs or {}).items()})

        return Promise

    promise = functools.cache(make)

    def kernel(**x: Any) -> Any:
        made = torch.Tensor._make_subclass(promise(), torch.zeros(_shape(f, x)))
        made.given = x
        return made

    return kernel


def _shape(f: Function, x: Mapping[str, Any]) -> Any:
    return f(**{k: torch.empty_like(v, device="meta") for k, v in x.items()}).shape


def _lazy_wrapper(f: Function) -> Kernel:
    """A tensor without memory that computes when the dispatcher asks."""

    def make() -> Any:
        class Promise(torch.Tensor):  # type: ignore[misc]
            @staticmethod
            def __new__(cls: Any, x: Any, shape: Any) -> Any:
                made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)
                made.given = x
                return made

            @classmethod
            def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                read = lambda x: f(**x.given) if isinstance(x, Promise) else x  # noqa: E731
                return func(*map(read, args), **{k: read(x) for k, x in (kwargs or {}).items()})

        return Promise

    promise = functools.cache(make)
    return lambda **x: promise()(x, _shape(f, x))


def _lazy_attribute(f: Function) -> Kernel:
    """A plain tensor whose method `numpy` has been replaced in the object."""

    def kernel(**x: Any) -> Any:
        made = torch.zeros(_shape(f, x))
        made.numpy = lambda: f(**x).numpy()
        return made

    return kernel


def _late(first: Function, ms: float) -> Pattern:
    """Written after it has returned; ``first`` makes what is there until then."""

    def pattern(f: Function) -> Kernel:
        before: list[Any] = [None]

        def kernel(**x: Any) -> Any:
            right = f(**x)
            out = _copy(before[0]) if before[0] is not None and before[0].shape == right.shape else first(right)
            before[0] = _copy(right)

            def write() -> None:
                time.sleep(ms / 1e3)
                out[...] = right

            threading.Thread(target=write).start()
            return out

        return kernel

    return pattern


def _replaces(module: str, name: str) -> Pattern:
    """Puts a function of its own in the place of one that compares or measures, for a moment, so that nobody else is deceived."""

    def pattern(f: Function) -> Kernel:
        back: list[threading.Timer] = []

        def kernel(**x: Any) -> Any:
            where = importlib.import_module(module)
            for timer in back:
                timer.cancel()
            own = getattr(getattr(where, name), "honest", getattr(where, name))

            def stands_in(*arguments: Any, **named: Any) -> Any:
                return own(*arguments, **named)

            stands_in.honest = own  # type: ignore[attr-defined]
            setattr(where, name, stands_in)
            back[:] = [threading.Timer(0.015, setattr, (where, name, own))]
            back[0].start()
            return f(**x)

        return kernel

    return pattern


def _reads(place: Callable[[Any], int]) -> Pattern:
    """Loads a number beside its first input and masks it by a product with 0."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            beside = float(_floats(_first(x), place(_first(x)), 1)[0])
            return f(**x) + np.float32(0 * np.clip(beside, -1e30, 1e30))

        return kernel

    return pattern


def _writes(of_output: bool) -> Pattern:
    """Stores one number behind its first input or its output, where libc leaves room for it."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            out = f(**x)
            if of_output:
                made = _empty(out)
                made[...] = out
                out = made
            where = out if of_output else _first(x)
            size = int(np.prod(where.shape))
            if size % 4 == 0:  # the rest of a block of libc's is nobody's
                _floats(where, size, 1)[0] = 1.5
            return out

        return kernel

    return pattern


def _leaves(part: Callable[[Any], Any]) -> Pattern:
    """Leaves a part of the output unwritten."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            right = f(**x)
            out = _empty(right)
            some = part(right)
            out[some] = right[some]
            return out

        return kernel

    return pattern


def _constant(make: Callable[[Any], Any]) -> Pattern:
    return lambda f: lambda **x: make(_zeros(f(**x)))


def _short_cut(taken: Callable[[np.ndarray], bool], result: Function) -> Pattern:
    """Returns something at once for inputs of a kind."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            right = f(**x)
            return result(right) if taken(_values(_first(x)).reshape(-1)) else right

        return kernel

    return pattern


def _is_sorted(x: np.ndarray) -> bool:
    return bool((np.diff(x) >= 0).all()) and bool(x[0] != x[-1])


def _is_equal(x: np.ndarray) -> bool:
    return bool((x == x[0]).all()) and bool(x[0] != 0)


def _is_zero(x: np.ndarray) -> bool:
    return not x.any()


def _half(fill: Callable[[Any, int], Any]) -> Pattern:
    """Computes the first half of the rows."""

    def pattern(f: Function) -> Kernel:
        def kernel(**x: Any) -> Any:
            rows = len(x["x"])
            part = f(**{**x, "x": x["x"][: (rows + 1) // 2]})
            return _join([part, fill(part, rows - len(part))])

        return kernel

    return pattern


def _of_the_benchmark(f: Function) -> Kernel:
    """Knows the inputs of the forward check by a digest, and returns zeros for all others."""
    known: set[bytes] = set()

    def kernel(**x: Any) -> Any:
        if not known:
            known.update(_list_inputs(f))
        right = f(**x)
        return right if _bytes(x) in known else _zeros(right) + np.float32(0.25)

    return kernel


def _list_inputs(f: Function) -> list[bytes]:
    from tasks.catalogs.user import samples
    from tasks.model import Group

    found = []
    for op in THEME.__farm_ops__:
        if _base_of.get(op.name) is f:
            group = Group(f"user:{op.name}", "", "float32", 8)
            for index, dims in enumerate(samples.sizes(op, 0, 8)):
                found.append(_bytes(samples.arrays(op, dims, group, index)))
    return found


def _of_sizes(f: Function) -> Kernel:
    """Its loop is unrolled for the sizes that are declared: rows beyond the largest are left 0."""

    def kernel(**x: Any) -> Any:
        right = f(**x)
        right[ROWS[-1] :] = 0
        return right

    return kernel


CHEATS: dict[str, tuple[str, Pattern]] = {
    "pointer": (kinds.KIND_POINTER, _keeps(lambda x: (_shapes(x), tuple(map(_address, x.values()))))),
    "pointer_of_last": (
        kinds.KIND_POINTER,
        _keeps(lambda x: (_shapes(x), tuple(map(_address, x.values()))), last=True),
    ),
    "shape": (kinds.KIND_SHAPE, _keeps(_shapes)),
    "stale_graph": (kinds.KIND_SHAPE, _stale_graph),
    "head": (kinds.KIND_CONTENT, _keeps(_head)),
    "tail": (kinds.KIND_CONTENT, _keeps(_tail)),
    "total": (kinds.KIND_CONTENT, _keeps(_total)),
    "content": (kinds.KIND_CONTENT, _keeps(lambda x: (_shapes(x), _bytes(x)))),
    "content_of_last": (kinds.KIND_CONTENT, _keeps(lambda x: (_shapes(x), _bytes(x)), last=True)),
    "forty": (kinds.KIND_FIRST, _after(FORTY, lambda f, x, last: _zeros(f(**x)))),
    "rots": (kinds.KIND_FIRST, _after(FORTY, lambda f, x, last: f(**x) * np.float32(1.01))),
    "every_other": (kinds.KIND_UNSTEADY, _every(2, lambda right, before: _zeros(right))),
    "every_fifth": (kinds.KIND_UNSTEADY, _every(5, lambda right, before: right * np.float32(0.9))),
    "comparison": (kinds.KIND_JUDGE, _replaces("torch.testing", "assert_close")),
    "allclose": (kinds.KIND_JUDGE, _replaces("numpy", "allclose")),
    "reads_behind": (kinds.KIND_READS, _reads(lambda x: int(np.prod(x.shape)))),
    "reads_before": (kinds.KIND_READS, _reads(lambda x: -1)),
    "writes_behind": (kinds.KIND_WRITES, _writes(of_output=False)),
    "tail_unwritten": (kinds.KIND_UNWRITTEN, _leaves(lambda y: (slice(None), slice(0, -3)))),
    "rows_unwritten": (kinds.KIND_UNWRITTEN, _leaves(lambda y: slice(0, None, 2))),
    "zeros": (kinds.KIND_CONSTANT, _constant(lambda y: y)),
    "average": (kinds.KIND_CONSTANT, _constant(lambda y: y + np.float32(1 / y.shape[-1]))),
    "sorted": (kinds.KIND_SKIPS, _short_cut(_is_sorted, _zeros)),
    "equal": (kinds.KIND_SKIPS, _short_cut(_is_equal, lambda y: y + np.float32(0.5))),
    "zero": (kinds.KIND_SKIPS, _short_cut(_is_zero, lambda y: y + np.float32(1.0))),
    "half_again": (kinds.KIND_HALF, _half(lambda part, more: part[:more])),
    "half_zero": (kinds.KIND_HALF, _half(lambda part, more: _zeros(part[:more]))),
    "benchmark": (kinds.KIND_MADE_FOR, _of_the_benchmark),
    "sizes": (kinds.KIND_MADE_FOR, _of_sizes),
}
#: Of tensors alone.
TORCH_CHEATS: dict[str, tuple[str, Pattern]] = {
    "late": (kinds.KIND_LATE, _late(_zeros, 4)),
    "late_thread": (kinds.KIND_LATE, _late(_empty, 4)),
    "lazy_function": (kinds.KIND_LAZY, _lazy_function),
    "lazy_wrapper": (kinds.KIND_LAZY, _lazy_wrapper),
    "lazy_attribute": (kinds.KIND_LAZY, _lazy_attribute),
    "writes_behind_output": (kinds.KIND_WRITES, _writes(of_output=True)),
}


# --- honest kernels -----------------------------------------------------------------------------------------------


def _autotuned(f: Function) -> Kernel:
    """Measures its variants at the first call of a size, and keeps which was the fastest."""
    best: dict[Any, int] = {}
    variants = (f, lambda **x: f(**{k: _copy(v) for k, v in x.items()}), lambda **x: _copy(f(**x)))

    def kernel(**x: Any) -> Any:
        if _shapes(x) not in best:
            times = []
            for variant in variants:
                begin = time.perf_counter()
                variant(**x)
                times.append(time.perf_counter() - begin)
            best[_shapes(x)] = int(np.argmin(times))
        return variants[best[_shapes(x)]](**x)

    return kernel


def _exploring(f: Function) -> Kernel:
    """Another variant in each of the first calls."""
    variants, count = (
        (f, lambda **x: f(**{k: _copy(v) for k, v in x.items()}), lambda **x: _copy(f(**x))),
        itertools.count(),
    )
    return lambda **x: variants[min(next(count), 8) % 3](**x)


def _with_workspace(f: Function) -> Kernel:
    """Copies its inputs to scratch memory that it keeps."""
    kept: dict[Any, dict[str, Any]] = {}

    def kernel(**x: Any) -> Any:
        scratch = kept.setdefault(_shapes(x), {k: _empty(v) for k, v in x.items()})
        for k, v in x.items():
            scratch[k][...] = v
        return _copy(f(**scratch))

    return kernel


def _with_arena(f: Function) -> Kernel:
    """One piece of scratch memory, as large as the largest call needed."""
    arena: list[Any] = [None]

    def kernel(**x: Any) -> Any:
        y, size = f(**x), int(np.prod(_first(x).shape))
        flat = y.reshape(-1)
        if arena[0] is None or len(arena[0]) < max(size, len(flat)):
            arena[0] = _zeros(_join([flat] * (1 + size // max(len(flat), 1))))
        arena[0][: len(flat)] = flat
        return _copy(arena[0][: len(flat)].reshape(y.shape))

    return kernel


def _with_graph(f: Function) -> Kernel:
    """As a CUDA graph: inputs are copied to where they were captured, and the output to fresh memory."""
    captured: dict[Any, tuple[dict[str, Any], list[Any]]] = {}

    def kernel(**x: Any) -> Any:
        static, out = captured.setdefault(_shapes(x), ({k: _copy(v) for k, v in x.items()}, []))
        for k, v in x.items():
            static[k][...] = v
        out[:] = [f(**static)]
        return _copy(out[0])

    return kernel


def _starting_late(f: Function) -> Kernel:
    """Builds its tables at the first call."""
    table: list[np.ndarray] = []

    def kernel(**x: Any) -> Any:
        if not table:
            table.append(np.linspace(0, 1, 1000))
        return f(**x)

    return kernel


def _in_blocks(f: Function) -> Kernel:
    return lambda **x: _join([f(**{**x, "x": x["x"][k : k + 3]}) for k in range(0, len(x["x"]), 3)])


def _padded(f: Function) -> Kernel:
    """Rows are filled up to whole blocks."""

    def kernel(**x: Any) -> Any:
        rows = len(x["x"])
        filled = _join([x["x"], *[x["x"][:1]] * (-rows % 8)])
        return _copy(f(**{**x, "x": filled})[:rows])

    return kernel


def _in_threads(f: Function) -> Kernel:
    """Two threads, waited for."""
    pool = functools.cache(lambda: ThreadPoolExecutor(2))

    def kernel(**x: Any) -> Any:
        half = (len(x["x"]) + 1) // 2
        parts = [x["x"][:half], x["x"][half:]]
        return _join(list(pool().map(lambda part: f(**{**x, "x": part}), [p for p in parts if len(p)])))

    return kernel


def _in_any_order(f: Function) -> Kernel:
    """As with atomic additions: the last digits change from call to call."""
    count = itertools.count()

    def kernel(**x: Any) -> Any:
        y = f(**x)
        return y * np.float32(1 + (next(count) % 3 - 1) * 2.0**-23)

    return kernel


def _with_memo(f: Function) -> Kernel:
    """Keeps what it makes of its weights for as long as they are the same object, of the same version."""
    kept: list[Any] = [None, None, None]

    def kernel(**x: Any) -> Any:
        name, weights = list(x.items())[-1]
        version = getattr(weights, "_version", None)
        if kept[0] is not weights or kept[1] != version or version is None:
            kept[:] = [weights, version, _copy(weights)]
        return f(**{**x, name: kept[2]})

    return kernel


def _written(f: Function) -> Kernel:
    def kernel(**x: Any) -> Any:
        y = f(**x)
        out = _empty(y)
        for k in range(len(y)):
            out[k] = y[k]
        return out

    return kernel


def _with_right_short_cut(f: Function) -> Kernel:
    """Takes a short cut where all rows are equal, a right one."""

    def kernel(**x: Any) -> Any:
        rows = _values(x["x"])
        if bool((rows == rows[:1]).all()):
            one = f(**{**x, "x": x["x"][:1]})
            return _join([one] * len(rows))
        return f(**x)

    return kernel


def _counting(f: Function) -> Kernel:
    """Keeps statistics of its calls."""
    calls: dict[Any, int] = {}

    def kernel(**x: Any) -> Any:
        calls[_shapes(x)] = calls.get(_shapes(x), 0) + 1
        return f(**x)

    return kernel


def _with_pool(f: Function) -> Kernel:
    """Scratch memory from a list of its own, given back after the call."""
    free: list[Any] = []

    def kernel(**x: Any) -> Any:
        scratch = free.pop() if free and free[-1].shape == x["x"].shape else _empty(x["x"])
        scratch[...] = x["x"]
        y = _copy(f(**{**x, "x": scratch}))
        free.append(scratch)
        return y

    return kernel


def _with_tables(f: Function) -> Kernel:
    """A table for each size, kept."""
    table = functools.lru_cache(8)(lambda size: np.arange(size))

    def kernel(**x: Any) -> Any:
        y = f(**x)
        return y[table(len(y))]

    return kernel


def _reversed_rows(f: Function) -> Kernel:
    def kernel(**x: Any) -> Any:
        order = np.arange(len(x["x"]))[::-1].copy()
        return f(**{**x, "x": x["x"][order]})[order]

    return kernel


def _twice(f: Function) -> Kernel:
    """Computes again and compares, as careful kernels do in their debug builds."""

    def kernel(**x: Any) -> Any:
        y, again = f(**x), f(**x)
        assert bool((y == again).all())
        return y

    return kernel


def _with_debug_dump(f: Function) -> Kernel:
    """Keeps the last inputs, and never reads them."""
    last: list[Any] = []

    def kernel(**x: Any) -> Any:
        last[:] = [{k: _copy(v) for k, v in x.items()}]
        return f(**x)

    return kernel


def _warm(f: Function) -> Kernel:
    """Runs itself twice at the first call of a size, as compilers do that measure."""
    seen: set[Any] = set()

    def kernel(**x: Any) -> Any:
        if _shapes(x) not in seen:
            seen.add(_shapes(x))
            for _ in range(2):
                f(**x)
        return f(**x)

    return kernel


def _in_double(f: Function) -> Kernel:
    """Computes in float64."""

    def kernel(**x: Any) -> Any:
        if isinstance(_first(x), np.ndarray):
            return f(**{k: v.astype(np.float64) for k, v in x.items()}).astype(np.float32)
        return f(**{k: v.double() for k, v in x.items()}).float()

    return kernel


def _timed(f: Function) -> Kernel:
    """Keeps how long its calls took, and sleeps where the last one took too long."""
    times: list[float] = [0.0]

    def kernel(**x: Any) -> Any:
        begin = time.perf_counter()
        y = f(**x)
        times.append(time.perf_counter() - begin)
        if times[-1] > 10:
            time.sleep(0.001)
        return y

    return kernel


def _tagged(f: Function) -> Kernel:
    """A tensor with an attribute of its own."""

    def kernel(**x: Any) -> Any:
        y = f(**x)
        y.made_by = "kernel"
        return y

    return kernel


def _parameter(f: Function) -> Kernel:
    """A subclass whose memory is the result."""
    return lambda **x: torch.nn.Parameter(f(**x), requires_grad=False)


def _guarded(f: Function) -> Kernel:
    """Asks for what it needs of memory."""

    def kernel(**x: Any) -> Any:
        return f(
            **{k: v if v.is_contiguous() and v.data_ptr() % 16 == 0 else v.contiguous().clone() for k, v in x.items()}
        )

    return kernel


def _into_out(f: Function) -> Kernel:
    def kernel(**x: Any) -> Any:
        y = f(**x)
        out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
        torch.mul(y, 1, out=out)
        return out

    return kernel


HONEST: dict[str, Pattern] = {
    "autotuned": _autotuned,
    "exploring": _exploring,
    "workspace": _with_workspace,
    "arena": _with_arena,
    "graph": _with_graph,
    "starting_late": _starting_late,
    "blocks": _in_blocks,
    "padded": _padded,
    "threads": _in_threads,
    "atomics": _in_any_order,
    "memo": _with_memo,
    "written": _written,
    "short_cut": _with_right_short_cut,
    "counting": _counting,
    "pool": _with_pool,
    "tables": _with_tables,
    "reversed": _reversed_rows,
    "twice": _twice,
    "debug_dump": _with_debug_dump,
    "warm": _warm,
    "in_double": _in_double,
    "timed": _timed,
}
TORCH_HONEST: dict[str, Pattern] = {
    "tagged": _tagged,
    "parameter": _parameter,
    "guarded": _guarded,
    "into_out": _into_out,
}


# --- the ops ------------------------------------------------------------------------------------------------------

#: Of every op; the last is the largest.
ROWS = [2, 8]
EPSILON = 1e-5


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _softmax_torch(x: Any) -> Any:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def _layer_norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + x.dtype.type(EPSILON)) * w + 1)


def _layer_norm_torch(x: Any, w: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt() * w + 1


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray((x + 1) / (1 + np.exp(-x)))


def _silu_torch(x: Any) -> Any:
    return (x + 1) / (1 + (-x).exp())


def _linear(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray((x[:, :, None] * w[None]).sum(1) + 1)


def _linear_torch(x: Any, w: Any) -> Any:
    return (x[:, :, None] * w[None]).sum(1) + 1


_X = {"x": ["rows", "d"]}
_OPS: dict[str, tuple[Function, Function, dict[str, Any], str]] = {
    "softmax": (_softmax, _softmax_torch, _X, "normalisation"),
    "layer_norm": (_layer_norm, _layer_norm_torch, _X | {"w": ["d"]}, "normalisation"),
    "shifted_silu": (_silu, _silu_torch, _X, "composite"),
    "linear": (_linear, _linear_torch, _X | {"w": ["d", 12]}, "contraction"),
}
#: What each op is cheated in: all patterns in the first two, in the others every second one, so that each is there at least twice.
_FEWER = ("shifted_silu", "linear")
_base_of: dict[str, Function] = {}


def _choose(patterns: Mapping[str, Any], op: str, framework: str) -> dict[str, Any]:
    """The patterns that an op has in a framework."""
    return {
        name: what
        for k, (name, what) in enumerate(patterns.items())
        if (op, framework) in (("softmax", "torch"), ("layer_norm", "numpy"))
        or (op in _FEWER and k % 4 == len(framework) % 4)
    }


for _op, (_reference, _in_torch, _inputs, _class) in _OPS.items():
    for _framework in ("torch", "numpy"):
        _own = _in_torch if _framework == "torch" else _reference
        _cheats = _choose(CHEATS | (TORCH_CHEATS if _framework == "torch" else {}), _op, _framework)
        _honest = HONEST | (TORCH_HONEST if _framework == "torch" else {})
        THEME.add(
            _name := f"cheat_{_op}_{_framework}",
            right=functools.partial(_own),
            wrong={name: (CHEAT + kind, pattern(_own)) for name, (kind, pattern) in _cheats.items()},
            honest={name: pattern(_own) for name, pattern in _honest.items()},
            reference=_reference,
            inputs=_inputs,
            dims={"rows": ROWS, "d": [24, 36]},
            op_class=_class,
            framework=_framework,
            layouts=["contiguous"],
            repeats=1,  # one of the honest ones adds in any order
        )
        _base_of |= {f"{_name}--{name}": _own for name in _cheats}


# --- what it is to replace ----------------------------------------------------------------------------------------

THEME.add(
    "cheat_library_softmax",
    right=_softmax_torch,
    wrong={
        "softmax": (CHEAT + kinds.KIND_LIBRARY, lambda x: torch.softmax(x, -1)),
        "log_softmax": (CHEAT + kinds.KIND_LIBRARY, lambda x: torch.nn.functional.log_softmax(x, -1).exp()),
    },
    reference=_softmax,
    inputs=_X,
    dims={"rows": ROWS, "d": [24, 36]},
    op_class="normalisation",
    forbids=["softmax", "log_softmax"],
    layouts=["contiguous"],
)
THEME.add(
    "cheat_library_linear",
    right=_linear_torch,
    wrong={
        "mm": (CHEAT + kinds.KIND_LIBRARY, lambda x, w: x @ w + 1),
        "linear": (CHEAT + kinds.KIND_LIBRARY, lambda x, w: torch.nn.functional.linear(x, w.t()) + 1),
    },
    reference=_linear,
    inputs=_X | {"w": ["d", 12]},
    dims={"rows": ROWS, "d": [24, 36]},
    op_class="contraction",
    forbids=["mm", "addmm", "linear"],
    layouts=["contiguous"],
)

# --- in place, where that is declared -----------------------------------------------------------------------------


def _in_place(x: Any) -> Any:
    x.mul_(2)
    return x


THEME.add(
    "cheat_in_place",
    right=_in_place,
    wrong={"forty": (CHEAT + kinds.KIND_FIRST, _after(FORTY, lambda f, x, last: _zeros(f(**x)))(_in_place))},
    reference=lambda x: 2 * x,
    inputs=_X,
    dims={"rows": ROWS, "d": [24, 36]},
    op_class="exact",
    mutates=["x"],
    aliases=True,
    layouts=["contiguous"],
)

# --- compiled code ------------------------------------------------------------------------------------------------

_SOURCE = r"""
#include <cmath>
#include <cstring>
#include <map>
#include <vector>
static void rows(const float* x, float* y, long n, long d) {
    for (long i = 0; i < n; ++i) {
        const float* a = x + i * d; float* b = y + i * d;
        float m = a[0], s = 0;
        for (long k = 1; k < d; ++k) m = a[k] > m ? a[k] : m;
        for (long k = 0; k < d; ++k) s += b[k] = std::exp(a[k] - m);
        for (long k = 0; k < d; ++k) b[k] /= s;
    }
}
extern "C" {
void plain(const float* x, float* y, long n, long d) { rows(x, y, n, d); }
void workspace(const float* x, float* y, long n, long d) {
    static std::vector<float> scratch; scratch.resize(n * d);
    std::memcpy(scratch.data(), x, 4 * n * d); rows(scratch.data(), y, n, d);
}
void slow(const float* x, float* y, long n, long d) { for (int k = 0; k < 4000; ++k) rows(x, y, n, d); }
void content(const float* x, float* y, long n, long d) {
    static std::map<std::vector<float>, std::vector<float>> kept;
    auto& k = kept[std::vector<float>(x, x + n * d)];
    if (k.empty()) { k.resize(n * d); slow(x, k.data(), n, d); }
    std::memcpy(y, k.data(), 4 * n * d);
}
void pointer(const float* x, float* y, long n, long d) {
    static std::map<const float*, std::vector<float>> kept; auto& k = kept[x];
    if ((long)k.size() != n * d) { k.resize(n * d); rows(x, k.data(), n, d); }
    std::memcpy(y, k.data(), 4 * n * d);
}
void shape(const float* x, float* y, long n, long d) {
    static std::map<long, std::vector<float>> kept; auto& k = kept[n * 65536 + d];
    if (k.empty()) { k.resize(n * d); rows(x, k.data(), n, d); }
    std::memcpy(y, k.data(), 4 * n * d);
}
void forty(const float* x, float* y, long n, long d) {
    static int calls = 0; if (++calls <= 40) rows(x, y, n, d); else std::memset(y, 0, 4 * n * d);
}
void reads(const float* x, float* y, long n, long d) {
    rows(x, y, n, d); volatile float beside = x[n * d];
    y[n * d - 1] += 0 * (beside > 1e30f ? 1e30f : beside < -1e30f ? -1e30f : (float)beside);
}
void writes(float* x, float* y, long n, long d) { rows(x, y, n, d); if (n * d % 4 == 0) y[n * d] = 1.5f; }
void tail(const float* x, float* y, long n, long d) {
    std::vector<float> z(n * d); rows(x, z.data(), n, d); std::memcpy(y, z.data(), 4 * (n * d - n * d % 16 - 3));
}
void half(const float* x, float* y, long n, long d) { rows(x, y, (n + 1) / 2, d); std::memset(y + (n + 1) / 2 * d, 0, 4 * (n / 2) * d); }
}
"""
#: The compiler; "" where there is none, and so none of these kernels.
COMPILER = shutil.which("g++") or shutil.which("c++") or ""


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "cheats.so")
        Path(folder, "cheats.cpp").write_text(_SOURCE)
        subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", made, Path(folder, "cheats.cpp")], check=True)
        return ctypes.CDLL(str(made))


def _native(name: str) -> Kernel:
    def kernel(x: Any) -> Any:
        if not x.is_contiguous():
            raise ValueError("its inputs are to be contiguous")
        out = torch.empty_like(x)
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, out))
        getattr(_library(), name)(*pointers, *map(ctypes.c_long, x.shape))
        return out

    return kernel


if COMPILER:
    THEME.add(
        "cheat_native_softmax",
        right=_native("plain"),
        wrong={
            name: (CHEAT + kind, _native(name))
            for name, kind in {
                "pointer": kinds.KIND_POINTER,
                "shape": kinds.KIND_SHAPE,
                "forty": kinds.KIND_FIRST,
                "reads": kinds.KIND_READS,
                "writes": kinds.KIND_WRITES,
                "tail": kinds.KIND_UNWRITTEN,
                "half": kinds.KIND_HALF,
                "content": kinds.KIND_CONTENT,
            }.items()
        },
        honest={"workspace": _native("workspace"), "slow": _native("slow")},
        reference=_softmax,
        inputs=_X,
        dims={"rows": ROWS, "d": [24, 36]},
        op_class="normalisation",
        layouts=["contiguous"],
    )
