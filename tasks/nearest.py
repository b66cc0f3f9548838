"""The end of every error about a name that nobody has: the names that may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: Most valid names that an error lists where none is near.
LISTED = 12


def nearest(name: object, valid: Iterable[object]) -> str:
    """ "; did you mean a or b?" of the up to three names nearest to ``name``, else the valid ones; "" if there are none."""
    names = [str(v) for v in valid]
    near = difflib.get_close_matches(str(name), names, 3, 0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; valid: {', '.join(names[:LISTED])}{' …' if len(names) > LISTED else ''}" if names else ""
