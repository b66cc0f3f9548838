"""Cheats that return before they have computed: when the result is read, or from a thread."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from tasks.zoo.cheats.values import Function, Pattern, copy
from tasks.zoo.specimen import Kernel, torch


def promise_by_function(f: Function) -> Kernel:
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
        made = torch.Tensor._make_subclass(promise(), torch.zeros(find_shape(f, x)))
        made.given = x
        return made

    return kernel


def find_shape(f: Function, x: Mapping[str, Any]) -> Any:
    return f(**{k: torch.zeros_like(v) for k, v in x.items()}).shape  # a kernel in Triton takes no meta tensors


def promise_without_memory(f: Function) -> Kernel:
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
    return lambda **x: promise()(x, find_shape(f, x))


def promise_by_attribute(f: Function) -> Kernel:
    """A plain tensor whose method `numpy` has been replaced in the object."""

    def kernel(**x: Any) -> Any:
        made = torch.zeros(find_shape(f, x))
        made.numpy = lambda: f(**x).numpy()
        return made

    return kernel


def write_late(first: Function, ms: float) -> Pattern:
    """Written after it has returned; ``first`` makes what is there until then."""

    def pattern(f: Function) -> Kernel:
        before: list[Any] = [None]

        def kernel(**x: Any) -> Any:
            right = f(**x)
            out = copy(before[0]) if before[0] is not None and before[0].shape == right.shape else first(right)
            before[0] = copy(right)

            def write() -> None:
                time.sleep(ms / 1e3)
                out[...] = right

            threading.Thread(target=write).start()
            return out

        return kernel

    return pattern
