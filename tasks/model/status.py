"""Statuses: what happened to one case on one backend, a closed set."""

from __future__ import annotations

import enum


class Status(str, enum.Enum):
    """What happened to one case on one backend; a closed set, defined in the README."""

    PASS = "pass"
    IMPRECISE = "imprecise"
    WRONG = "wrong"
    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OOM = "oom"
    FALLBACK = "fallback"
    UNSUPPORTED = "unsupported"
    INVALID = "invalid"
    VACUOUS = "vacuous"
    UNAVAILABLE = "unavailable"
    SKIPPED = "skipped"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


#: Statuses that say the numbers of a backend were looked at (the denominator of the pass rate).
JUDGED = (Status.PASS, Status.IMPRECISE, Status.WRONG, Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM)
#: Judged and not acceptable.
FAILED = (Status.WRONG, Status.ERROR, Status.CRASH, Status.TIMEOUT, Status.OOM)
#: Says nothing about a backend: the case itself computes or compares nothing.
NOT_VALID = (Status.INVALID, Status.VACUOUS, Status.SKIPPED)
