"""What is to blame for a failure, as the column `culprit` says it: a kind, and which one of it. What is written here is read here."""

from __future__ import annotations

import re

#: Culprits of a model that fails, as they are spelled, and how each is known.
OF_MODELS: dict[str, str] = {
    "exporter": "the graph, in float64, is not what the case expects",
    "capture": "the program that torch captures of a module, in float64, is not what eager torch runs",
    "node NAME (OP)": "the first node, in the graph's order, whose own error makes the model fail",
    "nodes, N of them, the worst NAME (OP)": "the own errors of several nodes make the model fail together, and no single one does",
    "precision NAME": "at least two products, and at least half of them, are beyond their floor, rounded to `bfloat16` or `tfloat32`; or "
    "the model passes when the backend is told to compute as asked",
    "window FIRST..LAST": "up to four nodes that, run by themselves, fail together but not separately",
    "fusion": "no window of up to four nodes fails by itself: the failure depends on how more are combined. `farm localise` shows the "
    "smallest window that does, up to 32 nodes",
    "optimiser PASS": "the culprit is right without that pass of the optimizer",
    "optimiser level NAME, right at level LOWER": "it is right at the level below, which is named since a level may be called `disable`",
}
#: Culprits of a case that a check judges at several steps: the check, the culprit, what it means.
OF_CHECKS: tuple[tuple[str, str, str], ...] = (
    ("levels", "level extended", "right at the optimization levels below, not at this one"),
    (
        "shapes",
        "open dimensions 6x4 after 3x4",
        "a program for any size is off (or raises) at a size for which a fixed-size program is right",
    ),
    ("shapes", "fixed shapes 6x4", "the fixed-size program is off as well: the size is to blame, not its being open"),
    ("steps", "step 8", "the first step of a [session](sessions.md) that is among the worst"),
    ("roundtrip", "exporter", "the graph is not the module in float64; `invalid`"),
    ("roundtrip", "torch", "torch itself is off"),
    ("roundtrip", "runtime", "the runtime is off"),
    (
        "opsets",
        "converter",
        "no exporter of torch's writes the module at that opset, and onnx.version_converter refuses the model, or turns it into another "
        "function; `invalid`",
    ),
    ("quantized", "quantizer", "the vendor's tool refuses the model, or produces an invalid one; `invalid`"),
)
#: Kinds that are to blame whatever the op or model is.
SHARED = ("exporter", "optimiser", "precision")

_NODE, _WINDOW = re.compile(r"node (.+) \(\S+\)"), re.compile(r"window (.+)\.\.(.+)")


def name_node_culprit(name: str, op: str) -> str:
    """A node of a model, by its unique name."""
    return f"node {name} ({op})"


def name_window_culprit(first: str, last: str) -> str:
    """Nodes of a model that follow one another, by the names of the first and the last."""
    return f"window {first}..{last}"


def find_culprit_kind(text: str) -> str:
    """The kind of a culprit; "" for none."""
    return text.partition(" ")[0]


def find_culprit_ends(text: str) -> tuple[str, str] | None:
    """Names of the first and the last of the nodes that are to blame; None where the culprit is none of a model's
    nodes."""
    if found := _NODE.fullmatch(text):
        return found[1], found[1]
    return (found[1], found[2]) if (found := _WINDOW.fullmatch(text)) else None
