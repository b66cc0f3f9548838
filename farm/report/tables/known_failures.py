"""Known failures and how they fare: which were met, which are stale or expired, which fail in another way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from farm.plan import match_known
from farm.plan.known_failure import KnownFailure
from farm.report.tables import failures_alike
from farm.report.tables.coverage import FAILED_STATUSES, JUDGED_STATUSES, list_frame_lines
from farm.report.tables.view import Line, View, ViewColumn, build_number_column, make_text_column

#: How a known failure fares, and what that means.
STATES = {
    "met": "rows failed as it says",
    "otherwise": "its cases fail in another way, which is new",
    "not met": "its cases fail, but as other entries say",
    "stale": "what it names was judged and is right",
    "expired": "its expiry date is past: it covers nothing",
    "doubled": "earlier entries cover all that it covers",
    "not tried": "nothing that it names was judged",
}
MET, OTHERWISE, NOT_MET, STALE, EXPIRED, DOUBLED, NOT_TRIED = STATES
#: Rows that are looked at to say how an entry's cases are instead.
_LOOKED_AT = 3
#: States that somebody has to look at.
BAD = (OTHERWISE, STALE, EXPIRED)


def list_known_failures(rows: pd.DataFrame, entries: Sequence[KnownFailure]) -> pd.DataFrame:
    """One line per known failure, in their order: the entry's own keys, ``state`` (one of `STATES`), ``rows`` (that it
    covers, the first of several that could), ``first_seen_on`` (backends of these where it was not seen before),
    ``otherwise`` (rows that it names, that none covers, and that are not right), ``right`` (rows that are right though
    it names them, if it is stale), ``instead`` (how those rows are that are not as it says).

    rows: of a run, or of several.
    """
    rows = rows[rows["status"].isin([*FAILED_STATUSES, *JUDGED_STATUSES])]
    met = match_known.match_known_to_rows(failures_alike.add_reduced_column(rows, entries), entries)
    today = max(map(match_known.find_day_of_time, rows["started_at"]), default="") if "started_at" in rows else ""
    counts = {
        name: pd.Series(places[places >= 0]).value_counts()
        for name, places in (("rows", met.entry), ("otherwise", met.other), ("right", met.stale))
    }
    lines, news = [], set(met.entry[met.first])
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
        elif count["otherwise"]:
            state = OTHERWISE
        else:
            state = DOUBLED if k in met.covering else NOT_MET
        # A cut of a frame as wide takes milliseconds, and there are a thousand entries, of which nearly all have no
        # such row.
        others = np.flatnonzero((met.other == k) | (met.stale == k))[:_LOOKED_AT]
        instead = (
            ", ".join(dict.fromkeys(map(_describe_how_known, list_frame_lines(rows.iloc[others]))))
            if len(others)
            else ""
        )
        first = ", ".join(sorted(set(rows["backend"][met.first & (met.entry == k)]))) if k in news else ""
        lines.append({**vars(entry), "state": state, **count, "first_seen_on": first, "instead": instead})
    return pd.DataFrame(lines, columns=[*KnownFailure.model_fields, "state", *counts, "first_seen_on", "instead"])


def _describe_how_known(line: Line) -> str:
    """How an entry or a row fails, in a few words."""
    said = [line.get(name) for name in ("status", "kind", "stage", "error_type", "error", "cause", "culprit")]
    told = [x if isinstance(x, str) else ", ".join(x) for x in said if isinstance(x, str | list | tuple)]
    return " ".join(x for x in told if x not in ("", "*")) or "any"


def _describe_where_known(line: Line) -> str:
    return line["backend"] + f" ({', '.join(line['seen'])})" * bool(line["seen"])


def _describe_entry_life(line: Line) -> str:
    until = f"until {line['expires']}" if line["expires"] else ""
    return ", ".join(filter(None, (line["versions"], until, line["owner"], line["link"])))


def view_known_failures_life(frame: pd.DataFrame, title: str) -> View:
    """The table of `list_known_failures`."""
    columns = (
        ViewColumn("state", lambda line: line["state"]),
        build_number_column("rows"),
        make_text_column("op"),
        ViewColumn("backend (seen on)", _describe_where_known, foreign=True),
        make_text_column("dtype"),
        ViewColumn("fails", _describe_how_known, foreign=True),
        ViewColumn("valid for, owner", _describe_entry_life, foreign=True),
        make_text_column("reason", length=100),
        *([make_text_column("first_seen_on", "first seen on")] if (frame["first_seen_on"] != "").any() else []),
        make_text_column("instead", "found instead", length=100),
        *([make_text_column("place", "file")] if "place" in frame else []),
    )
    states = [f"{state}: {words}" for state, words in STATES.items() if (frame["state"] == state).any()]
    return View("known", title, frame, columns, unit="known failures", counted=True, notes=states)
