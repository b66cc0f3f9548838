"""The version of a runtime that a row is of, where another one is here, or none: how to have it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from importlib import metadata

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from farm.plan.match_known import is_version_own_build
from farm.reproduction.find_case import StoredCase
from tasks.backends.shared import torch_switches
from tasks.devices import DEVICES
from tasks.packages import INDEX, TORCH_BUILDS, TORCH_CATALOG, pin_package

#: The package of a runtime that is called otherwise.
MODULES = {"ort": "onnxruntime", "inductor": "torch", "paddle": "paddlepaddle"}
#: What a row's version names that no index has as such.
_NO_PACKAGES = {*torch_switches.LIBRARIES, *(x.toolkit.name for x in DEVICES if x.toolkit)}
#: The name of a requirement and its extras; nothing of an index.
_NAMED = re.compile(r"(\w[\w.-]*)(\[[^]]*\])?")


def place_in_versions(case: StoredCase, packages: Sequence[str]) -> StoredCase:
    """The case in an environment of ``packages``; as it is where there are none."""
    return case.within(packages) if packages else case


def suggest_packages_of_row(case: StoredCase, stored: str) -> str:
    """How to have the runtime in the version of a row: a bare one, or "name version, name version"."""
    own = list(case.environment.packages) if case.environment else []
    first = next((x[1] for x in map(_NAMED.match, own) if x), case.spec.runtime)
    pins = pin_stored_packages(stored, first)
    if not pins:
        where = str((case.stored or {}).get("environment") or "")
        return "no package says that version" + (f"; it ran in {where}" if os.path.isabs(where) else "")
    if "torch" in pins and not own:
        own = ["torch", *TORCH_CATALOG]
    elif len(pins.get("torch", ())) > 1:  # an index of its own, in place of another build's
        own = [x for x in own if not x.startswith(INDEX + TORCH_BUILDS)]
    wanted: list[str] = []
    for asked in own:
        named = _NAMED.match(asked)
        pin = pins.pop(canonicalize_name(named[1]), None) if named else None
        wanted += [x.replace("==", f"{named[2] or ''}==") for x in pin] if named and pin else [asked]
    wanted += [x for pin in pins.values() for x in pin]
    return f"--packages {' '.join(map(shlex.quote, wanted))} runs that version in an environment of its own"


def pin_stored_packages(stored: str, first: str) -> dict[str, tuple[str, ...]]:
    """Requirements by package that bring the versions of what a row says; ``first`` is the package of a bare one."""
    return {name: pin_package(name, version) for name, version in _read_row_versions(stored, first).items()}


def _read_row_versions(stored: str, first: str) -> dict[str, str]:
    """Versions by package of what a row says; a bare one is of ``first``. What computes and is no package of its own (a
    build's libraries, the vendor's toolkit), is somebody's own build, or says no version, is left out."""
    found: dict[str, str] = {}
    for name, _, version in (part.rpartition(" ") for part in stored.split(", ")):
        if name in _NO_PACKAGES or not version[:1].isdigit() or " " in name:
            continue
        name = name or first
        with contextlib.suppress(InvalidVersion):
            if is_version_own_build(Version(version)):
                continue
        found[canonicalize_name(MODULES.get(name, name))] = version
    return found


def pin_installed_packages(packages: Sequence[str]) -> list[str]:
    """Packages of an environment in the versions that are installed here, with their indexes; what is not here is left
    out."""
    found = dict[str, None]()
    for asked in packages:
        if (named := _NAMED.match(asked)) is None:
            found[asked] = None
        elif is_package_installed(named[1]):
            found |= dict.fromkeys(pin_package(named[1], metadata.version(named[1])))
    return list(found)


def is_package_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def describe_other_version(case: StoredCase, found: str) -> str:
    """What is to be said where a row is of another version than the one ``found``, or where none is ("" : nothing)."""
    stored = str(case.stored["runtime_version"] or "") if case.stored else ""
    if not stored or found == stored or case.spec.name != case.key.backend:
        return ""
    if not found and (case.environment or is_package_installed(MODULES.get(case.spec.runtime, case.spec.runtime))):
        return ""  # it is no package that is missing
    return (
        f"the row is of {case.spec.name} {stored}, here is {found or 'none'}: {suggest_packages_of_row(case, stored)}"
    )
