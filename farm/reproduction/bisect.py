"""Which release of a package changed the outcome of a case: halving a list of versions, an environment for each that is asked."""

from __future__ import annotations

import importlib.machinery
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from farm.reproduction.find_case import ReproduceError, StoredCase
from farm.reproduction.run_again import run_case_in_child
from tasks import backends
from tasks.model import Status
from tasks.packages import INDEX

#: Between the first and the last version.
TO = ".."
#: Seconds that an index is asked for its versions.
ASK_S = 120


@dataclass(frozen=True)
class VersionAnswer:
    """What a case did in a version. outcome: "right", "imprecise", "failed"; "" if it was not judged there, and why:
    said."""

    version: str
    outcome: str
    status: str
    said: str = ""


@dataclass(frozen=True)
class BisectedVersion:
    """asked: in the order of asking; before, after: the neighbours between which the outcome changes, None where the
    ends are alike; between: versions between these that tell nothing."""

    asked: tuple[VersionAnswer, ...]
    before: VersionAnswer | None = None
    after: VersionAnswer | None = None
    between: tuple[str, ...] = ()


def search_versions(versions: Sequence[str], ask: Callable[[str], VersionAnswer]) -> BisectedVersion:
    """The first version that has another outcome than the first one; versions: the oldest first.

    What is not judged in a version tells nothing: the next nearest to the middle is asked then. Raises ReproduceError
    for an end that is not judged.
    """
    known: dict[int, VersionAnswer] = {}

    def ask_version(place: int) -> VersionAnswer:
        known[place] = ask(versions[place])
        return known[place]

    low, high = 0, len(versions) - 1
    for place in (low, high):
        if not ask_version(place).outcome:
            raise ReproduceError(
                f"{versions[place]} tells nothing ({known[place].said}); name another end with --versions"
            )
    if known[low].outcome == known[high].outcome:
        return BisectedVersion(tuple(known.values()))
    while left := [place for place in range(low + 1, high) if place not in known]:
        middle = min(left, key=lambda place: abs(2 * place - low - high))
        answer = ask_version(middle)
        if answer.outcome == known[low].outcome:
            low = middle
        elif answer.outcome:
            high = middle
    return BisectedVersion(tuple(known.values()), known[low], known[high], tuple(versions[low + 1 : high]))


def make_version_asker(case: StoredCase, package: str, more: Sequence[str] = ()) -> Callable[[str], VersionAnswer]:
    """Runs the case with a version of a package in an environment of its own, beside the other packages of its backend
    and ``more``."""
    others = [p for p in _list_case_packages(case) if p.startswith(INDEX) or not _requires_package(p, package)]

    def ask(version: str) -> VersionAnswer:
        try:
            there = case.within(
                (f"{package}=={version}", *others, *more), f"{case.spec.name.partition('@')[0]}@{version}"
            )
            _ = there.interpreter
        except ReproduceError as error:
            return VersionAnswer(version, "", Status.UNAVAILABLE.value, str(error))
        return _answer_of_version(version, run_case_in_child(there).row)

    return ask


def _answer_of_version(version: str, row: dict[str, Any]) -> VersionAnswer:
    status = Status(row["status"])
    said = " ".join(filter(None, (status.value, row.get("kind") or "")))
    if row.get("error"):
        said += f": {' '.join(str(row['error']).split())[:200]}"
    if not status.judged:
        return VersionAnswer(version, "", status.value, said)
    outcome = "failed" if status.failed else "imprecise" if status is Status.IMPRECISE else "right"
    if row.get("error_units") is not None:
        said += f", {row['error_units']:.3g} units"
    return VersionAnswer(version, outcome, status.value, said)


def _list_case_packages(case: StoredCase) -> Sequence[str]:
    return case.spec.packages or case.spec.create().packages


def _requires_package(requirement: str, package: str) -> bool:
    return bool(canonicalize_name(Requirement(requirement).name) == canonicalize_name(package))


def find_bisected_package(case: StoredCase) -> str:
    """The package whose versions are the backend's: the first of its environment, or what the runtime is called. Raises
    ReproduceError."""
    for requirement in _list_case_packages(case):
        if not requirement.startswith(INDEX):
            return Requirement(requirement).name
    value = backends.list_backends()[case.spec.runtime].value
    for name in (case.spec.runtime, value.partition(":")[0].rpartition(".")[2]):
        try:
            return str(metadata.metadata(name)["Name"])
        except metadata.PackageNotFoundError:
            continue
    raise ReproduceError(f"which package {case.spec.name} is the version of is not known; name it with --package")


def list_asked_versions(asked: str, package: str) -> list[str]:
    """Versions as they are asked for: a list ("1.20.1,1.22.1"), or the releases of a package from one to another
    ("1.20.1..1.31.1", either may be left out), the oldest first. Raises ReproduceError."""
    try:
        if TO not in asked:
            return sorted(set(filter(None, asked.replace(" ", "").split(","))), key=Version)
        first, last = (Version(end) if end else None for end in asked.replace(" ", "").split(TO))
    except (InvalidVersion, ValueError):
        raise ReproduceError(f"--versions {asked}: as 1.20.1..1.31.1, or 1.20.1,1.22.1,1.31.1") from None
    if first is not None and last is not None and first > last:
        raise ReproduceError(f"--versions {asked}: the older one comes first: {last}{TO}{first}")
    there = sorted(map(Version, list_package_releases(package)))
    found = [v for v in there if (first is None or v >= first) and (last is None or v <= last)]
    for end in (first, last):
        if end is not None and end not in found:
            near = sorted(there, key=lambda v: (v.release[:2] != end.release[:2], abs(there.index(v) - len(there))))[:3]
            raise ReproduceError(
                f"{package} {end} is no release that pip finds here; there is {', '.join(map(str, sorted(near)))}"
            )
    return [str(v) for v in found]


def list_package_releases(package: str) -> list[str]:
    """The releases of a package that pip finds for this Python, pre-releases left out. Raises ReproduceError."""
    # By its path alone: to setuptools' own finder the question means that pip runs, and torch's list of ops imports no
    # more after it.
    pip = ["-m", "pip"] if importlib.machinery.PathFinder.find_spec("pip") else None
    if pip is None:
        raise ReproduceError(
            "pip, which lists the releases, is not installed; name the versions: --versions 1.20.1,1.22.1"
        )
    command = [sys.executable, *pip, "--no-input", "--disable-pip-version-check", "index", "versions", package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S)
    except subprocess.TimeoutExpired:
        raise ReproduceError(
            f"pip did not list the releases of {package} in {ASK_S} s; name the versions one by one"
        ) from None
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if done.returncode or not listed:
        said = done.stderr.split("\n")  # what it warns of besides says nothing of the package
        words = " ".join(line for line in said if line.startswith("ERROR: ")) or " ".join(done.stderr.split())[-300:]
        raise ReproduceError(f"pip lists no releases of {package}: {words}; name the versions one by one")
    return [v.strip() for v in listed[1].split(",")]
