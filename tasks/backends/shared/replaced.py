"""Whether a kernel has put functions of its own in the place of those that measure or judge it."""

from __future__ import annotations

import builtins
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Union

from tasks.backends.shared import foreign

#: The farm's own modules, whichever of them runs a case, measures it or judges it; but for kernels that stand for users'.
_OWN, _ZOO = "tasks.", "tasks.zoo"
#: Other modules of which functions that measure or compare are looked at.
_MODULES = ("time", "torch.cuda", "torch.testing", "torch.testing._comparison", "torch.utils.benchmark.utils.timer")
#: Classes of theirs.
_CLASSES = (("torch.cuda", "Event"), ("torch.cuda", "Stream"))
#: What code finds without a name of its own, but for what people and shells replace.
_BUILT_IN = tuple(
    name
    for name, x in vars(builtins).items()
    if callable(x) and name not in ("__loader__", "_", "print", "input", "breakpoint", "help", "exit", "quit")
)
#: Functions of modules that are too large to be looked at whole, or that others add to.
_FUNCTIONS = {
    "builtins": _BUILT_IN,
    "numpy": ("allclose", "isclose", "array_equal", "asarray", "array"),
    "torch": ("allclose", "isclose", "equal"),
}


#: What holds a function, as classes hold it and as modules do, and how it is read.
_WRAPPED: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((staticmethod, classmethod, MethodType), operator.attrgetter("__func__")),
    property: operator.attrgetter("fget"),
    type(functools.cache(len)): operator.attrgetter("__wrapped__"),
}
#: What a function computes with. The last one is None or a dict.
_take_apart = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")
_values_of = operator.methodcaller("values")


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
    and their functions have the same code and defaults, there is nothing to look at again.

    values: what they held, one after another; counts: how many each; functions, parts: those among the values, and
    what `_take_apart` has of them, one after another."""

    __slots__ = ("counts", "functions", "parts", "values")

    def __init__(self, values: list[Any], counts: list[int], functions: list[FunctionType], parts: list[Any]) -> None:
        self.values, self.counts, self.functions, self.parts = values, counts, functions, parts

    def is_still(self, held: Sequence[Held]) -> bool:
        """Whether all is as it was. Objects are compared by identity alone: a kernel's own may say that it is equal to
        anything."""
        return (
            list(map(len, held)) == self.counts
            and all(map(operator.is_, itertools.chain.from_iterable(map(_values_of, held)), self.values))
            and all(map(operator.is_, itertools.chain.from_iterable(map(_take_apart, self.functions)), self.parts))
        )


class _Known:
    """A module or a class that was looked at, and what it held when it was found sound.

    owner: itself, kept so that nothing else can have its place in memory; where: its name; held: what it holds, and the
    defaults of its functions' arguments that have but a name; sound: what that was; fixed: what of that nobody has to
    change, by name, and the parts of functions; classes: its own, and their names."""

    __slots__ = ("classes", "fixed", "held", "owner", "sound", "where")

    def __init__(self, where: str, owner: Any, held: Held) -> None:
        self.where, self.owner, self.held = where, owner, [held]
        self.sound: _Sound | None = None
        self.fixed: dict[str, tuple[Any, ...]] = {}
        self.classes: list[tuple[str, type]] = []

    def look(self) -> str:
        """The first function whose code is of another place, or that is another one than before, in words; "" for none,
        which is remembered: as it was looked at, whatever other threads put there meanwhile."""
        if self.sound is not None and self.sound.is_still(self.held):
            return ""
        where, fixed, named = self.where, dict[str, tuple[Any, ...]](), list[dict[str, Any]]()
        functions, parts, classes = list[FunctionType](), list[Any](), list[tuple[str, type]]()
        items = list(self.held[0].items())
        for name, found in items:
            held, own = found, tuple[Any, ...]()
            while (read := _WRAPPED.get(type(found))) is not None:
                found = read(found)
            if type(found) is FunctionType:
                own = _take_apart(found)
                code = own[0]
                if foreign.is_foreign_file(code.co_filename) or _is_of_no_file(name, code):
                    return f"{where}.{name} has been replaced by a function of {code.co_filename}:{code.co_firstlineno}"
                functions.append(found)
                parts += own
                if own[2] is not None:
                    named.append(own[2])
                    own += tuple(own[2].values())
            elif isinstance(found, type) and (
                (_is_own(where) and found.__module__ == where) or (where, name) in _CLASSES
            ):
                classes.append((f"{where}.{name}", found))
            if name in self.fixed and not _are_same(self.fixed[name], (held, *own)):
                return f"{where}.{name} has been replaced"  # wherever its code says that it comes from
            if self.sound is not None and name in _BUILT_IN and name not in self.fixed:
                return f"{where}.{name} has been replaced"  # the built-in that the module's code had for it
            if _is_fixed(name, held):
                fixed[name] = held, *own
        self.fixed |= fixed
        self.held[1:] = named
        counts = [len(items), *map(len, named)]
        values = [found for _, found in items] + [x for one in named for x in one.values()]
        self.sound, self.classes = _Sound(values, counts, functions, parts), classes
        return ""


class _Look:
    """A look at all that is known that found nothing. It is compared together, in a tenth of the time that it takes to
    compare one by one."""

    __slots__ = ("_held", "_modules", "_names", "_sound")

    def __init__(self, modules: Mapping[str, Any], known: Iterable[_Known]) -> None:
        """modules: all that there are, by name."""
        self._names, self._modules = list(modules), list(modules.values())
        found = [(one.held, one.sound) for one in known if one.sound is not None]
        self._held = [x for held, _ in found for x in held]
        values, counts, functions, parts = (
            list(itertools.chain.from_iterable(of_all))
            for of_all in zip(*((x.values, x.counts, x.functions, x.parts) for _, x in found))
        )
        self._sound = _Sound(values, counts, functions, parts)

    def holds(self, modules: Mapping[str, Any]) -> bool:
        """Whether it would find nothing now either."""
        return (
            len(modules) == len(self._names)
            and all(map(operator.is_, modules, self._names))
            and all(map(operator.is_, modules.values(), self._modules))
            and self._sound.is_still(self._held)
        )


def _is_of_no_file(name: str, code: CodeType) -> bool:
    """Whether the code of a function was compiled from a text, as that of no function of a module is but of those that
    data classes make (`__init__`, …)."""
    return code.co_filename.startswith("<") and not (name.startswith("__") and name.endswith("__"))


def _are_same(before: Sequence[Any], now: Sequence[Any]) -> bool:
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _is_fixed(name: str, held: Any) -> bool:
    """Whether something that a module or a class holds stays as it is: what is called, other modules, and constants, but
    for those that are made when they are needed first."""
    return callable(held) or isinstance(held, (*_WRAPPED, ModuleType)) or (held is not None and name.isupper())


def make_replacement_finder() -> Callable[[], str]:
    """A function that looks for what has been replaced, and remembers what it has seen where no module has it: what a
    kernel reaches by a name, it replaces."""
    #: What was found sound, by the `id` of the module or the class: a name is whatever a kernel gives to something else,
    #: and what `sys.modules` no longer has is still in use where it was imported.
    known: dict[int, _Known] = {}
    #: The last look, if it found nothing.
    last: list[_Look] = []
    #: Modules that are not looked at.
    others = set[str]()
    holds, look = _Look.holds, _Known.look  # not what has their names by then

    def describe_replaced_functions() -> str:
        """The first function of the farm, of a clock or of a comparison that code of another place stands for, or that
        is another one than it was when it was looked at before, or the first such constant of the farm's, in words; ""
        for none. What was sound before is only compared with what it was."""
        modules = sys.modules.copy()  # in one step, as other threads import meanwhile
        if last and holds(last[0], modules):
            return ""
        left = list[tuple[str, Any]]()
        for where, module in modules.items():
            if where in others or module is None:
                continue
            if not (_is_own(where) or where in _MODULES or where in _FUNCTIONS):
                others.add(where)
                continue
            left.append((where, module))
        # A moment is all that a kernel leaves of what it replaced: first what is not the farm's own, which is little,
        # also in a module that its call was the first to import.
        left.sort(key=lambda one: _is_own(one[0]))
        left += [(one.where, one.owner) for one in known.values()]
        looked = set[int]()
        for where, owner in left:
            if id(owner) in looked:
                continue
            looked.add(id(owner))
            one = known.get(id(owner)) or _Known(where, owner, _hold(where, owner))
            if words := look(one):
                return words
            known[id(owner)] = one
            left += one.classes
        last[:] = [_Look(modules, known.values())]
        return ""

    return describe_replaced_functions


def _is_own(where: str) -> bool:
    return where.startswith(_OWN) and not where.startswith(_ZOO)


def _hold(where: str, owner: Any) -> Held:
    """What is looked at of a module or a class."""
    return _Part(vars(owner), _FUNCTIONS[where]) if where in _FUNCTIONS else vars(owner)


describe_replaced_functions = make_replacement_finder()
