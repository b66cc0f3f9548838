"""What ops, dtypes and backends may be called in a pattern, and which of them a pattern matches."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Sequence

from tasks.catalogs.base import Entry


def list_pattern_names(entry: Entry) -> list[str]:
    """What an op may be called in a pattern: with and without its catalog, with and without its variant."""
    bare = entry.op.partition(":")[2]
    called = [entry.op, bare]
    return called + [f"{n}.{entry.variant}" for n in called] if entry.variant else called


def make_pattern_matcher(globs: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """A function that tells whether any of its names matches any of the globs."""
    if "*" in globs:
        return lambda called: True
    if not globs:
        return lambda called: False
    match = _compile_pattern_globs(tuple(globs)).match
    return lambda called: any(match(n) for n in called)


def select_names_by_pattern(globs: Sequence[str], called: Iterable[str]) -> list[str]:
    """The names that any of the globs matches."""
    if "*" in globs:
        return list(called)
    return list(filter(_compile_pattern_globs(tuple(globs)).match, called)) if globs else []


@functools.cache  # a list of known failures asks for the same some thousand times
def _compile_pattern_globs(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(g) for g in globs))


def is_glob_pattern(pattern: str) -> bool:
    """Whether a pattern has a wildcard."""
    return any(c in pattern for c in "*?[")
