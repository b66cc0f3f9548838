"""What command lines share: options of one meaning, and one line for what cannot be done."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from farm.command_names import LEAVES, PARTS, find_command_file, fold_help_table
from farm.exits import BAD_INPUT, Main
from tasks.cache import default_cache
from tasks.model import Refusal
from tasks.nearest import find_near_names

#: Control characters and direction overrides: an error text must not be able to drive the terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+")

#: What a value of an option is to be, by what reads it.
_NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}
#: How Python shows a warning.
_PYTHONS = warnings.formatwarning
#: What a command has warned of: who lists a lake twice is told once.
_WARNED: set[str] = set()


def clean_line(value: Any, length: int = 0) -> str:
    """Text on one line without control characters, cut to ``length`` characters (0: not cut)."""
    text = " ".join(_CONTROL.sub(" ", str(value)).split())
    return text[: length - 1] + "…" if length and len(text) > length else text


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """The farm's own warnings in one line, without the line of code that gave them; others as Python says them."""
    if category.__module__.startswith("farm."):
        return _shorten_warning(message)
    return _PYTHONS(message, category, filename, lineno, line)


def _shorten_warning(words: Any) -> str:
    """A warning's line; nothing if the command has said it."""
    line = f"warning: {clean_line(words)}\n"
    new = line not in _WARNED
    _WARNED.add(line)
    return line * new


def warn_in_a_line(words: Any) -> None:
    """Say in one line, once a command, what is not as it should be."""
    sys.stderr.write(_shorten_warning(words))


def refuse_in_a_line(main: Main) -> Main:
    """A command's ``main`` that says what it refuses (`Refusal`), and which file of its command line cannot be read or
    written, in one line and ends with exit code 2."""

    @functools.wraps(main)
    def run_command(argv: Sequence[str] | None = None) -> int:
        warnings.formatwarning = _show_warning
        _WARNED.clear()
        try:
            return main(argv)
        except Refusal as refusal:
            print(f"error: {clean_line(refusal)}", file=sys.stderr)
            return BAD_INPUT
        except OSError as error:
            # A file that the command line names: nothing of the farm's own failed. What has no file is a full disk,
            # a dead socket.
            words = sys.argv[1:] if argv is None else argv
            named = {part for word in words for part in (word, word.partition("=")[2])}
            if error.filename is None or str(error.filename) not in named:
                raise
            print(f"error: {clean_line(error.filename)}: {error.strerror}; name another place", file=sys.stderr)
            return BAD_INPUT

    return run_command


def write_asked_csv(table: Any, path: str) -> None:
    """Write a frame to the file that ``--csv`` names, and say so; pandas reads of the name whether it is compressed
    (.gz, .xz …) and where it is (~, a URI). Raises OSError with the name as it was given."""
    try:
        table.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from None
    print(f"written: {path}")


def print_folded(line: str, indent: int) -> None:
    """Print a line: on a terminal folded to its width, what follows the first indented; in a file or a pipe as it
    is."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    print(textwrap.fill(line, columns, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False))


class _FoldedUsage(argparse.HelpFormatter):
    """argparse keeps options that exclude each other on one line, however long: they are folded between two of them."""

    def _format_usage(self, *arguments: Any) -> str:
        return "".join(f"{self._fold(line)}\n" for line in super()._format_usage(*arguments).splitlines())

    def _fold(self, line: str) -> str:
        indent = " " * (len(line) - len(line.lstrip()))
        words = re.sub(r"(?<!\|) (?!\[)", "\0", line.lstrip())
        fold = textwrap.TextWrapper(
            self._width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
        )
        return fold.fill(words).replace("\0", " ")


class CommandParser(argparse.ArgumentParser):
    """A parser whose list options (`add_list_option`) also take what follows them, up to the next option or config:
    --backends a b. Of an option that it does not have it names the nearest."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _FoldedUsage, **settings})

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse's; words may stand before and behind options: OUT --last 3 LAKE."""
        found, left = self.parse_known_args(args, namespace)
        if left and not (left[0].startswith("-") or self._subparsers):
            found, left = self.parse_known_intermixed_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}{self._meant(left)}")
        return found

    def _meant(self, left: Sequence[str]) -> str:
        options = [x.partition("=")[0] for x in left if x.startswith("--")]
        if not options:
            lake = "--results" in self._option_string_actions and os.path.isdir(left[0])
            return f"; a lake is named by --results {left[0]}" if lake else f"; {self.prog} -h shows what it takes"
        found = find_near_names(options[0], self._option_string_actions, 0.7)
        elsewhere = [f"farm {typed}" for typed, own in list_command_options().items() if options[0] in own]
        said = f"; did you mean {found[0]}?" if found else ""
        said += f"; {options[0]} is an option of {', '.join(elsewhere)}" * bool(elsewhere)
        return said or f"; {self.prog} -h lists them"

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """As argparse's; what is no number is told so in words."""
        try:
            return super()._get_value(action, arg_string)  # type: ignore[misc]
        except argparse.ArgumentError as error:
            if action.type in _NUMBERS:
                error.message = f"{_NUMBERS[action.type]} is needed, not {arg_string!r}"
            raise

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        """As argparse's; a value that is missing is named as the help names it, and the option of an earlier version as
        it is called now."""
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError as error:
            helped = self._get_formatter()
            error.message += f": {helped._format_args(action, helped._get_default_metavar_for_optional(action))}"
            error.message += f"; it is {action.const} now" * isinstance(action, _FormerOption)
            raise

    def format_help(self) -> str:
        """As argparse's, with the parts of the command behind it."""
        parts = PARTS.get(self.prog.removeprefix("farm "), {})
        lines = {f"{self.prog} {part}": text for part, text in parts.items()}
        said = (
            f"\nparts, each with its own -h:\n{fold_help_table(lines, self._get_formatter()._width)}\n" if lines else ""
        )
        return super().format_help() + said

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's."""
        lists = {
            name for action in self._actions if isinstance(action, _ListedOption) for name in action.option_strings
        }
        return super().parse_known_args(
            list(_repeat_list_options(sys.argv[1:] if args is None else args, lists)), namespace
        )


