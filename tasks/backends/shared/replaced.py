"""Whether a kernel has put functions of its own in the place of those that measure or judge it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

from tasks.backends.shared import foreign

#: Modules of the farm that run a case, measure it or judge it; their submodules as well.
_JUDGES = (
    "tasks.judg",
    "tasks.checks",
    "tasks.run_queue",
    "tasks.runner",
    "tasks.stranger",
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


#: Functions of classes as these hold them, and methods of an object.
_WRAPPED = (staticmethod, classmethod, MethodType)


def describe() -> str:
    """The first function of the farm, of a clock or of a comparison that code of another place stands for, in words; "" for none."""
    for where, names in _list_namespaces():
        for name, found in names:
            # Thousands are looked at, most of which are a library's plain functions or none.
            function = found.__func__ if isinstance(found, _WRAPPED) else found
            if isinstance(function, FunctionType) and foreign.is_foreign((code := function.__code__).co_filename):
                return f"{where}.{name} has been replaced by a function of {code.co_filename}:{code.co_firstlineno}"
    return ""


def _list_namespaces() -> Iterator[tuple[str, Iterable[tuple[str, Any]]]]:
    """Modules and classes by name, and what is looked at in each."""
    for where, module in list(sys.modules.items()):
        own = where.startswith(_JUDGES)
        if module is None or not (own or where in _MODULES or where in _FUNCTIONS):
            continue
        named = vars(module)
        names = [(name, named.get(name)) for name in _FUNCTIONS.get(where, ())] or list(named.items())
        yield where, names
        for name, found in names:
            if isinstance(found, type) and ((own and found.__module__ == where) or (where, name) in _CLASSES):
                yield f"{where}.{name}", list(vars(found).items())
