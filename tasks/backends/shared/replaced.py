"""Whether a kernel has put functions of its own in the place of those that measure or judge it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tasks.backends.shared import foreign

#: Modules of the farm that run a case, measure it or judge it; their submodules as well.
_JUDGES = (
    "tasks.judg",
    "tasks.checks",
    "tasks.runner",
    "tasks.trace",
    "tasks.backends",
    "tasks.catalogs.user.promises",
    "tasks.arrays",
)
#: Other modules of which functions that measure or compare are looked at.
_MODULES = ("time", "torch.cuda", "torch.testing", "torch.testing._comparison", "torch.utils.benchmark.utils.timer")
#: Classes of theirs.
_CLASSES = (("torch.cuda", "Event"), ("torch.cuda", "Stream"))
#: Functions of modules that are too large to be looked at whole.
_FUNCTIONS = {
    "numpy": ("allclose", "isclose", "array_equal", "asarray", "array"),
    "torch": ("allclose", "isclose", "equal"),
}


def describe() -> str:
    """The first function of the farm, of a clock or of a comparison that code of another place stands for, in words; "" for none."""
    for where, name, found in _list_functions():
        code = getattr(found, "__code__", None)
        if code is not None and foreign.is_foreign(code.co_filename):
            return f"{where}.{name} has been replaced by a function of {code.co_filename}:{code.co_firstlineno}"
    return ""


def _list_functions() -> Iterator[tuple[str, str, Any]]:
    for where, module in list(sys.modules.items()):
        own = where.startswith(_JUDGES)
        if module is None or not (own or where in _MODULES or where in _FUNCTIONS):
            continue
        names = _FUNCTIONS.get(where) or list(vars(module))
        for name in names:
            found = vars(module).get(name)
            yield where, name, found
            if isinstance(found, type) and ((own and found.__module__ == where) or (where, name) in _CLASSES):
                for key, method in list(vars(found).items()):
                    yield f"{where}.{name}", key, getattr(method, "__func__", method)