def list_command_options() -> dict[str, set[str]]:
    """What is typed of each command, its parts and their own (`known list`) → its options."""
    made: dict[str, set[str]] = {}
    for leaf in LEAVES:
        parser = import_module(f"farm.options.{find_command_file(leaf)}").make_parser()
        parsers = {leaf: parser}
        for group in [x for x in parser._actions if isinstance(x, argparse._SubParsersAction)]:
            part = leaf.split()[-1]
            own = {leaf: group.choices[part]} if part in group.choices else {}
            parsers = own or parsers | {f"{leaf} {word}": one for word, one in group.choices.items()}
        for typed, one in parsers.items():
            options = one._option_string_actions.items()
            made[typed] = {name for name, action in options if action.help != argparse.SUPPRESS}
    return made


def _repeat_list_options(words: Sequence[str], lists: Collection[str]) -> Iterator[str]:
    """A command line in which each value of a list option has the option before it."""
    option, had = "", False
    for word in words:
        if word.startswith("-"):
            name, equals, _ = word.partition("=")
            option, had = name if name in lists else "", bool(equals)
        elif option and not (had and word.endswith((".yaml", ".yml"))):
            if had:
                yield option
            had = True
        yield word


class _ListedOption(argparse.Action):
    """Several values of an option in their order. const: what separates names in one word, of which each counts once;
    "" for values that have no separator."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        words = values.split(self.const) if self.const else [values]
        named = [word.strip() for word in words if word.strip()]
        if not named:
            mend = "give a name" + ", or omit the option for all" * (not self.required)
            raise Refusal(f"{option_string} {values!r}: names nothing; {mend}")
        found = [*getattr(namespace, self.dest), *named]
        setattr(namespace, self.dest, list(dict.fromkeys(found)) if self.const else found)


def add_list_option(
    parser: CommandParser, name: str, metavar: str, words: str, commas: bool = True, required: bool = False
) -> None:
    """An option of several values: repeated, one after another or, if ``commas``, with commas between them."""
    options: dict[str, Any] = {"required": required, "default": [], "metavar": metavar, "help": words}
    parser.add_argument(name, action=_ListedOption, const="," * commas, **options)


class _FormerOption(argparse.Action):
    """An option of an earlier version that says what it is called now (``const``), and what both take if that is not
    the same."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        took = f" {self.metavar}" * (" " in self.const)
        warn_in_a_line(f"{option_string}{took} is {self.const} now")
        before = getattr(namespace, self.dest)
        given = values if isinstance(values, list) else [values]
        setattr(namespace, self.dest, [*before, *given] if isinstance(before, list) else values)


def add_former_option(parser: argparse._ActionsContainer, former: str, now: str, **differs: Any) -> None:
    """``former``: what the option ``now`` of the parser was called; it works for a release more, and says so. differs:
    what it had otherwise, as `argparse` calls it; of an own ``metavar`` the words say both."""
    is_now = parser._option_string_actions[now]
    more: dict[str, Any] = {name: getattr(is_now, name) for name in ("dest", "type", "nargs", "default", "metavar")}
    const = f"{now} {is_now.metavar}" if "metavar" in differs else now
    parser.add_argument(former, action=_FormerOption, const=const, help=argparse.SUPPRESS, **more | differs)


def add_packages_option(parser: argparse.ArgumentParser) -> None:
    """``--packages``: a list of requirements."""
    words = "run the backend in an environment with these packages"
    parser.add_argument("--packages", nargs="+", default=[], metavar="REQUIREMENT", help=words)


def add_budget_option(parser: argparse.ArgumentParser, what: str) -> None:
    """--budget of a command that can do a part of its work; what: of it, in words."""
    parser.add_argument("--budget", metavar="TIME", help=f"end after about this time (10m, 90s, 2h), {what}")


def add_results_option(parser: argparse.ArgumentParser, words: str = "the lake: a directory or a URI (s3://…)") -> None:
    """``--results``: where the lake is."""
    parser.add_argument("--results", default="results", metavar="PATH", help=words)


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """``--cache``: a folder as a `Path`."""
    words = "directory for prepared cases (default: $FARM_CACHE)"
    parser.add_argument("--cache", default=default_cache(), type=Path, metavar="DIR", help=words)


def add_key_argument(parser: argparse.ArgumentParser, more: str = "", **options: Any) -> None:
    """``key``: which case of which run on which backend."""
    words = "run_id:case_id:backend, as a report prints it ('last': the newest run, 'previous': the one before)"
    parser.add_argument("key", help=words + more, **options)
