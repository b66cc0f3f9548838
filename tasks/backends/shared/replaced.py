"""Whether a kernel has put functions of its own in the place of those that measure or judge it."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
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
_code_of = operator.attrgetter("__code__")


class _Sound:
    """What a module or a class holds, looked at and found sound: as long as it holds the same objects, and its
    functions have the same code, there is nothing to look at again.

    classes: what those of a module hold, by name."""

    __slots__ = ("_codes", "_functions", "_values", "classes")

    def __init__(
        self,
        values: list[Any],
        functions: list[FunctionType],
        codes: list[CodeType],
        classes: dict[str, Mapping[str, Any]],
    ) -> None:
        self._values, self._functions, self._codes, self.classes = values, functions, codes, classes

    def is_still(self, held: Mapping[str, Any]) -> bool:
        """Whether it is as it was. Objects are compared by identity alone: a kernel's own may say that it is equal to
        anything."""
        return (
            len(held) == len(self._values)
            and all(map(operator.is_, held.values(), self._values))
            and all(map(operator.is_, map(_code_of, self._functions), self._codes))
        )


#: What was found sound, by the names of modules, and of classes behind these. It keeps what they hold, so that nothing
#: else can have its place in memory.
_sound: dict[str, _Sound] = {}
#: Modules that are not looked at.
_others = set[str]()


def describe_replaced_functions() -> str:
    """The first function of the farm, of a clock or of a comparison that code of another place stands for, in words; ""
    for none. What was sound when it was looked at before is only compared with what it was."""
    for where, module in list(sys.modules.items()):  # in one step, as other threads import meanwhile
        if where in _others or module is None:
            continue
        if not (_is_own(where) or where in _MODULES or where in _FUNCTIONS):
            _others.add(where)
            continue
        held: Mapping[str, Any] = vars(module)
        if where in _FUNCTIONS:
            held = {name: held.get(name) for name in _FUNCTIONS[where]}
        if words := _look(where, held):
            return words
        for name, of_class in _sound[where].classes.items():
            if words := _look(name, of_class):
                return words
    return ""


def _is_own(where: str) -> bool:
    return where.startswith(_OWN) and not where.startswith(_ZOO)


def _look(where: str, held: Mapping[str, Any]) -> str:
    """The first function of a module or a class whose code is of another place, in words; "" for none, which is
    remembered: each as it was looked at, whatever other threads put there meanwhile."""
    if (before := _sound.get(where)) is not None and before.is_still(held):
        return ""
    functions, codes, classes = list[FunctionType](), list[CodeType](), dict[str, Mapping[str, Any]]()
    items = list(held.items())
    for name, found in items:
        kind = type(found)
        if kind in _WRAPPED:
            found = found.__func__
            kind = type(found)
        if kind is FunctionType:
            code = found.__code__
            if foreign.is_foreign_file(code.co_filename):
                return f"{where}.{name} has been replaced by a function of {code.co_filename}:{code.co_firstlineno}"
            functions.append(found)
            codes.append(code)
        elif isinstance(found, type) and ((_is_own(where) and found.__module__ == where) or (where, name) in _CLASSES):
            classes[f"{where}.{name}"] = vars(found)
    _sound[where] = _Sound([found for _, found in items], functions, codes, classes)
    return ""
