"""What ops, dtypes and backends may be called in a pattern, and which of them a pattern matches."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Sequence

from tasks.catalogs.base import Entry

#: A list of known failures asks for the same some thousand times.
_translate = functools.cache(fnmatch.translate)


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
    match = re.compile("|".join(map(_translate, globs))).match
    return lambda called: any(match(n) for n in called)


def select_names_by_pattern(globs: Sequence[str], called: Iterable[str]) -> list[str]:
    """The names that any of the globs matches."""
    matches = make_pattern_matcher(globs)
    return [name for name in called if matches((name,))]
