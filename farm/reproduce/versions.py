"""The version of a runtime that a row is of, where another one is here, or none: how to have it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata

from farm.fleet import envs
from farm.reproduce.find import StoredCase

#: The package of a runtime that is called otherwise.
MODULES = {"ort": "onnxruntime", "inductor": "torch"}


def within(case: StoredCase, packages: Sequence[str]) -> StoredCase:
    """The case in an environment of ``packages``; as it is where there are none."""
    if not packages:
        return case
    spec = replace(case.spec, packages=tuple(packages))
    return replace(case, spec=spec, environment=envs.of(spec))


def offered(case: StoredCase, stored: str) -> str:
    """How to have the runtime in the version of a row: a bare one, or "name version, name version"."""
    pairs = [part.split(" ") for part in stored.split(", ")]
    own = list(case.environment.packages) if case.environment else []
    if all(len(pair) == 2 for pair in pairs):
        versions = {name: version.partition("+")[0] for name, version in pairs}
    else:
        first = own[0].partition("==")[0] if own else MODULES.get(case.spec.runtime, case.spec.runtime)
        versions = {first: stored}
    names = [x.partition("==")[0] for x in own]
    wanted = [f"{name}=={versions[name]}" if name in versions else x for name, x in zip(names, own)]
    wanted += [f"{name}=={version}" for name, version in versions.items() if name not in names]
    return f"--packages {' '.join(map(shlex.quote, wanted))} runs that version in an environment of its own"


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def another(case: StoredCase, found: str) -> str:
    """What is to be said where a row is of another version than the one ``found``, or where none is ("" : nothing)."""
    stored = str(case.stored["runtime_version"] or "") if case.stored else ""
    if not stored or found == stored or case.spec.name != case.key.backend:
        return ""
    if not found and (case.environment or _installed(MODULES.get(case.spec.runtime, case.spec.runtime))):
        return ""  # it is no package that is missing
    return f"the row is of {case.spec.name} {stored}, here is {found or 'none'}: {offered(case, stored)}"
