"""The end of every error about a name that nobody has: the names that may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Most valid names that an error lists where none is near.
LISTED = 12


def find_near_names(name: object, valid: Iterable[object], cutoff: float = 0.5) -> list[str]:
    """The up to three names most like ``name``, the nearest first."""
    return difflib.get_close_matches(str(name), [str(v) for v in valid], 3, cutoff)


def suggest_nearest_names(name: object, valid: Iterable[object]) -> str:
    """ "; did you mean a or b?" of the up to three names nearest to ``name``, else the valid ones; "" if there are
    none."""
    names = [str(v) for v in valid]
    if like := find_near_names(name, names):
        return f"; did you mean {' or '.join(like)}?"
    return f"; valid: {', '.join(names[:LISTED])}{' …' if len(names) > LISTED else ''}" if names else ""


def suggest_meant_names(name: object, valid: Iterable[object]) -> str:
    """ " (did you mean a or b?)" within a sentence; "" where none is near."""
    like = find_near_names(name, valid)
    return f" (did you mean {' or '.join(like)}?)" if like else ""
