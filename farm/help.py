"""`farm help TOPIC`: the words of every output, and what the exit codes mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farm.command_names import fold_help_table
from farm.exits import EXITS
from farm.glossary import TERMS, UNITS
from tasks.model.status import BY_SEVERITY

#: Topic → (what it is about, its lines by name).
TOPICS: dict[str, tuple[str, Callable[[], Mapping[str, str]]]] = {
    "terms": ("what is counted: case, row, cell, …", lambda: TERMS),
    "units": ("what an error is counted in", lambda: {name: text.partition(": ")[2] for name, text in UNITS.items()}),
    "statuses": ("what can come of a case, the worst first", lambda: {s.value: s.facts.meaning for s in BY_SEVERITY}),
    "exits": ("what the exit codes mean", lambda: {str(code): text for code, text in EXITS.items()}),
}


def describe_help_topic(name: str, columns: int) -> str:
    """A topic's lines, folded to so many columns. Raises KeyError for a topic that does not exist."""
    return fold_help_table(TOPICS[name][1](), columns)
