"""What is validated: everything that runs inside a device process (needs numpy and ml_dtypes alone). Here: that process, its fork server and relay, what it may use and does use (memory, processors, time: `measure_cpu_s`), what it is denied, packages and imports, the runner of a case, and every step of a judgement (`JudgedCase`, `settle_tied_outputs`, `find_narrow_sums`)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.catalogs.user.ops import UserOp, op
    from tasks.gradients.own_autograd import autograd

#: What declares a kernel beside its code, by the module that has it: imported when it is asked for, a command's help
#: does not pay for it.
_DECLARING = {
    "UserOp": "tasks.catalogs.user.ops",
    "autograd": "tasks.gradients.own_autograd",
    "op": "tasks.catalogs.user.ops",
}
__all__ = ["UserOp", "autograd", "op"]


def __getattr__(name: str) -> object:
    if name not in _DECLARING:
        raise AttributeError(f"module 'tasks' has no attribute {name!r}")
    return getattr(import_module(_DECLARING[name]), name)
