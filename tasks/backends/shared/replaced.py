"""Whether a kernel has put functions of its own in the place of those that measure or judge it."""

from __future__ import annotations

import sys
from types import FunctionType, MethodType
from typing import Any

from tasks.backends.shared import foreign

#: The farm's own modules, whichever of them runs a case, measures it or judges it; but for kernels that stand for users'.
_OWN, _ZOO = "tasks.", "tasks.zoo"
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
    """The first function of the farm, of a clock or of a comparison that code of another place stands for, in words; ""
    for none."""
    sound = set[str]()  # files, of thousands of functions
    for where, module in list(sys.modules.items()):
        own = where.startswith(_OWN) and not where.startswith(_ZOO)
        if module is None or not (own or where in _MODULES or where in _FUNCTIONS):
            continue
        named, classes = vars(module), list[tuple[str, type]]()
        names = [(name, named.get(name)) for name in _FUNCTIONS.get(where, ())] or list(named.items())
        found = _find_foreign(where, names, sound, classes)
        for name, kind in classes:
            if (own and kind.__module__ == where) or (where, name) in _CLASSES:
                found = found or _find_foreign(f"{where}.{name}", list(vars(kind).items()), sound, [])
        if found:
            return found
    return ""


def _find_foreign(where: str, names: list[tuple[str, Any]], sound: set[str], classes: list[tuple[str, type]]) -> str:
    """The first function of a module or a class whose code is of another place, in words; "" for none. sound: files
    that are none; classes: is given those that are there."""
    for name, found in names:
        kind = type(found)
        if kind in _WRAPPED:
            found = found.__func__
            kind = type(found)
        if kind is FunctionType:
            if (file := found.__code__.co_filename) not in sound:
                if foreign.is_foreign(file):
                    return f"{where}.{name} has been replaced by a function of {file}:{found.__code__.co_firstlineno}"
                sound.add(file)
        elif isinstance(found, type):
            classes.append((name, found))
    return ""
