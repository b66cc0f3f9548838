"""What to conclude first: the verdict on a run, what is new in it, and the causes of what failed.

What a page or a script builds on (nothing of it need be worked out again):

- `Report.rows` has columns beside the lake's, those of `add_standing_column`: ``standing`` ("new": no known failure covers it, and
  it failed, which is what makes a run's exit code 1, or is imprecise, which is said and fails no run; "known": failed and
  covered; "stale": judged and right where a known failure says otherwise; "" for all else), ``cause`` (the known failure's
  reason, of what is imprecise too; "" where there is none), ``fault`` (of a known failure, whose it is:
  `farm.plan.known_failure.KnownFailure`; "" for all else), ``only`` (the structure of an input that it takes:
  `farm.report.tables.failing_structures`; "" for none) and ``first_seen`` (whether it failed, or is imprecise, as known failures say
  that were not seen on its backend before).
- `verdict(rows, run)`: the `RunVerdict`, with its sentence and its counts.
- `causes(rows)`: failed rows by their known reason, and before them what is new, what is alike in one line.
- `stale(rows, run)`: the known failures that were not seen: what they name was judged and is right.

`farm.report.tables.ranking` has the ranking of backends, `farm.report.tables.since_last_run` what changed since the last run.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd

from farm.plan import match_known
from farm.plan.known_failure import KnownFailure
from farm.program import write_resume_command
from farm.report.tables import failing_structures, failures_alike
from farm.report.tables.coverage import (
    FAILED_STATUSES,
    JOINED_BY,
    JUDGED_STATUSES,
    find_blameless_rows,
    keep_distinct_rows,
    list_frame_lines,
    list_inventory_backends,
    make_reproduce_commands,
    rank_status_column,
)
from tasks.model import Status, culprit
from tasks.model.failing import describe_failure_manner, describe_unjudged_rows
from tasks.model.kind import KIND_ORACLE
from tasks.model.row import YOUR_OWN

#: What a row means for who looks at it: see the module's text.
STANDINGS = ("new", "known", "stale")
NEW, KNOWN, STALE = STANDINGS
#: How a row failed, in the columns of the lake.
HOW = [
    *("kind", "culprit", "stage", "error_type", "error"),
    *("error_units", "max_ulp", "limit", "op_class", "max_diff", "mismatched", "numel", "beyond", "worst"),
]
#: What `causes` tells of each.
_TOLD = [
    *("standing", "fault", "first_seen", "reason", "only", "rows", "cases", "ops", "statuses", "backends", "dtypes"),
    *("all_ops", "labels"),
    *("op", "variant", "dtype", "backend", "status", *HOW, "cause", "case_id", "run_id", "reproduce"),
]

#: What in a cause is its own case's: of another size it begins elsewhere.
_ELEMENT = re.compile(r"(?<=\belement )\d+")

#: Reasons why checks judged nothing that one line tells.
_TOLD_REASONS = 3
#: Names in a list of a line.
SHOWN = 3


@dataclass(frozen=True)
class RunVerdict:
    """What to conclude of a run; ``sentence`` says it in one line: the ``conclusion`` and, last, to be copied, the
    command that goes on (``ending``).

    failures: rows that failed; apart: of these, those that known failures say are no backend's fault; new: of these,
    those that no known failure covers; first_seen: of these, those that known failures cover which were not seen on
    their backend before; imprecise: imprecise rows that none covers; unjudged: samples of own kernels and models that
    are broken; judged: rows that were judged; missing: of ``planned`` rows, those that are not there (planned is 0
    where the record does not say); gone: rows that were not run, since their backend went away; finished: whether the
    run came to its end; recorded: whether the record says what is known; listed: whether the config lists anything as
    known; left_out: what --budget left out, in words; silent: where no row was judged, what the rows say; unseen:
    checks of own kernels and models that judged nothing (`list_unseen_checks`); resume: the command that goes on;
    unusable: why backends could not be used for what the user gave them (`tasks.model.Broken`).
    """

    failures: int
    new: int
    imprecise: int
    unjudged: int
    judged: int
    planned: int = 0
    missing: int = 0
    gone: int = 0
    finished: bool = True
    recorded: bool = True
    listed: bool = True
    left_out: str = ""
    silent: str = ""
    first_seen: int = 0
    unseen: str = ""
    apart: int = 0
    resume: str = ""
    unusable: str = ""

    @property
    def has_findings(self) -> bool:
        """Whether there is something new, something of the user's own could not be used or judged, or nothing was
        judged at all: the run's exit code is then 1, if it is complete."""
        return bool(self.new or self.unjudged or self.unusable or not self.judged)

    @property
    def tone(self) -> str:
        """How it looks: "ok", "new" for what asks for a look, "" where nothing can be said."""
        if self.has_findings or self.missing or not self.finished:
            return "new"
        return "ok" if self.recorded and not self._lacks() else ""

    @property
    def sentence(self) -> str:
        return f"{self.conclusion}{self.ending}"

    @property
    def ending(self) -> str:
        """How to go on with an incomplete run or with what --budget left out; "" where there is nothing to go on with."""
        if not (self.left_out or self._lacks()):
            return ""
        return f". Resume with: {self.resume}" if self.resume else "; resume the run"

    @property
    def conclusion(self) -> str:
        """The sentence without its ending."""
        said = "; ".join(
            filter(
                None,
                (
                    self._describe_failure_count(),
                    count_with_noun(self.imprecise, "new imprecise result") * bool(self.imprecise and self.listed),
                    self._describe_unjudged(),
                    self.unusable,
                    self.unseen,
                    self.left_out,
                ),
            )
        )
        if lacks := self._lacks():
            return f"INCOMPLETE: {lacks}. So far: {said}"
        return said if self.has_findings or not self.recorded else f"OK: {said}"

    def _lacks(self) -> str:
        if self.missing:
            return f"{self.missing:,} of {self.planned:,} planned cases have no row yet"
        if self.gone:
            verb, whose = ("was", "its") if self.gone == 1 else ("were", "their")
            return f"{count_with_noun(self.gone, 'planned case')} {verb} not run because {whose} backend went away"
        return "" if self.finished else "the run did not finish"

    def _describe_failure_count(self) -> str:
        if self.failures and not self.recorded:
            return f"{count_with_noun(self.failures, 'failure')}; the run's record does not say which of them are known"
        if self.new and not self.listed:
            return f"{count_with_noun(self.new, 'failure')}; the config lists none as known"
        first = f", {self.first_seen:,} of them first seen here" * bool(self.first_seen)
        first += f" ({self.apart:,} no backend's fault)" * bool(self.apart)
        if self.new:
            known = self.failures - self.new
            return f"{count_with_noun(self.new, 'new failure')}" + f", {known:,} known{first}" * bool(known)
        if self.failures:
            return f"{count_with_noun(self.failures, 'failure')}, all known{first}"
        silent = f"nothing was judged: {self.silent}" if self.silent else "nothing was judged"
        return f"no failures in {count_with_noun(self.judged, 'result')}" if self.judged else silent

    def _describe_unjudged(self) -> str:
        what = f"{count_with_noun(self.unjudged, 'sample')} of your own could not be judged: model, reference or inputs are broken"
        told = self.silent and not (self.judged or self.failures)  # `_describe_failure_count` says why
        return what if self.unjudged and not told else ""


