"""The whole search: a failing case is run again, made smaller by each strategy, and what is left is run once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tasks.draw import structure
from tasks.hunt.call_case import CallCase
from tasks.hunt.case import HuntCase
from tasks.hunt.chosen_case import ChosenCase
from tasks.hunt.dialogue import Ask, NotFailing, Search, Unfit
from tasks.hunt.graph_case import GraphCase
from tasks.hunt.minimise import numbers, parts, sizes, strategies
from tasks.hunt.minimise.choices import minimise_choices
from tasks.hunt.minimise.question import MinimiseQuestion, Spent
from tasks.hunt.minimise.same import StoredFailure
from tasks.hunt.minimise.strategies import SEQUENCE as SEQUENCE
from tasks.hunt.minimise.toggles import list_case_toggles
from tasks.hunt.traced_case import TracedCase
from tasks.model import OpClass, Status
from tasks.model.row import Row

#: Runs of a case that say whether it always fails: at the beginning, at the end (one of a hang, with its whole
#: deadline).
FIRST, LAST = 2, 2
#: Runs of a case that did not fail at once before it is given up, or said to be flaky.
TRIES = 6
#: Runs that are kept for the end, and for toggling what is left.
KEPT = 24


@dataclass(frozen=True)
class FailureTrigger:
    """One thing about the minimal case put otherwise, and what came of it. status: "" where the reference does not take
    it."""

    what: str
    status: str
    fails: bool


@dataclass(frozen=True)
class MinimalCase:
    """What a search ends with. case: None where it could not be taken apart (the stored one is the minimal one then);
    failure: as it was looked for; row: of the last run of the minimal case; runs: of the backend; failed, tried: of
    runs of the minimal case alone, in new processes; before: numbers of the earlier cases that it takes; why: what else
    is to be said; by_parts: its status by the reference of its parts, where that is another failure than the stored
    one, or none.
    """

    case: HuntCase | None
    failure: StoredFailure
    row: Row
    runs: int
    refused: int = 0
    failed: int = 0
    tried: int = 0
    before: tuple[int, ...] = ()
    told: tuple[str, ...] = ()
    triggers: tuple[FailureTrigger, ...] = ()
    why: tuple[str, ...] = ()
    by_parts: str = ""

    @property
    def flaky(self) -> bool:
        return self.failed < self.tried


def _minimise_graph(question: MinimiseQuestion) -> Search[None]:
    yield from parts.minimise_nodes(question)
    yield from _minimise_parts(question)


def _minimise_parts(question: MinimiseQuestion) -> Search[None]:
    """Leave out attributes, arguments, inputs and outputs, each once."""
    tried: set[str] = set()
    while True:
        found = next(((what, case) for what, case in question.best.simpler() if what not in tried), None)
        if found is None:
            return
        tried.add(found[0])
        yield from question.take(found[1], f"without {found[0]}")


def _minimise_all(question: MinimiseQuestion) -> Search[None]:
    yield from minimise_choices(question)
    if isinstance(question.best, ChosenCase):  # what its choices make does not fail by itself
        return
    yield from _minimise_graph(question)
    yield from sizes.minimise_dims(question)
    yield from _minimise_parts(question)
    yield from numbers.minimise_values(question)
    yield from sizes.minimise_dims(question)
    if isinstance(question.best, (GraphCase, TracedCase)):
        yield from question.take(question.best.shorten_names())


#: Strategies by name.
STRATEGIES: dict[str, Callable[[MinimiseQuestion], Search[None]]] = {
    strategies.ALL: _minimise_all,
    strategies.CHOICES: minimise_choices,
    strategies.GRAPH: _minimise_graph,
    strategies.DIMS: sizes.minimise_dims,
    strategies.VALUES: numbers.minimise_values,
}


def search_minimal_case(
    stored: Row, start: Callable[[], HuntCase], strategy: str, budget: int, earlier: int = 0, triggers: bool = True
) -> Search[MinimalCase]:
    """Make a case smaller that failed as its ``stored`` row says.

    start: takes the case apart; raises Unfit where it has no reference. strategy: of STRATEGIES, or SEQUENCE; budget:
    runs that it may take; earlier: how many cases ran before it in its process; triggers: whether what is left is
    toggled. Raises NotFailing where it does not fail again.
    """
    wanted = StoredFailure.of(stored)
    first = MinimiseQuestion(wanted, None, budget)  # type: ignore[arg-type]
    failed, tried, row = yield from _run_case_repeatedly(first, Ask(fresh=True, patient=True), wanted, FIRST)
    if not failed:
        return (yield from _minimise_in_sequence(first, stored, earlier, row))
    flaky = (f"rerun alone it failed {failed} of {tried} times",) if failed < tried else ()

    def leave(why: str, by_parts: str = "") -> MinimalCase:
        told = (*flaky, why)
        own = _give_failure_cause(row, stored)
        return MinimalCase(None, wanted, own, first.runs, failed=failed, tried=tried, why=told, by_parts=by_parts)

    if strategy == SEQUENCE:
        return leave("it fails by itself")
    try:
        case = start()
        _, sample = case.make_sample()
    except Unfit as error:
        return leave(f"left as is: {error}")
    for _ in range(TRIES if flaky else 1):
        in_parts = yield from first.run(Ask(case))
        own = StoredFailure.of(in_parts, sample.expected, case.names)
        if stored.op_class == OpClass.MODEL and own.status == Status.IMPRECISE:
            # Of a model nothing is imprecise: what makes it wrong may be so of its parts, until some of them are wrong
            # by themselves.
            own = replace(own, also=stored.status)
        if _fails_like_stored(wanted, own):
            break
    else:
        return leave(f"left as is: by its parts' reference it is {own.status} {own.kind}".rstrip(), own.status)
    why = list(flaky)
    # What did not always fail is run as often as it takes to see that.
    last = TRIES if flaky else 1 if wanted.status == Status.TIMEOUT else LAST
    question = yield from _run_minimise_strategy(strategy, MinimiseQuestion(own, case, budget, first.runs), why)
    ended = yield from _finish_minimal_case(question, tuple(why), triggers, last)
    if not ended.failed and wanted.status == Status.TIMEOUT:
        left = "left as is: when reduced it ends, if late"
        return MinimalCase(None, wanted, row, ended.runs, failed=failed, tried=tried, why=(*why, left))
    if not ended.failed and first.runs + KEPT < budget:
        # In new processes it does not fail: what other cases left behind in theirs made it.
        question = yield from _run_minimise_strategy(
            strategy, MinimiseQuestion(own, case, budget, ended.runs, fresh=True), why
        )
        ended = yield from _finish_minimal_case(question, tuple(why), triggers, last)
    return ended


def _run_minimise_strategy(strategy: str, question: MinimiseQuestion, why: list[str]) -> Search[MinimiseQuestion]:
    """A search by one strategy, within the budget but for what is kept for the end."""
    budget, question.budget = question.budget, question.budget - KEPT
    try:
        if isinstance(question.best, CallCase) and question.best.structure:
            question.structured = yield from question.needs_structure(question.best)
        yield from STRATEGIES[strategy](question)
    except Spent:
        why.append(f"the search has used its part of the budget of {budget} runs: it may not be minimal")
    question.budget = budget
    return question


def _fails_like_stored(stored: StoredFailure, own: StoredFailure) -> bool:
    """Whether the case taken apart fails as the stored one did: how far off it is, its own reference says."""
    same = own.again(replace(stored, words=own.words, times=own.times, finite=own.finite))
    return same and (own.times is None or own.times > 1)


def _run_case_repeatedly(
    question: MinimiseQuestion, ask: Ask, wanted: StoredFailure, count: int
) -> Search[tuple[int, int, Row]]:
    """(failed, tried, last row that failed, else last row) of a case run ``count`` times, up to TRIES where it does not
    always fail."""
    failed = tried = 0
    last: Row | None = None
    while tried < count or (0 < failed < tried < TRIES) or (not failed and tried < TRIES // 2):
        # One that does not kill its process may as well be run in the same one again.
        row = yield from question.run(ask if not tried or ask.before else replace(ask, fresh=False, patient=False))
        tried += 1
        same = _fails_as_stored(wanted, StoredFailure.of(row))
        failed += same
        last = row if same or last is None else last
    assert last is not None
    return failed, tried, last


def _fails_as_stored(wanted: StoredFailure, found: StoredFailure) -> bool:
    """Whether a run of the stored case is what its row says."""
    return (wanted.status, wanted.kind, wanted.stage) == (found.status, found.kind, found.stage)


def _minimise_in_sequence(question: MinimiseQuestion, stored: Row, earlier: int, row: Row) -> Search[MinimalCase]:
    """A case that does not fail by itself: after which of the earlier cases of its process it does."""
    if not earlier:
        why = f" ({' '.join(row.error.split())[:300]})" if row.error else ""
        if Status(row.status).failed:
            was, now = (f"{x.status} {x.kind} {x.stage}".strip() for x in (question.wanted, row))
            raise NotFailing(f"rerun alone it is {now}{why}, not {was}: is something kept from call to call?")
        raise NotFailing(f"rerun alone it is {row.status}{why}: it no longer fails")
    try:
        found = yield from question.run(Ask(before=tuple(range(earlier)), fresh=True))
        if not question.wanted.again(StoredFailure.of(found)):
            raise NotFailing(
                f"rerun it is {row.status}, also after the {earlier} cases that ran before it: it no longer fails"
            )
        before = yield from parts.minimise_earlier_cases(question, earlier)
        failed, tried, row = yield from _run_case_repeatedly(
            question, Ask(before=before, fresh=True), question.wanted, LAST
        )
    except Spent:
        raise NotFailing("it does not fail alone, and the budget ran out looking for the cases it needs") from None
    why = f"alone it does not fail: it needs {len(before)} of the {earlier} cases that ran before it"
    row = _give_failure_cause(row, stored)
    return MinimalCase(None, question.wanted, row, question.runs, failed=failed, tried=tried, before=before, why=(why,))


def _give_failure_cause(row: Row, stored: Row) -> Row:
    """The row of a case that fails as stored, with the cause that its stored row has: runs of a search do not ask the
    device for it."""
    return row if row.cause else row.with_values({"cause": stored.cause, "cause_code": stored.cause_code})


def _finish_minimal_case(
    question: MinimiseQuestion, why: tuple[str, ...], triggers: bool, tried: int
) -> Search[MinimalCase]:
    """The minimal case, run again ``tried`` times in new processes, and toggled."""
    case = question.best
    _, sample = case.make_sample()
    if isinstance(case, CallCase):
        case = replace(case, structure=case.structure if question.structured else "")
        if case.structure:
            why = (
                *why,
                f"it takes that {structure.describe_structure_labels(case.structure)}: with ordinary values it does not fail",
            )
    failed = 0
    row: Row | None = None
    for _ in range(tried):
        found = yield from question.run(Ask(case, fresh=True, patient=True, explained=True))
        same = question.wanted.again(StoredFailure.of(found, sample.expected, case.names))
        failed += same
        row = found if same or row is None else row
    assert row is not None
    toggled = (yield from _try_failure_toggles(question, case)) if triggers and failed else ()
    return MinimalCase(
        case,
        question.wanted,
        row,
        question.runs,
        question.refused,
        failed,
        tried,
        told=tuple(question.told),
        triggers=toggled,
        why=why,
    )


def _try_failure_toggles(question: MinimiseQuestion, case: HuntCase) -> Search[tuple[FailureTrigger, ...]]:
    """Each attribute, argument, mode and dtype put otherwise, once."""
    found = []
    for what, other in list_case_toggles(case):
        try:
            _, sample = other.make_sample()
        except Unfit:
            found.append(FailureTrigger(what, "", False))
            continue
        try:
            row = yield from question.run(Ask(other))
        except Spent:
            break
        found.append(
            FailureTrigger(what, row.status, question.wanted.again(StoredFailure.of(row, sample.expected, other.names)))
        )
    return tuple(found)
