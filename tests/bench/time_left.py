"""How true the time left is that a run tells: what a terminal shows, second by second, against what it then took."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.record import ROOT, Result
from tests.bench.running import Size, config_of, environment, run_command, write_one_op

#: From this second on the time left is to be within this factor.
FROM_S, FACTOR = 10.0, 2.0
_TOLD = re.compile(rb"(?:about|at least) (?:(\d+) h )?(\d+) (s|min) left")
_UNITS = {b"s": 1.0, b"min": 60.0}


def time_left(folder: Path, size: Size) -> Result:
    """Of runs with an empty cache and lake, again, and once more: the share of what is told from the tenth second on
    that is within the factor."""
    tiny = write_one_op(folder)
    figures: dict[str, float] = {}
    env = environment(folder / "cache", TERM="xterm", COLUMNS="100", LINES="40")
    for name, config in (("config", config_of(folder, size)), ("one op", tiny)):
        for day in ("cold", "second", "third"):
            told, took_s = watch(run_command(config, folder / name), env)
            figures[f"{name}, {day}: seconds"] = took_s
            figures[f"{name}, {day}: told"] = len([at for at, _ in told if at >= FROM_S])
            figures[f"{name}, {day}: share true"] = share_true(told, took_s)
    said = "; ".join(
        f"{name[: -len(': share true')]} {share:.0%} of {figures[name[: -len('share true')] + 'told']:.0f}"
        for name, share in figures.items()
        if name.endswith("share true")
    )
    return Result(figures, f"told within a factor of {FACTOR:g} from second {FROM_S:g} on: {said}")


def watch(command: Sequence[str], env: Mapping[str, str]) -> tuple[list[tuple[float, float]], float]:
    """(second, seconds left as told then) of a command on a terminal of its own, and the seconds that it took."""
    ours, theirs = pty.openpty()
    began = time.monotonic()
    child = subprocess.Popen(command, env=dict(env), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    told: list[tuple[float, float]] = []
    while True:
        try:
            said = os.read(ours, 1 << 16)
        except OSError:  # it has ended
            break
        if not said:
            break
        told += [(time.monotonic() - began, seconds) for seconds in read_told(said)[-1:]]
    code = child.wait()
    os.close(ours)
    if code not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with {code}")
    return told, time.monotonic() - began


def read_told(said: bytes) -> list[float]:
    """Seconds left, as often as they are told."""
    return [int(hours or 0) * 3600 + int(number) * _UNITS[unit] for hours, number, unit in _TOLD.findall(said)]


def share_true(told: Sequence[tuple[float, float]], took_s: float) -> float:
    """Of what is told from FROM_S on, the share within FACTOR of what was left; 1 where nothing is."""
    true = [1 / FACTOR <= seconds / (took_s - at) <= FACTOR for at, seconds in told if at >= FROM_S and took_s > at]
    return sum(true) / len(true) if true else 1.0
