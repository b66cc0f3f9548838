"""The one command: farm run | report | reproduce | …; each is a file of `farm.commands`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterable, Sequence

from farm.exits import BAD_INPUT, HELP, OK, run_command, run_command_guarded

#: Command of several parts → part → what it does: `farm policy selftest`. A part is a file of `farm.commands`, or one
#: of the command's own.
PARTS = {
    "node": {
        "detect": "show the devices of this machine, and how each was found",
        "start": "run ray start with the labels and resources of the devices found here",
        "monitor": "start Prometheus and Grafana on the metrics of runs on Ray, where they are installed",
    },
    "policy": {
        "selftest": "test the judge on planted faults and their correct twins",
        "rejudge": "rejudge the rows of a lake under another policy, without running anything",
        "calibrate": "derive a policy's limits from rows of backends taken as correct",
    },
}
#: Names of earlier versions → what they are called now; they work for a release more.
FORMER = {
    "backends": ("doctor", "--list"),
    "monitor": ("node", "monitor"),
    **{part: ("policy", part) for part in PARTS["policy"]},
}
#: What one wants to know → command → what it does.
GROUPS = {
    "Is it right?": {
        "run": "run a config: judge every op, dtype and backend it names, store the rows in the lake",
        "report": "show a run, or many: tables, CSV, Markdown, one HTML page; compare two backends or two runs",
        "gate": "check a run against its config's gate; JUnit XML, SARIF, Markdown",
        "known": "list, check and add known failures: which cases fail, how, why, and until when",
        "fuzz": "generate cases, run them on every backend, search further near findings",
    },
    "Why is it wrong, and how do I see it?": {
        "reproduce": "rerun one row of a lake; or write it down as a folder that shows it",
        "minimise": "shrink a lake's failing case while it fails in the same way: minimal case, finding, issue",
        "localise": "find the node, window, optimiser pass or precision that makes a lake's model fail",
        "findings": "list the distinct defects of a lake, each with its minimal case; write a folder for each",
        "gradcheck": "check the gradients of one op against autograd and finite differences",
        "loss": "say which difference of two losses of a training is normal, with its floor, step by step",
    },
    "Since when?": {
        "history": "show when outcomes were first and last seen, and fixed, by run or version",
        "bisect": "bisect the releases of a runtime to the one that broke or fixed a case",
        "site": "write a static site over many runs and lakes: what failed since when, by vendor, backend, op, model and defect",
    },
    "What runs here, and how does it compute?": {
        "screen": "have every device compute known products for a minute; compare equals, name who is wrong",
        "fingerprint": "read how a backend adds: order, bits, rounding; predict it to the bit; compare two",
        "doctor": "show what runs here, what is missing, and the command that installs it; list every backend",
        "envs": "list, build and remove backend environments",
        "node": "find this machine's devices; start or join a Ray cluster with them; watch it",
    },
    "What of my own?": {
        "init": "write an example project: two kernels of your own, their references, a config, a test",
        "harvest": "write the distinct nodes of models, with their own tensors, as a catalog for every backend",
    },
    "Can the answer be trusted?": {
        "policy": "test the judge on planted faults; rejudge a lake under another policy; derive one's limits",
        "sign": "sign a run: the digests of its files",
        "verify": "check a signed run; rerun a sample of its rows and report how many outcomes repeat",
    },
}
#: Command → what it does.
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
#: What is typed → what it does: of a command of several parts each of them.
LEAVES = {
    typed: text
    for name, about in COMMANDS.items()
    for typed, text in (
        {f"{name} {part}": words for part, words in PARTS[name].items()} if name in PARTS else {name: about}
    ).items()
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is the command's, 2 for a command that does not exist."""
    return run_command_guarded(_run_command_line, argv)


def _run_command_line(argv: Sequence[str] | None) -> int:
    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    asked = name == "help"
    if asked and rest:
        name, *rest = rest
    name = _spell_command(name)
    if name in FORMER:
        print(f"warning: farm {name} is farm {' '.join(FORMER[name])} now", file=sys.stderr)
        name, *rest = [*FORMER[name], *rest]
    if name in COMMANDS:
        return _run_named_command(name, [*rest, *["--help"] * asked])
    if asked or name in HELP:
        return _print_help("" if name in {*HELP, "help"} else name)
    if name == "--version":
        from farm.version import farm_version

        print(f"farm {farm_version()}")
        return OK
    return _refuse_command_name("has no command", name, COMMANDS)


def _run_named_command(name: str, rest: Sequence[str]) -> int:
    """Run a command, or the part of it that is named next."""
    if name not in PARTS:
        return run_command(name, rest)
    part, *more = rest or [""]
    if part in PARTS[name]:
        own = importlib.util.find_spec(f"farm.options.{part}") is None
        return run_command(name, rest) if own else run_command(part, more)
    if part in ("", *HELP):
        from farm.help import fold_help_table

        said = f"usage: farm {name} PART [-h] …\n\n{fold_help_table(PARTS[name], _count_terminal_columns())}"
        print(said, file=sys.stdout if part else sys.stderr)
        return OK if part else BAD_INPUT
    return _refuse_command_name(f"{name} has no part", part, PARTS[name])


def _refuse_command_name(what: str, name: str, known: Iterable[str]) -> int:
    from tasks.nearest import suggest_nearest_names

    print(f"error: farm {what} {name!r}{suggest_nearest_names(name, list(known))}", file=sys.stderr)
    return BAD_INPUT


def _spell_command(name: str) -> str:
    """A command as it is called here, of its American spelling as well: minimize is minimise."""
    british = name.replace("ize", "ise")
    return british if british in COMMANDS else name


def _count_terminal_columns() -> int:
    return shutil.get_terminal_size().columns - 2  # as argparse folds the help of a command


def _print_help(topic: str = "") -> int:
    """The list of commands, or what one topic of `farm.help` has to say."""
    from farm.help import TOPICS, describe_help_topic, fold_help_table

    columns = _count_terminal_columns()
    if topic in TOPICS:
        print(describe_help_topic(topic, columns))
        return OK
    if topic:
        return _refuse_command_name("has no help on", topic, [*TOPICS, *COMMANDS])
    groups = [f"{title}\n{fold_help_table(lines, columns)}\n" for title, lines in GROUPS.items()]
    topics = {f"help {name}": about for name, (about, _) in TOPICS.items()}
    print("usage: farm COMMAND [-h] …", "", "first: farm run configs/quick.yaml", "", *groups, sep="\n")
    print(f"Words\n{fold_help_table(topics, columns)}\n")
    print("farm COMMAND -h shows a command's options, farm --version which farm this is.")
    return OK


if __name__ == "__main__":
    sys.exit(main())
