"""What `farm node screen` prints: a line for each device as it ends, then who is wrong, with the evidence."""

from __future__ import annotations

from collections.abc import Sequence

from farm.commandline import clean_line
from farm.exits import FOUND, INCOMPLETE, OK
from farm.fleet.inventory import BackendOffer
from farm.program import name_farm_program
from farm.screening.run import ScreenedDevice, Screening
from tasks.screen.decide import COMMON, DISSENT, EQUALS

#: Exercises of one device that are named.
NAMED = 6


def print_missing_devices(missing: Sequence[BackendOffer]) -> None:
    for offer in missing:
        print(f"{offer.name}: unavailable: {clean_line(offer.words)}")


def print_screened_offer(offer: BackendOffer, seconds: float) -> None:
    count = sum(offer.devices.values())
    what = ("core" if offer.resource == "CPU" else "device") + "s" * (count != 1)
    print(f"{offer.name}: {count} {what}, {seconds:g} s on each: {clean_line(offer.words)}", flush=True)


def print_screened_device(device: ScreenedDevice) -> None:
    """One that has ended; who is wrong is known when all have."""
    ran = [one for one in device.observed if one.variants]
    passes = max((one.passes for one in ran), default=0)
    pass_s = max((one.pass_s for one in ran), default=0.0)
    left = len(device.observed) - len(ran)
    not_run = f", {left} it does not run" if left else ""
    died = f", died in {len(device.deaths)}" if device.deaths else ""
    why = f": {clean_line(device.reason)}" if device.reason else ""
    print(f"  {device.name}: {len(ran)} exercises, {passes} passes of {pass_s:.2g} s{not_run}{died}{why}", flush=True)


def print_screening_end(screening: Screening, missing: Sequence[str]) -> int:
    """What was found, and the exit code."""
    devices = screening.devices
    groups: dict[tuple[str, ...], int] = {}
    for device in devices:
        if device.observed:
            groups[device.equal_to] = groups.get(device.equal_to, 0) + 1
    for key, count in groups.items():
        if count < EQUALS:
            equals = "no equal device" if count == 1 else "one equal device alone"
            print(f"{key[0]} on {key[1] or 'its device'}: {equals}, no majority: by exact answers and bounds only")
    for device in devices:
        for label, decision in device.decisions.items():
            if decision.kind == DISSENT:
                print(f"dissent: {device.name} {label}: {decision.why}")
    common = sorted(
        {(d.backend, label, c.why) for d in devices for label, c in d.decisions.items() if c.kind == COMMON}
    )
    for backend, label, why in common:
        print(f"wrong on all equal devices of {backend}, so none is blamed: {label}: {why}")
    sick = [device for device in devices if device.wrong]
    for device in sick:
        print(
            f"quarantined: {device.name} for {device.backend}: {len(device.wrong)} of {len(device.decisions)} exercises wrong"
        )
        for label, decision in list(device.wrong.items())[:NAMED]:
            seen = next(one for one in device.observed if one.label == label)
            heat = seen.variants[decision.at[0]].heat
            print(f"  {label} ({seen.unit}): {decision.why}" + f" [{heat}]" * bool(heat))
    failed = sick or common or [d for d in devices if d.deaths or any(one.error_type for one in d.observed)]
    unreached = [d for d in devices if not d.observed]
    verdict = (
        f"{len(sick)} of {len(devices)} devices wrong"
        if sick
        else f"no device of {len(devices)} is wrong"
        if not failed
        else "failures"
    )
    code = FOUND if failed else INCOMPLETE if unreached or missing else OK
    gaps = f"; {len(unreached)} not reached" if unreached else ""
    print(
        f"{verdict}{gaps}; {name_farm_program()} report {screening.request.lake.uri} --run {screening.run_id} (exit code {code})"
    )
    return code
