"""Parts by name: built in, or from somebody else's package through an entry point ("farm.backends", …)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

#: What there may be parts of, with the module of the class that each is a subclass of.
KINDS = {
    "backend": "tasks.backends.base",
    "catalog": "tasks.catalogs.base",
    "check": "tasks.checks.base",
    "executor": "farm.work.executor",
}


class PluginError(Exception):
    """A part that cannot be loaded; the text names it, its package and what its import raised."""


@dataclass(frozen=True)
class PluginPart:
    """A named part. value: "module:attribute"; package, version: who brings it ("" = the farm itself)."""

    kind: str
    name: str
    value: str
    package: str = ""
    version: str = ""

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"{self.package} {self.version}".strip() or self.value.partition(":")[0]

    def load(self) -> type[Any]:
        """The class itself. Raises PluginError, whatever the import raises."""
        module, _, attribute = self.value.partition(":")
        where = f"{self.kind} {self.name!r}{f' of the package {self.origin}' if self.package else ''}: {self.value}"
        try:
            found = getattr(import_module(module), attribute)
        except Exception as error:
            fix = self._how_to_update if self.package and _misses_a_name_of_ours(error) else ""
            raise PluginError(f"{where} cannot be imported: {type(error).__name__}: {error}{fix}") from error
        if not isinstance(found, type):
            raise PluginError(f"{where} is a {type(found).__name__}, not a class; name a class in the entry point")
        if self.package and (other := _find_other_method(found, KINDS[self.kind])):
            raise PluginError(f"{where}: {other}{self._how_to_update}")
        return found

    @property
    def _how_to_update(self) -> str:
        return (
            f"; it is written for another version of the farm: bring {self.package} up to date, or uninstall it "
            "(docs/stability.md has the names that stay)"
        )


def _misses_a_name_of_ours(error: Exception) -> bool:
    """Whether it says that a module of the farm is not there, or lacks a name."""
    module = error.name if isinstance(error, ImportError) else getattr(getattr(error, "obj", None), "__name__", "")
    return (module or "").partition(".")[0] in ("tasks", "farm")


def _find_other_method(found: type[Any], base: str) -> str:
    """How a method of a class cannot be called as the farm calls that of its kind's own class, in the module ``base``,
    which it stands for; "" if all can be. What our other classes have, they alone call, and they may be overridden too.
    """
    ours = [x for x in found.__mro__ if x.__module__ == base]
    for name, asked in {k: v for x in reversed(ours) for k, v in vars(x).items()}.items():
        own = inspect.getattr_static(found, name)
        if own is asked or not (inspect.isfunction(own) and inspect.isfunction(asked)):
            continue
        try:
            inspect.signature(own).bind(*_list_required(asked))
        except TypeError as error:
            takes = ", ".join(_list_required(asked)[1:])
            return f"{found.__name__}.{name} cannot be called as {name}({takes}): {error}"
    return ""


def _list_required(function: Any) -> list[str]:
    """The arguments that a method is always called with, by position."""
    known = inspect.signature(function).parameters.values()
    return [p.name for p in known if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def list_plugin_parts(kind: str, built_in: Mapping[str, str]) -> dict[str, PluginPart]:
    """All parts of a kind (one of `KINDS`), by name. A built-in name cannot be taken by a package."""
    return _find_installed_parts(kind) | {name: PluginPart(kind, name, value) for name, value in built_in.items()}


def list_plugin_packages() -> list[str]:
    """Top-level modules of all that other packages bring."""
    return sorted(
        {p.value.partition(":")[0].partition(".")[0] for kind in KINDS for p in _find_installed_parts(kind).values()}
    )


@functools.cache
def _find_installed_parts(kind: str) -> dict[str, PluginPart]:
    """Parts that other packages bring, by name; looked up once, since it reads every package's entry points."""
    from importlib.metadata import distribution, distributions

    group, found, seen = f"farm.{kind}s", dict[str, PluginPart](), set[str]()
    for package in distributions():  # entry points by their group know their package in Python 3.10 and later
        if not any(entry.group == group for entry in package.entry_points):
            continue  # reading what a package is called takes ten times as long
        name = package.metadata["Name"] or "?"
        if name in seen:
            continue
        seen.add(name)
        first = distribution(name) if name != "?" else package  # on the path: the one that is imported
        for entry in first.entry_points:
            if entry.group == group:
                found[entry.name] = PluginPart(kind, entry.name, entry.value, name, first.version)
    return found
