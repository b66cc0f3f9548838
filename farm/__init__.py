"""The engine of the validation farm: everything that knows Ray, pandas, Parquet and the cluster. Here: the command line and its doors, options in common, exit codes and interrupts, help, lines and tables fitted to a terminal."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from farm.doors import CommandDoor, is_own_package

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
    from tasks import UserOp, autograd, op

#: One thread in every process of the farm: slots are its parallelism, and a sum must not depend on a thread count.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
for _name, _value in ONE_THREAD.items():
    os.environ.setdefault(_name, _value)  # before numpy is imported: it reads them once

sys.meta_path.insert(0, CommandDoor)
if (_namesake := sys.modules.get("tasks")) and not is_own_package(_namesake):
    raise ImportError(
        f"farm needs its own package tasks, and {_namesake.__file__} was imported by that name: import farm before it, or rename it"
    )

#: What declares a kernel beside its code.
_DECLARING = ("UserOp", "autograd", "op")
#: With it what the client offers (`farm.client`). Imported when it is asked for: a command does not pay for it. Stable:
#: docs/stability.md.
__all__ = [
    "ClientError",
    "UserOp",
    "assert_correct",
    "autograd",
    "check_autograd",
    "fuzz",
    "judge",
    "minimise",
    "minimize",
    "op",
    "reproduce",
    "strategies",
    "validate",
    "validate_autograd_function",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'farm' has no attribute {name!r}")
    return getattr(import_module("tasks" if name in _DECLARING else "farm.client"), name)
