"""What is to blame for a failure, as the column `culprit` says it: a kind, and which one of it. What is written here is read here."""

from __future__ import annotations

import re

#: Kinds that are to blame whatever the op or model is.
SHARED = ("exporter", "optimiser", "precision")

_NODE, _WINDOW = re.compile(r"node (.+) \(\S+\)"), re.compile(r"window (.+)\.\.(.+)")


def of_node(name: str, op: str) -> str:
    """A node of a model, by its unique name."""
    return f"node {name} ({op})"


def of_window(first: str, last: str) -> str:
    """Nodes of a model that follow one another, by the names of the first and the last."""
    return f"window {first}..{last}"


def kind(text: str) -> str:
    """The kind of a culprit; "" for none."""
    return text.partition(" ")[0]


def ends(text: str) -> tuple[str, str] | None:
    """Names of the first and the last of the nodes that are to blame; None where the culprit is none of a model's
    nodes."""
    if found := _NODE.fullmatch(text):
        return found[1], found[1]
    return (found[1], found[2]) if (found := _WINDOW.fullmatch(text)) else None
