"""Whether a kernel has put functions of its own in the place of those that measure or judge it."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Union

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
_code_of, _values_of = operator.attrgetter("__code__"), operator.methodcaller("values")


class _Part:
    """Some of what a module holds, as it is when it is asked."""

    __slots__ = ("_held", "_names")

    def __init__(self, held: Mapping[str, Any], names: Sequence[str]) -> None:
        self._held, self._names = held, names

    def __len__(self) -> int:
        return len(self._names)

    def values(self) -> list[Any]:
        return list(map(self._held.get, self._names))

    def items(self) -> Iterable[tuple[str, Any]]:
        return zip(self._names, self.values())


#: What is looked at of a module or a class.
Held = Union[Mapping[str, Any], _Part]


class _Sound:
    """What modules and classes held when they were looked at and found sound: as long as they hold the same objects,
    and their functions have the same code, there is nothing to look at again.

    values: what they held, one after another; counts: how many each; functions, codes: those among the values, and the
    code of each; classes: what those of a module hold, by name."""

    __slots__ = ("classes", "codes", "counts", "functions", "values")

    def __init__(
        self,
        values: list[Any],
        counts: list[int],
        functions: list[FunctionType],
        codes: list[CodeType],
        classes: Mapping[str, Held],
    ) -> None:
        self.values, self.counts, self.functions, self.codes, self.classes = values, counts, functions, codes, classes

    def is_still(self, held: Sequence[Held]) -> bool:
        """Whether all is as it was. Objects are compared by identity alone: a kernel's own may say that it is equal to
        anything."""
        return (
            list(map(len, held)) == self.counts
            and all(map(operator.is_, itertools.chain.from_iterable(map(_values_of, held)), self.values))
            and all(map(operator.is_, map(_code_of, self.functions), self.codes))
        )


class _Look:
    """A look at all modules that found nothing. They are compared together, in a tenth of the time that it takes to
    compare them one by one."""

    def __init__(self, modules: Mapping[str, Any], held: Mapping[str, Held]) -> None:
        """modules: all that there are, by name; held: what was looked at, by its name in `_sound`."""
        self._names, self._modules, self._held = list(modules), list(modules.values()), list(held.values())
        found = [_sound[where] for where in held]
        values, counts, functions, codes = (
            list(itertools.chain.from_iterable(parts))
            for parts in zip(*((x.values, x.counts, x.functions, x.codes) for x in found))
        )
        self._sound = _Sound(values, counts, functions, codes, {})

    def holds(self, modules: Mapping[str, Any]) -> bool:
        """Whether it would find nothing now either."""
        return (
            len(modules) == len(self._names)
            and all(map(operator.is_, modules, self._names))
            and all(map(operator.is_, modules.values(), self._modules))
            and self._sound.is_still(self._held)
        )


#: What was found sound, by the names of modules, and of classes behind these. It keeps what they hold, so that nothing
#: else can have its place in memory.
_sound: dict[str, _Sound] = {}
#: The last look, if it found nothing.
_last: list[_Look] = []
#: Modules that are not looked at.
_others = set[str]()


def describe_replaced_functions() -> str:
    """The first function of the farm, of a clock or of a comparison that code of another place stands for, in words; ""
    for none. What was sound when it was looked at before is only compared with what it was."""
    modules = sys.modules.copy()  # in one step, as other threads import meanwhile
    if _last and _last[0].holds(modules):
        return ""
    looked: dict[str, Held] = {}
    for where, module in modules.items():
        if where in _others or module is None:
            continue
        if not (_is_own(where) or where in _MODULES or where in _FUNCTIONS):
            _others.add(where)
            continue
        looked[where] = _Part(vars(module), _FUNCTIONS[where]) if where in _FUNCTIONS else vars(module)
        if words := _look(where, looked[where]):
            return words
        for name, of_class in _sound[where].classes.items():
            looked[name] = of_class
            if words := _look(name, of_class):
                return words
    _last[:] = [_Look(modules, looked)]
    return ""


def _is_own(where: str) -> bool:
    return where.startswith(_OWN) and not where.startswith(_ZOO)


def _look(where: str, held: Held) -> str:
    """The first function of a module or a class whose code is of another place, in words; "" for none, which is
    remembered: each as it was looked at, whatever other threads put there meanwhile."""
    if (before := _sound.get(where)) is not None and before.is_still([held]):
        return ""
    functions, codes, classes = list[FunctionType](), list[CodeType](), dict[str, Held]()
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
    _sound[where] = _Sound([found for _, found in items], [len(items)], functions, codes, classes)
    return ""
