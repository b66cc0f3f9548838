"""Ways to call an operation of torch's where no dispatch mode of the caller's sees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.zoo.cheats.values import Function
from tasks.zoo.specimen import Kernel, torch


def call_on_a_thread(f: Function) -> Kernel:
    """On another thread, which has modes of its own."""

    def kernel(**x: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(f, **x).result()

    return kernel


def call_without_dispatch(f: Function) -> Kernel:
    """With the dispatch to Python turned off."""

    def kernel(**x: Any) -> Any:
        with torch._C._DisableTorchDispatch():
            return f(**x)

    return kernel
