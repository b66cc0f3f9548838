"""What is there and what is missing, device by device and backend by backend: ``farm doctor [CONFIG]``; as a list: ``farm doctor --list``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from farm.commandline import refuse_in_a_line
from farm.exits import OK
from farm.fitting import TableHead, fit_table, make_console
from farm.fleet import envs
from farm.fleet.detect_vendors import detect_vendors
from farm.fleet.inventory import BackendOffer, join_node_offers
from farm.fleet.roster import RosterLine, keep_backends_of_machine, list_roster_backends, list_roster_lines
from farm.options.doctor import make_parser
from farm.plan.config import is_config_path, read_config_backends
from farm.program import name_farm_program
from farm.work import executor_registry
from farm.work.executor import Setup
from tasks.backends import BackendSpec
from tasks.backends.needs import write_install_line
from tasks.cache import default_cache
from tasks.confine import LACKS
from tasks.stranger.nursery import try_stranger_confinement

#: The colours of states in the list.
_STYLES = {"available": "green", "unavailable": "yellow"}
#: What is said of a backend in a line of its own: its version, or a reason with a command, as long as they are.
_TEXT = "version, device, nodes; or why not"
#: Backends from which on it is said that they are asked.
_MANY = 3


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 whatever is missing, or 2 for bad input."""
    args = make_parser().parse_args(argv)
    cache = default_cache()
    specs = read_config_backends(args.what, "farm doctor") or list_roster_backends()
    if args.list or args.json or args.no_probe or args.address:
        _print_doctor_list(_ask_doctor_lines(specs, args, cache), args.json)
        return OK
    console = Console(soft_wrap=True, highlight=False, markup=False)

    def tell(texts: Iterator[str]) -> None:
        for text in texts:
            console.print(text)
        sys.stdout.flush()  # what is asked next may take a minute

    tell(_describe_doctor_machine(list_roster_lines(specs, cache, None)))
    if len(specs) > _MANY and console.is_terminal:
        tell(iter([f"\nasking {len(specs)} backends …"]))
    found = list_roster_lines(
        specs, cache, lambda asked: keep_backends_of_machine(asked, cache, fresh=False), args.build
    )
    tell(_render_doctor_report(found, args.what))
    return OK


def _ask_doctor_lines(specs: Sequence[BackendSpec], args: argparse.Namespace, cache: Path) -> list[RosterLine]:
    """The lines of the list: of this machine, or of the nodes of a cluster."""
    if args.no_probe:
        return list_roster_lines(specs, cache, None)
    if not args.address:
        return list_roster_lines(specs, cache, lambda asked: keep_backends_of_machine(asked, cache), args.build)
    cluster = executor_registry.get_executor("ray").create(Setup(args.address))

    def ask(asked: Sequence[BackendSpec]) -> dict[str, BackendOffer]:
        return join_node_offers(asked, cluster.nodes, cluster.probe(asked, str(cache)))

    try:
        return list_roster_lines(specs, cache, ask, args.build, elsewhere=True)
    finally:
        cluster.close()


def _print_doctor_list(found: Sequence[RosterLine], as_json: bool) -> None:
    """A line a backend: a table, or JSON."""
    if as_json:
        for line in found:
            print(json.dumps(asdict(line)))
        return
    columns = {
        "backend": "name",
        "vendor": "vendor",
        "from": "origin",
        "environment": "environment",
        "works from": "oldest",
        "state": "state",
        _TEXT: "text",
    }
    lines = [
        ([Text(getattr(line, name) or "–") for name in columns.values()], _STYLES.get(line.state, "")) for line in found
    ]
    console = make_console()
    console.print(
        fit_table("Backends", [TableHead(words, below=words == _TEXT) for words in columns], lines, console.width)
    )


