"""What is known and what runs where: ``farm backends [CONFIG]``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from farm.commandline import refusing
from farm.fleet.inventory import Offer, offers
from farm.fleet.roster import Line, everything, lines, on_this_machine
from farm.options.backends import make_parser
from farm.plan.config import backends_of
from farm.work import executor_registry
from farm.work.executor import Setup
from tasks.backends import BackendSpec
from tasks.cache import default_cache


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 2 for bad input."""
    args = make_parser().parse_args(argv)
    specs = backends_of(args.what, "farm backends") or everything()
    found = _list_backend_lines(specs, args, default_cache())
    _print_backends(found, args.json)
    return 0


def _list_backend_lines(specs: Sequence[BackendSpec], args: argparse.Namespace, cache: Path) -> list[Line]:
    if args.no_probe:
        return lines(specs, cache, None)
    if not args.address:
        return lines(specs, cache, lambda asked: on_this_machine(asked, cache), args.build)
    cluster = executor_registry.get("ray").create(Setup(args.address))

    def ask(asked: Sequence[BackendSpec]) -> dict[str, Offer]:
        return offers(asked, cluster.nodes, cluster.probe(asked, str(cache)))

    try:
        return lines(specs, cache, ask, args.build, elsewhere=True)
    finally:
        cluster.close()


def _print_backends(found: Sequence[Line], as_json: bool) -> None:
    if as_json:
        for line in found:
            print(json.dumps(asdict(line)))
        return
    console = Console()
    heads = {
        "backend": "name",
        "vendor": "vendor",
        "from": "origin",
        "environment": "environment",
        "works from": "oldest",
    }
    columns = [
        [head, *(getattr(line, name) or "–" for line in found)] for head, name in (heads | {"state": "state"}).items()
    ]
    widths = [max(map(len, column)) for column in columns]
    texts = ["version, device, nodes; or why not", *(line.text for line in found)]
    for *cells, text in zip(*columns, texts):
        row = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths))
        style = {"available": "green", "unavailable": "yellow"}.get(cells[-1])
        console.print(f"{row}  {text}", style=style, highlight=False, soft_wrap=True, markup=False)
