"""farm doctor envs list | build CONFIG… | remove KEY…: what is built here, what a config needs, what can go."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from farm.commandline import refuse_in_a_line
from farm.exits import BAD_INPUT
from farm.fitting import TableHead, fit_table
from farm.fleet import envs
from farm.fleet.ask_backends import explain_no_device
from farm.options.envs import make_parser
from farm.plan.config import read_config_backends
from tasks.backends import BackendSpec
from tasks.cache import default_cache


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0, 1 if a build or a removal failed, 2 for bad input."""
    args = make_parser().parse_args(argv)
    cache = default_cache()
    if args.command == "list":
        return _print_environments(cache)
    if args.command == "remove":
        return _remove_asked_environments(cache, args.keys, args.all)
    return _build_asked_environments(read_config_backends(args.what, "build"), cache, args.what)


def _build_asked_environments(specs: Iterable[BackendSpec], cache: Path, named: Sequence[str]) -> int:
    """named: what the command line names: a backend of a config is not built for a device that is not here, one by name
    is."""
    failed = 0
    for spec in specs:
        if spec.name not in named and (why := explain_no_device(spec, None)):
            print(f"{spec.name}: not built: {why}")
            continue
        environment = envs.find_environment(spec)
        if environment is None:
            print(f"{spec.name}: the farm's own environment")
            continue
        there = environment.there(cache)
        try:
            envs.build_interpreter(environment, cache)
            if environment.existing:
                print(f"{spec.name}: {environment.label}, as it is")
                continue
            record = environment.record(cache) or {}
            print(
                f"{spec.name}: {environment.key}",
                "already built" if there else f"built in {record.get('built_s', 0):.1f} s",
            )
        except envs.EnvError as error:
            failed = 1
            print(f"{spec.name}: {environment.key} failed: {error}", file=sys.stderr)
    return failed


def _print_environments(cache: Path) -> int:
    lines = []
    for key, record in envs.read_environments(cache).items():
        total, alone = envs.measure_environment_size(cache / "envs" / key)
        sizes = (f"{total / 1e9:.2f}", f"{alone / 1e9:.2f}", f"{record['built_s']:.1f}")
        lines.append(([Text(cell) for cell in (key, record["python"], *sizes, " ".join(record["packages"]))], ""))
    heads = [
        TableHead("key"),
        TableHead("Python"),
        *(TableHead(words, right=True) for words in ("GB", "alone", "build (s)")),
    ]
    console = Console()
    console.print(fit_table(f"environments in {cache / 'envs'}", [*heads, TableHead("packages")], lines, console.width))
    console.print("alone: not shared through hard links with other environments or package caches", style="dim")
    return 0


def _remove_asked_environments(cache: Path, keys: Sequence[str], everything: bool) -> int:
    known = sorted({p.name for p in (cache / "envs").glob("*") if p.is_dir()})
    if not everything and not keys:
        print("error: nothing to remove: name keys (farm doctor envs list) or give --all", file=sys.stderr)
        return BAD_INPUT
    if everything and keys:
        print(f"error: --all and {keys[0]}: give one of the two", file=sys.stderr)
        return BAD_INPUT
    chosen = known if everything else list(keys)
    if unknown := [k for k in chosen if k not in known]:
        print(f"error: no environment {unknown[0]!r}; there are {', '.join(known) or 'none'}", file=sys.stderr)
        return BAD_INPUT
    for key in chosen:
        try:
            envs.remove_environment(cache, key)
        except envs.EnvError as error:
            print(f"error: {key} is being built: {error}", file=sys.stderr)
            return 1
        print(f"removed {key}")
    return 0
