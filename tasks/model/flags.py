"""The modes in force of a row or program, as its ``flags`` say them: words with blanks between, each ``key=value`` or a key alone.

Text rather than a map of the lake's own, so that rows can be grouped, compared and searched by it in any reader of
Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any


def parse_row_flags(text: Any) -> dict[str, str]:
    """The values by key; "" for a key alone. A null of any kind means no modes."""
    pairs = (word.partition("=") for word in split_row_flags(text))
    return {key: value for key, _, value in pairs}


def split_row_flags(text: Any) -> list[str]:
    """The words, one for each mode."""
    return text.split() if isinstance(text, str) else []


def join_row_flags(text: str, **values: Any) -> str:
    """The text with more modes, in place of those of the same keys; None takes one away. Raises ValueError for a value
    with a blank in it."""
    for key, value in values.items():
        if len(str(value).split()) > 1:
            raise ValueError(f"flag {key}: {value!r} is more than one word")
    kept = [word for word in split_row_flags(text) if word.partition("=")[0] not in values]
    return " ".join([*kept, *(f"{key}={value}" for key, value in values.items() if value is not None)])


def matches_row_flags(text: Any, globs: Sequence[str]) -> bool:
    """Whether each of the globs matches a word."""
    said = split_row_flags(text)
    return all(any(fnmatchcase(word, glob) for word in said) for glob in globs)


def parse_flushed_flag(text: Any) -> tuple[str, ...]:
    """Dtypes whose subnormal results the device takes for zero (`tasks.model.Flushes`)."""
    return tuple(filter(None, parse_row_flags(text).get("flushes", "").split(",")))


def read_row_flags(row: Mapping[str, Any]) -> dict[str, str]:
    """The modes of a row of the lake."""
    return parse_row_flags(row.get("flags"))
