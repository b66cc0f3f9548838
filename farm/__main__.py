"""The one command: farm run | report | reproduce | …; each is a file of `farm.commands`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

from farm.command_names import COMMANDS, DIVIDED, FORMER, GROUPS, MAKING, PARTS, find_command_file, fold_help_table
from farm.exits import BAD_INPUT, HELP, OK, run_command, run_command_guarded


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
    return _refuse_command_name("has no command", name, [*COMMANDS, *FORMER])


def _run_named_command(name: str, rest: Sequence[str]) -> int:
    """Run a command, or the part of it that is named next."""
    parts = PARTS.get(name, {})
    part, *more = rest or [""]
    if part in parts:
        file = find_command_file(f"{name} {part}")
        return run_command(file, rest if file == name else more)
    if name not in DIVIDED:
        path = name in MAKING or "/" in part or os.path.exists(part)
        if path or part.startswith("-") or not (meant := _find_meant_parts(part, parts)):
            return run_command(name, rest)
        print(f"error: farm {name} has no part {part!r}; did you mean {meant}? (a path is ./{part})", file=sys.stderr)
        return BAD_INPUT
    if part in ("", *HELP):
        said = f"usage: farm {name} PART [-h] …\n\n{fold_help_table(parts, _count_terminal_columns())}"
        print(said, file=sys.stdout if part else sys.stderr)
        return OK if part else BAD_INPUT
    return _refuse_command_name(f"{name} has no part", part, parts)


def _find_meant_parts(word: str, parts: Iterable[str]) -> str:
    """The part of a command that a word is a slip of; "" if it is something else, as a lake or a folder."""
    from tasks.nearest import find_near_names

    return next(iter(find_near_names(word, parts, 0.75)), "")


def _refuse_command_name(what: str, name: str, known: Iterable[str]) -> int:
    """Say that a name is none of ``known``. The nearest is named; if it was a command of its own, as it is typed now."""
    from tasks.nearest import find_near_names, suggest_nearest_names

    of_all = FORMER.keys() <= {*known}
    near = [" ".join(FORMER[n]) if of_all and n in FORMER else n for n in find_near_names(name, known, 0.6)]
    elsewhere = "; farm --help lists them" if of_all else suggest_nearest_names(name, known)
    said = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else elsewhere
    print(f"error: farm {what} {name!r}{said}", file=sys.stderr)
    return BAD_INPUT


def _spell_command(name: str) -> str:
    """A command as it is called here, of its American spelling as well: minimize is minimise."""
    british = name.replace("ize", "ise")
    return british if british in COMMANDS else name


def _count_terminal_columns() -> int:
    return shutil.get_terminal_size().columns - 2  # as argparse folds the help of a command


def _print_help(topic: str = "") -> int:
    """The list of commands, or what one topic of `farm.help` has to say."""
    from farm.help import TOPICS, describe_help_topic

    columns = _count_terminal_columns()
    if topic in TOPICS:
        print(describe_help_topic(topic, columns))
        return OK
    if topic:
        return _refuse_command_name("has no help on", topic, [*TOPICS, *COMMANDS, *FORMER])
    groups = [f"{title}\n{fold_help_table(_list_group_lines(lines), columns)}\n" for title, lines in GROUPS.items()]
    topics = {f"help {name}": about for name, (about, _) in TOPICS.items()}
    print("usage: farm COMMAND [-h] …", "", "first: farm run configs/quick.yaml", "", *groups, sep="\n")
    print(f"Words\n{fold_help_table(topics, columns)}\n")
    print("farm COMMAND -h shows a command's options, farm --version which farm this is.")
    return OK


def _list_group_lines(commands: Mapping[str, str]) -> dict[str, str]:
    """The lines of a group of the help: each command, and its parts below it."""
    return {
        line: text
        for name, about in commands.items()
        for line, text in {name: about, **{f"  {part}": words for part, words in PARTS.get(name, {}).items()}}.items()
    }


if __name__ == "__main__":
    sys.exit(main())