def _describe_doctor_machine(unasked: Sequence[RosterLine]) -> Iterator[str]:
    """What can be said before a runtime is imported: the system, the devices that the backends need, how kernels are
    shut in."""
    system = (
        platform.freedesktop_os_release().get("PRETTY_NAME", "") if sys.platform == "linux" else platform.platform()
    )
    yield f"{system}, {platform.machine()}, Python {platform.python_version()}"
    wanted = {line.device_vendor for line in unasked}
    yield from _add_doctor_heading(
        "devices",
        [f"  {k:10} {finding.words}" for k, finding in detect_vendors().items() if k in wanted or finding.because],
    )
    yield from _add_doctor_heading("kernels of one's own", _describe_isolation())


def _render_doctor_report(found: Sequence[RosterLine], what: Sequence[str]) -> Iterator[str]:
    """What was answered."""
    users: dict[tuple[str, str], list[str]] = {}
    for line in found:
        for need, where in line.found.items():
            users.setdefault((need, where), []).append(line.name)
    yield from _add_doctor_heading(
        "system requirements besides Python packages",
        [f"  {need}: {where} (for {', '.join(names)})" for (need, where), names in users.items()],
    )
    yield "\nbackends"
    for (_, state, text), group in sorted(_group_by_state(found, what).items(), key=lambda item: item[0][0]):
        yield f"  {state:9}  {', '.join(line.name for line in group)}: {text}"
    yield ""
    yield from _print_doctor_summary(found, what)


def _describe_isolation() -> list[str]:
    """What holds the process in which a kernel of one's own runs (docs/isolation.md)."""
    if sys.platform != "linux":
        return ["  run in the process that judges them: only Linux can shut a process in"]
    try:
        lacks = try_stranger_confinement()
    except OSError as error:
        return [f"  cannot be run in a process of their own: {error}"]
    had = [name for name in LACKS if name not in lacks]
    return [
        f"  run in a process of their own, which is denied: {', '.join(had)}",
        *(f"  not denied here: {name} ({LACKS[name]})" for name in lacks),
    ]


def _add_doctor_heading(heading: str, told: Sequence[str]) -> Iterator[str]:
    """Lines with their heading; nothing where there are none."""
    if told:
        yield f"\n{heading}"
        yield from told


def _group_by_state(found: Sequence[RosterLine], what: Sequence[str]) -> dict[tuple[int, str, str], list[RosterLine]]:
    """(rank, state, text) → the backends that it is said of: what is there, what can be had, what this machine
    cannot."""
    groups: dict[tuple[int, str, str], list[RosterLine]] = {}
    for line in found:
        if line.state == "available":
            key = 0, "available", line.text
        elif line.state == "unavailable":
            key = 1 if line.installs else 3, "missing", line.text
        else:
            key = 2, "not built", _format_build_command(found, [line], what)
        groups.setdefault(key, []).append(line)
    return groups


def _format_build_command(found: Sequence[RosterLine], unbuilt: Sequence[RosterLine], what: Sequence[str]) -> str:
    """The command that builds the environments of some lines. One backend of each is named, which builds it for all; a
    name that is a config's own is built by the config, with all others of it."""
    made: list[str] = []
    for line in unbuilt:
        sharing = [x.name for x in found if (x.environment, x.state) == (line.environment, line.state)]
        known = [name for name in sharing if name in what or _is_built_by_name(name, line.environment)]
        made += known[:1] or [x for x in what if is_config_path(x)]
    return f"{name_farm_program()} doctor envs build {' '.join(dict.fromkeys(made))}"


def _is_built_by_name(name: str, environment: str) -> bool:
    """Whether a backend of this name is known without a config, and has this environment."""
    try:
        found = envs.find_environment(BackendSpec.parse(name))
    except (KeyError, ValueError):
        return False
    return found is not None and environment.startswith(found.key)


def _print_doctor_summary(found: Sequence[RosterLine], what: Sequence[str]) -> Iterator[str]:
    """How many can run, and one line each that brings more."""
    there = sum(line.state == "available" for line in found)
    yield f"{there} of {len(found)} backends can run here"
    lacking = [line for line in found if line.installs]
    if lacking:
        yield f"{len(lacking)} more after: {write_install_line(pair for line in lacking for pair in line.installs)}"
    if unbuilt := [line for line in found if line.state == "not asked"]:
        yield f"{len(unbuilt)} more may run once their environments are built: {_format_build_command(found, unbuilt, what)}"
