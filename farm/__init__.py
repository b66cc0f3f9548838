"""The engine of the validation farm: everything that knows Ray, pandas, Parquet and the cluster."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from farm.doors import Door

if TYPE_CHECKING:
    from farm.client import (
        ClientError,
        assert_correct,
        check_autograd,
        fuzz,
        judge,
        minimise,
        minimize,
        reproduce,
        strategies,
        validate,
        validate_autograd_function,
    )

#: One thread in every process of the farm: slots are its parallelism, and a sum must not depend on a thread count.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
for _name, _value in ONE_THREAD.items():
    os.environ.setdefault(_name, _value)  # before numpy is imported: it reads them once

sys.meta_path.insert(0, Door)

#: What the client offers (`farm.client`), imported when it is asked for: a command does not pay for it. Stable: docs/stability.md.
__all__ = [
    "ClientError",
    "assert_correct",
    "check_autograd",
    "fuzz",
    "judge",
    "minimise",
    "minimize",
    "reproduce",
    "strategies",
    "validate",
    "validate_autograd_function",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'farm' has no attribute {name!r}")
    return getattr(import_module("farm.client"), name)
