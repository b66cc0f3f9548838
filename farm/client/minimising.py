"""A failing case of a kernel made small, in this process: the same search as `farm minimise`, with functions of one's own."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from farm.client.kernels import ClientError
from farm.client.one_sample import judge_kernel_sample
from farm.client.process import describe_client_row
from farm.client.reproducing import KernelCase, open_kernel_case, start_backend_here
from farm.hunt.minimise_search import choose_step_limit_s, make_row_of_minimal
from farm.lake.key import RowKey
from farm.reproduction.find_case import find_seed_of_row
from tasks.arrays.noise import DRAWS
from tasks.arrays.tree import encode_argument_tree
from tasks.deprecation import deprecated
from tasks.hunt.call_case import CallCase
from tasks.hunt.dialogue import DialoguePiece, NotFailing, Ran, Search
from tasks.hunt.minimise.question import Spent
from tasks.hunt.minimise.same import SOUGHT
from tasks.hunt.minimise.search import KEPT, STRATEGIES, MinimalCase, search_minimal_case
from tasks.hunt.minimise.strategies import BUDGET
from tasks.model import DEADLY, Status
from tasks.model.row import Row
from tasks.nearest import suggest_nearest_names


@dataclass(frozen=True)
class SmallerCase:
    """What is left of a case. inputs: by name; shapes, original_shapes: theirs; runs: of the kernel; passed: False
    unless it did not fail any more; flaky: whether it fails only at times; told: what else is to be said."""

    key: str
    seed: int | None
    inputs: dict[str, np.ndarray]
    shapes: dict[str, tuple[int, ...]]
    original_shapes: dict[str, tuple[int, ...]]
    status: str
    kind: str
    message: str
    runs: int
    passed: bool
    flaky: bool
    told: tuple[str, ...] = ()
    row: Row = field(repr=False, default=None)  # type: ignore[assignment]

    def __str__(self) -> str:
        shapes = ", ".join(f"{k} {list(self.original_shapes[k])} → {list(v)}" for k, v in self.shapes.items())
        return f"{shapes}: {self.message} ({self.runs} runs)"


def minimise(
    key: str = "",
    *,
    seed: int | None = None,
    strategy: str = "shrink-all",
    budget: int = BUDGET,
    results: str | Path = "results",
    dtype: str = "",
    run: str = "last",
) -> SmallerCase:
    """Make a failing case of a kernel smaller while it fails in the same way. The case is named as in `farm.reproduce`.

    strategy: "binary-search-dims", "shrink-values" or "shrink-all"; budget: runs of the kernel at most. Raises
    ClientError, also for a case that did not fail. Rows of other catalogs, crashes and hangs are `farm minimise`'s.
    """
    if strategy not in STRATEGIES:
        raise ClientError(f"unknown strategy {strategy!r}{suggest_nearest_names(strategy, list(STRATEGIES))}")
    if type(budget) is not int or budget <= KEPT:
        raise ClientError(f"budget: more than {KEPT} runs, not {budget!r}")
    with open_kernel_case(key, seed, results, dtype, run) as case:
        status = Status(case.row["status"])
        name = str(RowKey.of(case.row))
        if status not in SOUGHT:
            raise ClientError(f"{name} is {status}: only failed or imprecise cases can be reduced")
        if status in DEADLY:
            raise ClientError(f"{name} is a {status}, which this process may not survive: farm minimise '{name}'")
        first = _take_apart_case(case)
        try:
            found, told = _run_smaller_search(
                case,
                search_minimal_case(make_row_of_minimal(case.row), lambda: first, strategy, budget, triggers=False),
            )
        except (NotFailing, Spent) as error:
            raise ClientError(f"{name}: {error or f'{budget} runs are too few'}") from None
        last = found.case if isinstance(found.case, CallCase) else first
        before, after = (dict(zip(case.names, x.arrays.values())) for x in (first, last))
    return SmallerCase(
        name,
        find_seed_of_row(case.row),
        after,
        {k: tuple(x.shape) for k, x in after.items()},
        {k: tuple(x.shape) for k, x in before.items()},
        found.row.status,
        found.row.kind,
        describe_client_row(found.row.values()),
        found.runs,
        found.row.status in (Status.PASS, Status.IMPRECISE) and status is not Status.IMPRECISE,
        found.flaky,
        (*found.told, *found.why, *told),
        found.row,
    )


minimize = deprecated("farm.minimize", since="1.0", until="2.0", use="farm.minimise")(minimise)


def _take_apart_case(case: KernelCase) -> CallCase:
    given = tuple(case.sample.arrays[: len(case.names)])
    labels = case.sample.columns.get("structure") or ""
    return CallCase(
        encode_argument_tree(case.sample.args),
        encode_argument_tree(case.sample.kwargs),
        given,
        case.group,
        DRAWS,
        labels,
    )


def _run_smaller_search(case: KernelCase, hunt: Search[MinimalCase]) -> tuple[MinimalCase, tuple[str, ...]]:
    """What a search comes to whose cases are run here, and what is to be said of them beside it."""
    here = start_backend_here(str(case.row["backend"]))
    ran: Any = None
    longest, hung = 0.0, 0
    while True:
        try:
            asked = hunt.send(ran)
        except StopIteration as end:
            found: MinimalCase = end.value
            words = f"{hung} smaller cases did not end and were interrupted: the kernel hangs there"
            return found, (*case.describe_version_change(here.info), *([words] if hung else []))
        assert not isinstance(asked.case, DialoguePiece)
        group, sample = (case.group, case.sample) if asked.case is None else asked.case.make_sample()
        begun = time.monotonic()
        try:
            with _limit_time(choose_step_limit_s(longest, hung) if longest else 0.0):
                row = judge_kernel_sample(group, sample, here, case.policy).row
        except TimeoutError as late:  # in what is the farm's own around the call
            late_row = {"status": Status.ERROR, "kind": "", "error_type": TimeoutError.__name__, "error": str(late)}
            row = make_row_of_minimal(case.row | late_row)
        if row.error_type == TimeoutError.__name__:
            hung += 1
        else:
            longest = max(longest, time.monotonic() - begun)
        ran = Ran(row=row)


@contextlib.contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what runs Python within for so many seconds (0: never), where this thread can be
    interrupted."""
    free = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not seconds or not free or any(signal.getitimer(signal.ITIMER_REAL)):
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
