"""The command that runs one case of a lake again, by itself: farm reproduce '<run>:<case>:<backend>'"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.fleet.ask_backends import explain_no_device
from farm.fleet.child_process import make_child_environment
from farm.fleet.envs import Environment
from farm.options.reproduce import make_parser
from farm.reproduction import device_places, pinned_versions, write_finding
from farm.reproduction.find_case import StoredCase, load_stored_case, parse_row_key
from farm.reproduction.run_again import run_case_here, run_case_in_child
from farm.reproduction.show_case import (
    conclude_reproduction,
    print_name_and_text,
    print_reproduced_case,
    print_reproduced_outcome,
)
from farm.work.child_pool import POOL
from tasks.backends.shared.artefacts import name_inductor_cache
from tasks.backends.shared.recipe import NoProgram
from tasks.model import DEADLY, Refusal, Status

#: Exit codes.
SAME, DIFFERENT, BAD_INPUT = 0, 1, 2


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 the same status as stored, 1 another (or a run.py that does
    not show it), 2 a key or an option that names nothing."""
    args = make_parser().parse_args(argv)
    _set_child_environment(args.cache)
    try:
        return _reproduce_command_case(args)
    finally:
        POOL.close()


def _set_child_environment(cache: Path) -> None:
    """The environment that a run gives its children, so that the numbers are the same. Before torch is imported."""
    for name, value in make_child_environment().items():
        if name.endswith("_NUM_THREADS") or name == "TORCH_DEVICE_BACKEND_AUTOLOAD":
            os.environ.setdefault(name, value)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", name_inductor_cache(cache))
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", lakes.LakeWarning)


def _choose_environment_option(case: StoredCase, environment: Environment) -> str:
    """What a case is run in. Raises ReproduceError."""
    found = case.interpreter
    if environment.existing:
        over = f", {' '.join(found.overlays)} laid over it" if found.overlays else ""
        return f"{environment.label}\nPython {environment.python_version(case.cache)}, as it is{over}"
    return f"{shlex.join(found.command)}\nPython {environment.version}: {' '.join(environment.packages)}"


def _reproduce_command_case(args: argparse.Namespace) -> int:
    results = lakes.open_lake(args.results)
    case = pinned_versions.place_in_versions(
        load_stored_case(parse_row_key(args.key, results), results, args.backend, args.cache), args.packages
    )
    if args.device is not None:
        device_places.choose_device_of_row(case, args.device)
    print_reproduced_case(case)
    child = args.child or case.environment is not None
    if case.environment:
        if not case.environment.there(case.cache):
            if why := explain_no_device(case.spec, None):
                raise Refusal(f"{case.spec.name}: {why}")
            print(
                f"building the environment of {case.spec.name}: {' '.join(case.environment.packages)}",
                file=sys.stderr,
                flush=True,
            )
        print_name_and_text("environment", _choose_environment_option(case, case.environment))
    if case.stored and case.stored["status"] in DEADLY and not child:
        print(
            f"warning: the stored outcome is {case.stored['status']}: this process may not survive it; --child runs "
            "the case in a process of its own",
            file=sys.stderr,
            flush=True,
        )
    sys.stdout.flush()
    outcome = run_case_in_child(case) if child else run_case_here(case)
    device = device_places.name_devices_now(case)
    print_reproduced_outcome(case, outcome, device)
    shown, refused = True, None
    if args.out:
        try:
            if outcome.row["status"] == Status.UNAVAILABLE:
                raise NoProgram(f"no folder: {case.spec.name} is unavailable here: {outcome.row['error']}")
            write = write_finding.write_finding_in_fork if args.child else write_finding.write_finding
            shown = write(case, outcome, Path(args.out))
        except NoProgram as error:
            refused = error
    same, said = conclude_reproduction(case, outcome.row, device)
    print(said)
    found = outcome.info.runtime_version if outcome.info else ""
    if other := "" if args.packages else pinned_versions.describe_other_version(case, found):
        print_name_and_text("version", other)
    if refused:
        print(f"{'finding':13} {refused}")
    return SAME if same and shown else DIFFERENT
