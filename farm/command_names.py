"""What the commands are called, and in which order one meets them. The help, the docs, the tests and every refusal of a name ask here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

#: What one wants to know → command → what it does.
GROUPS = {
    "Is it right?": {
        "run": "judge every op, dtype and backend of a config; keep the rows",
        "report": "show a run, or many: terminal, page, CSV; compare them",
        "gate": "is a run good enough? exit code, JUnit XML, SARIF, Markdown",
        "known": "list, check and add known failures",
        "fuzz": "generate cases and run them, most where something fails",
        "training": "check gradients and losses",
    },
    "Why is it wrong, and since when?": {
        "reproduce": "run one row of a lake again; write it down as a folder",
        "minimise": "shrink a failing case while it fails in the same way",
        "localise": "find the node, pass or precision that makes a model fail",
        "bisect": "find the release of a runtime that broke or fixed a case",
    },
    "What runs here, and how does it compute?": {
        "doctor": "show what runs here, what is missing, and what installs it",
        "node": "find, screen and watch devices; join them to a cluster",
        "fingerprint": "read how a backend adds: order, bits, rounding; compare",
    },
    "What of my own?": {"init": "write an example project: kernels, references, a test"},
    "Can the answer be trusted?": {
        "policy": "test, try out and derive the limits of judging",
        "verify": "rerun a sample of a run's rows; check its signature",
    },
}
#: Command of several parts → part → what it does: `farm policy selftest`. A part is a file of `farm.commands`, or one of
#: the command's own. A command that has a file itself is one as well: `farm report`, `farm report history`.
PARTS = {
    "report": {
        "findings": "list the distinct defects, each with its minimal case",
        "history": "show since when outcomes are as they are, by run or version",
        "site": "write a static site over many runs and lakes",
    },
    "training": {
        "gradcheck": "check an op's gradients by autograd and by differences",
        "loss": "say which difference of two losses is normal, step by step",
    },
    "doctor": {"envs": "list, build and remove the environments of backends"},
    "node": {
        "detect": "show the devices of this machine, and how each was found",
        "start": "start Ray with the devices found here, or join a cluster",
        "monitor": "start Prometheus and Grafana on the metrics of runs on Ray",
        "screen": "compute known products on every device; name who is wrong",
    },
    "init": {"harvest": "write the nodes of models, with their tensors, as a catalog"},
    "policy": {
        "selftest": "test the judge on planted faults and their correct twins",
        "rejudge": "rejudge the rows of a lake under another policy",
        "calibrate": "derive a policy's limits from rows taken as correct",
    },
    "verify": {"sign": "sign a run: the digests of its files"},
}
#: Names of earlier versions → what is typed now; they work for a release more. A part's name alone is such a name.
FORMER = {"backends": ("doctor", "--list"), **{part: (name, part) for name, parts in PARTS.items() for part in parts}}
#: Command → what it does.
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
#: Commands that have no file of their own, only parts.
DIVIDED = {"node", "policy", "training"}
#: Commands that make what their word names: no word is a slip of a part's name.
MAKING = {"init"}
#: What is typed → what it does: each command that has one meaning, and each part.
LEAVES = {
    typed: text
    for name, about in COMMANDS.items()
    for typed, text in {
        **({} if name in DIVIDED else {name: about}),
        **{f"{name} {part}": words for part, words in PARTS.get(name, {}).items()},
    }.items()
}


def find_command_file(typed: str) -> str:
    """The file of `farm.options` and `farm.commands` of a leaf: `node` of "node detect", which is in its command's."""
    name, _, part = typed.partition(" ")
    return part if part and find_spec(f"farm.options.{part}") else name


def fold_help_table(lines: Mapping[str, str], columns: int) -> str:
    """Name and text a line, the text in a column of its own."""
    import textwrap

    width = max(map(len, lines))
    fold = textwrap.TextWrapper(columns, subsequent_indent=" " * (width + 4), break_on_hyphens=False).fill
    return "\n".join(fold(f"  {name:{width}}  {text}") for name, text in lines.items())
