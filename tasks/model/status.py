"""Statuses: what happened to one case on one backend. One row of facts each, from which all else is made."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What a status means, where it counts and how it looks.

    severity: rank in reports, the lowest number is the worst; ``pass`` stands before what says nothing about a backend
    (invalid, vacuous, skipped), so that one empty sample does not hide that everything else of a square passed.
    counts: "passed" and "failed" are judged, which is the pass rate's denominator; "gap" lowers coverage; "void" is no
    valid case and counts nowhere. finding: worth a line in a list of findings (what failed always is). measured: the
    numbers decide it, so that another policy may decide otherwise. deadly: it takes the process down.
    sign: one character, so that colour is not the only signal; style: on the terminal (rich); light, dark: background
    and text in the page; ink: in pictures, on white.
    """

    severity: int
    counts: str
    sign: str
    style: str
    light: str
    dark: str
    meaning: str
    ink: str = "#59636e"
    finding: bool = False
    measured: bool = False
    deadly: bool = False


class Status(str, enum.Enum):
    """What happened to one case on one backend; a closed set. Adding one is adding a row here."""

    facts: Facts

    def __new__(cls, value: str, facts: Facts | None = None) -> Status:
        assert facts is not None, "a row of the table below; Status(value) looks one up and never comes here"
        self = str.__new__(cls, value)
        self._value_ = value
        self.facts = facts
        return self

    PASS = (
        "pass",
        Facts(
            110,
            "passed",
            "P",
            "",
            "#d3ebe4 #12473a",
            "#1d4238 #a9e3d0",
            ink="#8a8f98",
            measured=True,
            meaning="It ran on the intended device and is within the policy's limit.",
        ),
    )
    IMPRECISE = (
        "imprecise",
        Facts(
            70,
            "passed",
            "I",
            "yellow",
            "#f5e13b #2b2600",
            "#d8c52a #221e00",
            ink="#d98e04",
            measured=True,
            finding=True,
            meaning="Right function, lost precision: beyond the policy's limit, within 8 times that or the classic tolerance.",
        ),
    )
    WRONG = (
        "wrong",
        Facts(
            40,
            "failed",
            "W",
            "red",
            "#d55e00 #fff",
            "#e8761c #190b00",
            ink="#c2182b",
            measured=True,
            meaning="It is outside the policy: numbers, misplaced NaN or Inf, shape or dtype; `kind` says which.",
        ),
    )
    ERROR = (
        "error",
        Facts(
            50,
            "failed",
            "E",
            "magenta",
            "#b5559a #fff",
            "#cf78b6 #22061a",
            meaning="The backend raised where the reference did not; `stage` says where: export, build or run.",
        ),
    )
    CRASH = (
        "crash",
        Facts(
            10,
            "failed",
            "C",
            "bold red",
            "#111 #fff",
            "#f4f4f4 #000",
            deadly=True,
            meaning="The process died; `kind` is the signal or the exit code.",
        ),
    )
    TIMEOUT = (
        "timeout",
        Facts(
            20,
            "failed",
            "T",
            "bold red",
            "#0a4f8f #fff",
            "#4a97e0 #00152b",
            deadly=True,
            meaning="It exceeded its deadline.",
        ),
    )
    OOM = (
        "oom",
        Facts(
            30,
            "failed",
            "M",
            "bold red",
            "#5b3a8e #fff",
            "#a884e6 #170630",
            deadly=True,
            meaning="The process or the device ran out of memory.",
        ),
    )
    FALLBACK = (
        "fallback",
        Facts(
            80,
            "gap",
            "F",
            "cyan",
            "#7cc4ee #05283d",
            "#2f7aa6 #eaf7ff",
            meaning="Right or wrong, it did not run where asked: a CPU provider took the node, a graph break ran "
            "eagerly, no kernel was generated.",
        ),
    )
    UNSUPPORTED = (
        "unsupported",
        Facts(
            90,
            "gap",
            "U",
            "",
            "#d9dde2 #3c454e",
            "#414a53 #d0d7de",
            meaning="The backend says it does not implement this, or it takes none of the op's forms.",
        ),
    )
    INVALID = (
        "invalid",
        Facts(
            120,
            "void",
            "X",
            "",
            "#eceff2 #59636e",
            "#262c32 #9aa5b0",
            meaning="The case itself is bad: the reference raises too, or the right result is unknown; `kind` says why.",
        ),
    )
    VACUOUS = (
        "vacuous",
        Facts(
            130,
            "void",
            "V",
            "",
            "#eceff2 #59636e",
            "#262c32 #9aa5b0",
            meaning="Nothing was computed or compared: no samples, no elements, an exported graph without nodes.",
        ),
    )
    UNAVAILABLE = (
        "unavailable",
        Facts(
            100,
            "gap",
            "N",
            "",
            "#f3f5f8 #59636e",
            "#1d2227 #9aa5b0",
            meaning="No node offers the backend, for a stated reason; only a node lost mid-run leaves rows.",
        ),
    )
    SKIPPED = (
        "skipped",
        Facts(
            140,
            "void",
            "S",
            "",
            "#eceff2 #59636e",
            "#262c32 #9aa5b0",
            meaning="The config leaves it out, with a reason.",
        ),
    )
    LOST = (
        "lost",
        Facts(
            60,
            "gap",
            "L",
            "bold red",
            "#8f1d1d #fff",
            "#ef6a6a #2b0000",
            finding=True,
            meaning="It was planned but never judged; a finished run has none.",
        ),
    )

    def __str__(self) -> str:
        return str(self.value)

    @property
    def passed(self) -> bool:
        """The numerator of the pass rate."""
        return self.facts.counts == "passed"

    @property
    def failed(self) -> bool:
        """Judged and not acceptable."""
        return self.facts.counts == "failed"

    @property
    def judged(self) -> bool:
        """The denominator of the pass rate: the case ran and was compared, or failed to."""
        return self.passed or self.failed

    @property
    def valid(self) -> bool:
        """The denominator of coverage; what is not valid says nothing about a backend."""
        return self.facts.counts != "void"

    @property
    def finding(self) -> bool:
        """Worth a line in a list of findings."""
        return self.failed or self.facts.finding

    @property
    def deadly(self) -> bool:
        """It takes the process down."""
        return self.facts.deadly


#: The worst first.
BY_SEVERITY = tuple(sorted(Status, key=lambda status: status.facts.severity))
PASSED = tuple(status for status in Status if status.passed)
FAILED = tuple(status for status in Status if status.failed)
JUDGED = tuple(status for status in Status if status.judged)
NOT_VALID = tuple(status for status in Status if not status.valid)
#: What the numbers decided.
MEASURED = tuple(status for status in Status if status.facts.measured)
DEADLY = tuple(status for status in Status if status.deadly)
FINDINGS = tuple(status for status in BY_SEVERITY if status.finding)


def name_statuses(statuses: Iterable[Status]) -> list[str]:
    """Statuses as a lake's column has them: plain text."""
    return [str(status.value) for status in statuses]