def count_with_noun(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _is_own_op(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of a user's own kernels and models."""
    own = rows["catalog"] == "user"
    return own | (rows["licence"] == YOUR_OWN) if "licence" in rows else own


def list_unseen_checks(rows: pd.DataFrame) -> str:
    """Checks that a config asks for of own kernels and models, and that judged nothing on any backend, with the reason;
    "" if there are none. What is broken, or was not run, is told elsewhere."""
    own = rows[_is_own_op(rows) & ~is_broken(rows) & (rows["status"] != Status.UNAVAILABLE.value)]
    if own.empty:
        return ""
    judged = own["status"].isin(JUDGED_STATUSES).groupby([own["op"], own["check"]]).transform("any")
    silent = own[~judged.astype(bool)].drop_duplicates(["op", "check"])
    silent = silent.assign(why=_explain_unjudged_rows(silent))
    by_reason: dict[tuple[str, str], list[str]] = {}
    for line in list_frame_lines(silent):
        (reason,) = describe_unjudged_rows([(line["status"], line["why"])]) or [line["status"]]
        by_reason.setdefault((line["check"], reason), []).append(line["op"].partition(":")[2])
    told = [
        f"{check} of {join_first_names(ops)} ({shorten(reason, 160, placeholder=' …')})"
        for (check, reason), ops in by_reason.items()
    ]
    more = f"; and {count_with_noun(len(told) - _TOLD_REASONS, 'more reason')}" * (len(told) > _TOLD_REASONS)
    return f"not judged: {'; '.join(told[:_TOLD_REASONS])}{more}" if told else ""


def _explain_unjudged_rows(rows: pd.DataFrame) -> pd.Series:
    """Why rows are in no pass rate: what a vote said of them, else their error."""
    return rows["error"].where(rows["acquitted"].fillna("") == "", rows["acquitted"])


def join_first_names(names: Sequence[str], between: str = ", ") -> str:
    """The first names, and how many more there are."""
    return between.join(names[:SHOWN]) + f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)


def is_broken(rows: pd.DataFrame) -> pd.Series:
    """Which rows are a user's own kernels and models that could not be judged: model, reference or inputs are at
    fault."""
    return _is_own_op(rows) & (rows["status"] == Status.INVALID.value) & (rows["kind"].fillna("") != KIND_ORACLE)


def add_standing_column(rows: pd.DataFrame, run: Mapping[str, Any]) -> pd.DataFrame:
    """Rows with the columns ``standing``, ``cause``, ``fault`` and ``first_seen``: see the module's text."""
    return match_known_failures(rows, run)[0]


def match_known_failures(rows: pd.DataFrame, run: Mapping[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(`add_standing_column`, `stale`) of rows."""
    entries = match_known.parse_known_entries(run) or []
    failed = rows["status"].isin(FAILED_STATUSES) | is_broken(rows)
    some = rows[failed | rows["status"].isin(JUDGED_STATUSES)]
    met = match_known.match_known_to_rows(
        failures_alike.add_reduced_column(some, entries) if entries else some, entries
    )
    covered, gone = (
        pd.Series(places, index=some.index).reindex(rows.index, fill_value=-1) for places in (met.entry, met.stale)
    )
    named = covered >= 0
    standing = pd.Series("", index=rows.index, dtype=object).mask(gone >= 0, STALE)
    standing = standing.mask((failed | (rows["status"] == Status.IMPRECISE.value)) & ~named, NEW)
    standing = standing.mask(failed & named, KNOWN)
    place = covered.where(named, gone.where(standing == STALE, -1))

    def to_column(texts: list[str], places: pd.Series) -> pd.Series:
        return pd.Series(
            map([*texts, ""].__getitem__, places), index=rows.index, dtype=object
        )  # the place -1 is the last

    reason = to_column([entry.reason for entry in entries], place)
    if "cause" in rows:
        reason = reason.where(standing != NEW, rows["cause"].fillna(""))  # the error model that explains it
    told = rows.assign(
        standing=standing,
        cause=reason,
        fault=to_column([entry.fault for entry in entries], covered.where(standing == KNOWN, -1)),
        first_seen=pd.Series(met.first, index=some.index).reindex(rows.index, fill_value=False),
        only=failing_structures.find_only_failing_structure(rows),
    )
    lines = []
    for of in met.gone:
        found = some["status"][met.stale == of].value_counts()
        right = " · ".join(f"{status} {count}" for status, count in found.items())
        lines.append({**vars(entries[of]), "rows": int(found.sum()), "found": right})
    return told, pd.DataFrame(lines, columns=[*KnownFailure.model_fields, "rows", "found"])


def verdict(rows: pd.DataFrame, run: Mapping[str, Any]) -> RunVerdict:
    """The `RunVerdict` on the rows of a run; ``rows``: with or without their standing."""
    rows = rows if "standing" in rows else add_standing_column(keep_distinct_rows(rows), run)
    failed, own = rows["status"].isin(FAILED_STATUSES), is_broken(rows)
    new, imprecise = rows["standing"] == NEW, rows["status"] == Status.IMPRECISE.value
    judged = int(rows["status"].isin(JUDGED_STATUSES).sum())
    said, entries = run.get("planned"), match_known.parse_known_entries(run)
    planned = said if isinstance(said, int) else 0
    return RunVerdict(
        failures=int(failed.sum()),
        new=int((failed & new).sum()),
        imprecise=int((imprecise & new).sum()),
        unjudged=int(rows.loc[own & new, "case_id"].nunique()),
        judged=judged,
        planned=planned,
        missing=max(0, planned - len(rows)),
        gone=int((rows["status"] == Status.UNAVAILABLE.value).sum()),
        finished=said is not None or not run.get("config") or run.get("finished_at") is not None,
        recorded=entries is not None,
        listed=bool(entries),
        left_out=_describe_rows_left_out(run) if run.get("left_out") else "",
        resume=write_resume_command(run, str(rows.attrs.get("results", "results"))) if run.get("run_id") else "",
        first_seen=int((failed & rows["first_seen"]).sum()),
        apart=int((failed & find_blameless_rows(rows)).sum()),
        unseen=list_unseen_checks(rows) if judged else "",
        unusable=_explain_unusable_backends(run),
        silent=""
        if judged
        else shorten(
            "; ".join(describe_unjudged_rows(zip(rows["status"], _explain_unjudged_rows(rows)))), 300, placeholder=" …"
        ),
    )


def _explain_unusable_backends(run: Mapping[str, Any]) -> str:
    found = [x for x in list_inventory_backends(run.get("inventory")).values() if x.get("broken")]
    told = "; ".join(shorten(str(x.get("reason")), 300, placeholder=" …") for x in found)
    return f"not judged: {told}" if told else ""


def _describe_rows_left_out(run: Mapping[str, Any]) -> str:
    told = run.get("left_out")
    if not isinstance(told, Mapping):
        return ""
    minutes, seconds = divmod(int(told["budget_s"]), 60)
    budget = f"{minutes}m" * bool(minutes) + f"{seconds}s" * bool(seconds)
    partly = told.get("partly", 0)
    if not told["cells"]:
        return f"{count_with_noun(partly, 'cell')} judged in part within --budget {budget}"
    left = f"{count_with_noun(told['cells'], 'cell')} left out by --budget {budget}, not judged"
    return f"{left}, and {partly} judged in part" if partly else left


def sort_worst_first(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by severity; within a status those without error units (a shape, a misplaced NaN), then the largest."""
    made = rows.assign(rank=rank_status_column(rows["status"]), size=-rows["error_units"].fillna(math.inf))
    return made.sort_values(["rank", "size", "op", "variant", "dtype", "backend"], kind="stable")


def _most_telling_first(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """`sort_worst_first` rows, but of the checks of one case's op, dtype and backend that fail alike first the one that
    names a culprit.

    A check that says where it goes wrong (a step, a node, a level of optimisation) tells more than one that sees the
    end result alone, whichever of their errors is larger.
    """
    alike = rows.groupby([*keys, "status", "op", "variant", "dtype", "backend"], sort=False).ngroup()
    return rows.iloc[np.lexsort(((rows["culprit"] == "").to_numpy(), alike.to_numpy()))]


def causes(rows: pd.DataFrame) -> pd.DataFrame:
    """Why rows failed: one line per reason of a known failure (two where it was first seen on some backends), the
    commonest first, and before them what is new.

    ``rows``: with their standing (`add_standing_column`). Of what is new one line for what is alike, the worst first: what
    one vendor gets wrong in the same way (``kind``) in one op or by one pass of an optimiser, or an error that says the
    same, whatever the op. reason: the known failure's; of what is new its kind, or stage and class of error, and the
    ops. rows, ops: how many; cases: the same of several backends of a vendor counted once; fault: whose a known failure
    is; statuses: rows by status; backends, dtypes, all_ops, labels (ops with their variants): the commonest first; op,
    variant, dtype, backend, status, kind, stage, error, figures, cause, case_id, run_id: of the worst row; reproduce:
    the command that shows it.
    """
    results = str(rows.attrs.get("results", "results"))
    failed = rows[rows["status"].isin(FAILED_STATUSES) | is_broken(rows)]
    new, keys = failed["standing"] == NEW, ["standing", "fault", "first_seen", "alike"]
    failed = failed.assign(alike=failed["cause"], case=failed["vendor"] + JOINED_BY + failed["case_id"])
    failed.loc[new, "alike"] = [_describe_common_traits(line) for line in list_frame_lines(failed[new])]
    listed = {"backends": "backend", "dtypes": "dtype", "all_ops": "op", "labels": "label"}
    sums = failed.groupby(keys, sort=False).agg(
        rows=("case_id", "size"),
        cases=("case", "nunique"),
        ops=("op", "nunique"),
        statuses=(
            "status",
            lambda x: " · ".join(f"{name} {count}" for name, count in _count_commonest_names(x).items()),
        ),
        **{words: (name, lambda x: ", ".join(_count_commonest_names(x))) for words, name in listed.items()},
    )
    made = _most_telling_first(sort_worst_first(failed), keys).drop_duplicates(keys).join(sums, on=keys)
    new = made["standing"] == NEW
    said = pd.Series([_describe_failures(line) for line in list_frame_lines(made)], index=made.index, dtype=object)
    made = made.assign(
        reason=said.where(new, made["cause"]), old=~new, rank=made["rank"].where(new, 0), most=-made["cases"]
    )
    made = made.sort_values(["old", "rank", "most"], kind="stable")
    return made.assign(reproduce=make_reproduce_commands(made, results))[_TOLD].reset_index(drop=True)


def describe_cause_counts(causes: pd.DataFrame) -> str:
    """How many failed rows, cases and causes there are, and why these are not the same; "" where rows and cases are.
    causes: of `causes`."""
    failed = causes[causes["status"] != Status.INVALID.value]
    rows, cases = (int(failed[name].sum()) for name in ("rows", "cases"))
    return (
        f"{count_with_noun(rows, 'failed row')} (a row is a case on a backend): {count_with_noun(cases, 'case')} of {count_with_noun(len(failed), 'cause')}. A case that "
        "several backends of a vendor fail for the same cause counts once."
    ) * (rows != cases)


def _count_commonest_names(names: pd.Series) -> dict[str, int]:
    """How often each occurs, the commonest first."""
    return dict(sorted(sorted(collections.Counter(names).items()), key=lambda counted: -counted[1]))


def _describe_common_traits(line: Mapping[str, Any]) -> str:
    """What new failures that are told in one line have in common."""
    shared = culprit.find_culprit_kind(line["culprit"]) in culprit.SHARED  # of whatever op or model
    how = describe_failure_manner(line, [line["op"].partition(":")[2]])
    what = "" if line["error_type"] else line["culprit"] if shared else line["op"]  # an error says the same of any op
    whose = "" if line["status"] == Status.INVALID.value else line["vendor"]  # what is broken is so for everybody
    return JOINED_BY.join([whose, *how, line["only"] or _ELEMENT.sub("", line["cause"]), what])


def _describe_failures(line: Mapping[str, Any]) -> str:
    """What new failures are, in a few words: "numbers: log_softmax, softmax"."""
    ops = [op.partition(":")[2] for op in line["all_ops"].split(", ")]
    words = dict.fromkeys(filter(None, (line[name] for name in ("only", "cause", "kind", "stage", "error_type"))))
    return f"{', '.join(words)}: {', '.join(ops[:3])}" + f" and {len(ops) - 3} more ops" * (len(ops) > 3)


def stale(rows: pd.DataFrame, run: Mapping[str, Any]) -> pd.DataFrame:
    """Known failures that were not seen: what they name was judged and is right (`farm.plan.match_known.Met`).

    Columns: the entry's (`farm.plan.known_failure.KnownFailure`), rows (those with the standing "stale"
    for it), found (their statuses and counts).
    """
    return match_known_failures(rows, run)[1]
