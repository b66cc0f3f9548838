"""Every device computes known products for a minute, and equals are compared: farm node screen [BACKEND…] --seconds 60"""

from __future__ import annotations

import math
from collections.abc import Sequence

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.exits import allow_interrupts
from farm.fleet.detect_vendors import explain_no_device_of
from farm.options.screen import make_parser
from farm.plan import request as requests
from farm.plan.config import ConfigError, read_config_backends
from farm.program import name_farm_program
from farm.screening import show
from farm.screening.run import SCREEN, Screening, find_device_backends, make_screening_request


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if not (args.seconds > 0 and math.isfinite(args.seconds)):
        parser.error(f"--seconds: {args.seconds:g} is no time; more than 0")
    if args.seed < 0:
        parser.error("--seed: 0 or more")
    lake = lakes.open_lake(args.results)
    where = {"how": args.on, "address": args.address, "dashboard": False}
    if args.resume:
        request = requests.read_run_request(args.resume, lake, **where)
        if request.config.checks != [SCREEN]:
            raise ConfigError(
                f"--resume {args.resume}: it is no run of {name_farm_program()} node screen; use {name_farm_program()} run --resume"
            )
        specs = [b.spec() for b in request.config.backends]
    else:
        specs = read_config_backends(args.backends, "farm node screen") or find_device_backends()
        request = make_screening_request(lake, specs, cache=args.cache, **where)
    request.announce()
    lakes.check_lake_writable(lake)
    screening = Screening(request, specs, args.seconds, args.seed)
    try:
        return _run_screen_command(screening, named=bool(args.backends or args.resume))
    finally:
        screening.close()


def _run_screen_command(screening: Screening, named: bool) -> int:
    for offer in screening.offers.values():
        if offer.ranks > 1:
            raise ConfigError(
                f"{offer.name}: a job of it takes {offer.ranks} devices and tells of none of them; name a backend of one"
            )
    missing = [offer for offer in screening.offers.values() if not offer.available]
    if not screening.available:
        why = "; ".join(f"{o.name}: {o.words}" for o in missing) if named else ""
        why = why or explain_no_device_of(o.absent for o in missing) or "no device that torch can use"
        more = (
            ""
            if named
            else "; the cores of a CPU are screened by name: " + f"{name_farm_program()} node screen torch-cpu"
        )
        raise ConfigError(f"there is nothing to screen: {why}{more}")
    if named:
        show.print_missing_devices(missing)
    done = screening.read_done()
    with allow_interrupts():
        for offer in screening.available:
            show.print_screened_offer(offer, screening.seconds)
            screening.screen(offer, done.get(offer.name, ()), show.print_screened_device)
    screening.finish()
    return show.print_screening_end(screening, [o.name for o in missing] if named else [])
