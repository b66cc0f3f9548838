"""The one command: farm run | report | reproduce | …; each is a file of `farm.commands`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

from farm.exits import BAD_INPUT, OK, run_command, run_guarded

#: Command → what it does, in the order of a first day with the farm.
COMMANDS = {
    "run": "run a config: judge every op, dtype and backend it names, store the rows in the lake",
    "report": "show a run, or many: tables, CSV, Markdown, one HTML page; compare two backends or two runs",
    "site": "write a static site over many runs and lakes: what failed since when, by vendor, backend, op, model and defect",
    "reproduce": "rerun one row of a lake; or write it down as a folder that shows it",
    "fuzz": "generate cases, run them on every backend, search further near findings",
    "localise": "find the node, window, optimiser pass or precision that makes a lake's model fail",
    "minimise": "shrink a lake's failing case while it fails in the same way: minimal case, finding, issue",
    "bisect": "bisect the releases of a runtime to the one that broke or fixed a case",
    "history": "show when outcomes were first and last seen, and fixed, by run or version",
    "gate": "check a run against its config's gate; JUnit XML, SARIF, Markdown",
    "sign": "sign a run: the digests of its files",
    "verify": "check a signed run; rerun a sample of its rows and report how many outcomes repeat",
    "known": "list, check and add known failures: which cases fail, how, why, and until when",
    "findings": "list the distinct defects of a lake, each with its minimal case; write a folder for each",
    "harvest": "write the distinct nodes of models, with their own tensors, as a catalog for every backend",
    "init": "write an example project: two kernels of your own, their references, a config, a test",
    "backends": "list every backend: what it needs, where it runs, or why it does not",
    "doctor": "show what this machine lacks, by device and backend, and the command that installs it",
    "envs": "list, build and remove backend environments",
    "monitor": "start Prometheus and Grafana on the metrics of runs on Ray, where they are installed",
    "screen": "have every device compute known products for a minute; compare equals, name who is wrong",
    "node": "find this machine's devices; start or join a Ray cluster with them",
    "rejudge": "rejudge the rows of a lake under another policy, without running anything",
    "calibrate": "derive a policy's limits from rows of backends taken as correct",
    "selftest": "test the judge on planted faults and their correct twins",
    "gradcheck": "check the gradients of one op against autograd and finite differences",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is the command's, 2 for a command that does not exist."""
    return run_guarded(_main, argv)


def _main(argv: Sequence[str] | None) -> int:
    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return OK
    if name == "--version":
        from farm.version import farm_version

        print(f"farm {farm_version()}")
        return OK
    if name not in COMMANDS:
        from tasks.nearest import nearest

        print(f"error: farm has no command {name!r}{nearest(name, list(COMMANDS))}", file=sys.stderr)
        return BAD_INPUT
    return run_command(name, rest)


def _help() -> str:
    width = max(map(len, COMMANDS))
    columns = shutil.get_terminal_size().columns - 2  # as argparse folds the help of a command
    fold = textwrap.TextWrapper(columns, subsequent_indent=" " * (width + 4), break_on_hyphens=False).fill
    lines = [fold(f"  {name:{width}}  {text}") for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: farm COMMAND [-h] …",
            "",
            *lines,
            "",
            "farm COMMAND -h shows a command's options, farm --version which farm this is.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
