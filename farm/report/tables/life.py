"""Known failures and how they fare: which were met, which are stale or expired, which fail in another way."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from farm.plan import known
from farm.plan.model import KnownFailure
from farm.report.tables import alike
from farm.report.tables.coverage import FAILED_STATUSES, JUDGED_STATUSES
from farm.report.tables.view import Column, Line, View, measured, text

#: How a known failure fares, and what that means.
STATES = {
    "met": "rows failed as it says",
    "otherwise": "its cases fail in another way, which is new",
    "stale": "what it names was judged and is right",
    "expired": "its last day is past: it covers nothing",
    "doubled": "others, before it, cover all that it does",
    "not tried": "nothing that it names was judged",
}
MET, OTHERWISE, STALE, EXPIRED, DOUBLED, NOT_TRIED = STATES
#: States that somebody has to look at.
BAD = (OTHERWISE, STALE, EXPIRED)


def life(rows: pd.DataFrame, entries: Sequence[KnownFailure]) -> pd.DataFrame:
    """One line per known failure, in their order: the entry's own keys, ``state`` (one of `STATES`), ``rows`` (that it covers, the
    first of several that could), ``otherwise`` (rows that it names, that none covers, and that are not right), ``right`` (rows that are
    right though it names them, if it is stale).

    rows: of a run, or of several.
    """
    rows = rows[rows["status"].isin([*FAILED_STATUSES, *JUDGED_STATUSES])]
    met = known.met(alike.with_reduced(rows, entries), entries)
    today = max(map(known.day_of, rows["started_at"]), default="") if "started_at" in rows else ""
    counts = {
        name: pd.Series(places[places >= 0]).value_counts()
        for name, places in (("rows", met.entry), ("otherwise", met.other), ("right", met.stale))
    }
    lines = []
    for k, entry in enumerate(entries):
        count = {name: int(found.get(k, 0)) for name, found in counts.items()}
        if entry.expires and today > entry.expires:
            state = EXPIRED
        elif count["rows"]:
            state = MET
        elif k in met.gone:
            state = STALE
        elif k in met.idle:
            state = NOT_TRIED
        else:
            state = OTHERWISE if count["otherwise"] else DOUBLED
        lines.append({**vars(entry), "state": state, **count})
    return pd.DataFrame(lines, columns=[*KnownFailure.model_fields, "state", *counts])


def _how(line: Line) -> str:
    """How it fails, in a few words."""
    kind = line["kind"] if isinstance(line["kind"], str) else ", ".join(line["kind"])
    said = [line[name] for name in ("status", "stage", "error_type", "error", "cause", "culprit")]
    return " ".join(x for x in (said[0], kind, *said[1:]) if x not in ("", "*")) or "any"


def _life(line: Line) -> str:
    until = f"until {line['expires']}" if line["expires"] else ""
    return ", ".join(filter(None, (line["versions"], until, line["owner"], line["link"])))


def life_view(frame: pd.DataFrame, title: str) -> View:
    """The table of `life`."""
    columns = (
        Column("state", lambda line: line["state"]),
        measured("rows"),
        text("op"),
        text("backend"),
        text("dtype"),
        Column("fails", _how, foreign=True),
        Column("holds, owner", _life, foreign=True),
        text("reason", length=100),
    )
    states = [f"{state}: {words}" for state, words in STATES.items() if (frame["state"] == state).any()]
    return View("known", title, frame, columns, unit="known failures", counted=True, notes=states)
