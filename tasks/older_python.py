"""What `tasks` uses of Python that the oldest one it starts in does not have."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

_MISSING = object()


def zip_equal(*columns: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """``zip`` with ``strict=True``, which Python 3.9 lacks. Raises ValueError where one column is longer than
    another."""
    for row in itertools.zip_longest(*columns, fillvalue=_MISSING):
        if any(value is _MISSING for value in row):
            raise ValueError(f"{len(columns)} columns of different lengths")
        yield row
