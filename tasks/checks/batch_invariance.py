"""The check batch_invariance: a row gives the same bytes alone and among others, wherever it stands."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks.base import Observation, Scenario
from tasks.checks.derived import Derived
from tasks.checks.same_bytes import (
    APART,
    ByteDifference,
    copy_program_outputs,
    find_byte_difference,
    make_difference_misbehaviour,
)
from tasks.model import Fallback, Form, Program, Session, Stateless, Unsupported, flags, is_inexact_dtype

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Rows of the batches that a row is put in.
BATCHES = (2, 17, 33, 128, 257)
#: Elements of inputs and outputs that a batch may have; larger ones are left out, and flags say which were run.
MOST = 1 << 24


@dataclass
class _BatchedSession(Program):
    """backend: what builds programs for other numbers of rows; one: whether this one takes any number of them."""

    backend: Any = None
    one: bool = False


class BatchInvariance(Derived, Scenario):
    """The row stands first, in the middle and last of each batch, among other rows. Programs are one for any number of
    rows where the runtime makes one, else one for each number: flags say which, and what ``batches`` were run.

    Nobody promises it, but who trains on what another engine has sampled, or answers the same question twice, relies on
    it.
    """

    name = "batch_invariance"
    about = (
        f"a row gives the same bytes alone and in batches of {', '.join(map(str, BATCHES[:-1]))} and {BATCHES[-1]}, first, in the middle and last; for ops that "
        "compute each row independently in float64"
    )
    of_model = False
    exported = True

    def build(self, backend: Backend, form: Form) -> Program:
        """The program for any number of rows where the runtime makes one, else that of the sample as it is. Raises what
        building the latter raises."""
        try:
            made = backend.any_size().build(form if form.model is None else backend.rows_open(form))
            if made.again is not None and made.fallback is None:
                return _open_batched_session(made, backend, one=True)
        except Exception as error:
            if backend.is_sticky(error) or backend.is_out_of_memory(error):
                raise
        return _open_batched_session(backend.build(form), backend)

    def open(self, program: Program, form: Form) -> Session:
        assert isinstance(program, _BatchedSession)
        return _BatchRows(program, form)

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """The outputs of the sample as it is, then those of the row in each batch. Raises Misbehaviour of the kind
        "batch" with the largest distance of all batches; Unsupported where the runtime takes no other number of
        rows."""
        assert isinstance(program, _BatchedSession)
        rows = [take_batch_row(form.arrays, form.batched, k) for k in range(form.arrays[form.batched[0]].shape[0])]
        rows += [_vary_batch_row(rows[0], form.batched)]
        first, seen = _run_row_in_batches(session, program, form, rows)
        program.flags = flags.join_row_flags(
            program.flags, batches=",".join(map(str, seen.sizes)), programs="one" if program.one else "each"
        )
        yield Observation("the sample as it is", first)
        yield from seen.steps
        if seen.apart is not None:
            place, count = seen.where
            program.flags = flags.join_row_flags(program.flags, row=f"{place}/{count}")
            program.explain = functools.partial(_explain_batch_orders, session, form, rows, seen)
            where = f"where the row is number {place} of {count} and not alone"
            raise make_difference_misbehaviour(program, seen.apart, "batch", where, first)
        program.columns = program.columns | {APART: 0.0}


class _BatchRows(Stateless):
    """Steps are batches of any number of rows: of the one program for all of them, or of a program that is built for
    each."""

    program: _BatchedSession

    def __init__(self, program: _BatchedSession, form: Form) -> None:
        super().__init__(program)
        self.form = form

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        if inputs is None or self.program.one:
            return super().step(inputs)
        return self._build(inputs).run()

    def ask(self, inputs: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        """What steps of inputs of these shapes are made by, for any numbers. Raises Unsupported where the runtime takes
        inputs once."""
        again = (self.program if self.program.one else self._build(inputs)).again
        if again is None:
            raise Unsupported("the runtime takes a program's inputs only once")
        return again

    def _build(self, inputs: Sequence[Any]) -> Program:
        backend, form = self.program.backend, self.form
        own = replace(form if form.model is None else backend.rows_open(form), arrays=list(inputs))
        made: Program = backend.build(own if form.model is None else backend.fixed(own))
        return made


@dataclass
class _SeenInBatches:
    """Of the batches of ``sizes``: each step; what is furthest apart, and where: (number of the row, of the batch's
    rows); first: the same of the smallest batch in which anything is; alone: the row by itself."""

    sizes: list[int] = field(default_factory=list)
    steps: list[Observation] = field(default_factory=list)
    apart: ByteDifference | None = None
    where: tuple[int, int] = (0, 0)
    first: tuple[int, int] = (0, 0)
    alone: Sequence[Any] = ()


def take_batch_row(arrays: Sequence[Any], batched: Sequence[int], k: int) -> list[Any]:
    """The arrays with row ``k`` of those ``batched`` alone, which keep their number of dimensions."""
    return [np.ascontiguousarray(x[k : k + 1 or None]) if i in batched else x for i, x in enumerate(arrays)]


def put_rows_in_batch(rows: Sequence[list[Any]], batched: Sequence[int]) -> list[Any]:
    """Arrays whose ``batched`` ones have these rows."""
    return [np.concatenate([row[i] for row in rows]) if i in batched else x for i, x in enumerate(rows[0])]


def _vary_batch_row(row: list[Any], batched: Sequence[int]) -> list[Any]:
    """Another row: its elements turned by one place; what is no floating number stands as it is, and is valid so."""
    return [
        np.roll(x.reshape(-1), 1).reshape(x.shape) if i in batched and is_inexact_dtype(x.dtype.name) else x
        for i, x in enumerate(row)
    ]


def _make_batch_of_rows(rows: Sequence[list[Any]], batched: Sequence[int], m: int) -> list[Any]:
    """A batch of ``m`` rows: the first row first, in the middle and last, the others between."""
    others = rows[1:]
    chosen = [rows[0] if k in (0, m // 2, m - 1) else others[k % len(others)] for k in range(m)]
    return put_rows_in_batch(chosen, batched)


def _open_batched_session(made: Program, backend: Backend, one: bool = False) -> _BatchedSession:
    return _BatchedSession(**{f.name: getattr(made, f.name) for f in fields(Program)}, backend=backend, one=one)


def _run_row_in_batches(
    session: Session, program: _BatchedSession, form: Form, rows: list[list[Any]]
) -> tuple[Sequence[Any], _SeenInBatches]:
    """What the program gives for the sample as it is, and what is seen of its batches. A program for any number of rows
    that does not take all of them becomes that of the sample.

    Raises Unsupported where no other number is taken, Fallback where the program ran elsewhere, and what no other way
    would mend.
    """
    backend, said = program.backend, None

    def lost(error: Exception) -> bool:
        return bool(backend.is_sticky(error) or backend.is_out_of_memory(error))

    if program.one:
        try:
            return copy_program_outputs(session.step()), _compare_row_in_batches(
                session, rows, form.batched, _SeenInBatches()
            )
        except Exception as error:
            if lost(error):
                raise
            said = error
        vars(program).update(vars(_open_batched_session(backend.build(form), backend)))
    first = copy_program_outputs(session.step())
    if program.fallback:
        raise Fallback(program.fallback)
    seen = _SeenInBatches()
    try:
        return first, _compare_row_in_batches(session, rows, form.batched, seen)
    except Exception as error:
        if lost(error) or seen.sizes:
            raise
        raise Unsupported(f"it takes no other number of rows: {said or error}") from error


def _compare_row_in_batches(
    session: Session, rows: list[list[Any]], batched: Sequence[int], seen: _SeenInBatches
) -> _SeenInBatches:
    """``seen``, filled by running the first row alone and in every batch that is not too large. Raises what a run
    raises, Unsupported where the outputs have another number of rows."""
    alone = seen.alone = copy_program_outputs(session.step(rows[0]))
    _check_batch_rows(alone, 1)
    elements = sum(np.size(x) for x in (*alone, *(rows[0][k] for k in batched)))
    worst = -1.0
    for m in BATCHES:
        if seen.sizes and m * max(elements, 1) > MOST:
            break
        begin = time.perf_counter()
        outputs = session.step(_make_batch_of_rows(rows, batched, m))
        ms = (time.perf_counter() - begin) * 1e3
        _check_batch_rows(outputs, m)
        seen.sizes.append(m)
        for place in dict.fromkeys((0, m // 2, m - 1)):
            own = copy_program_outputs([x[place : place + 1] for x in outputs])
            found = find_byte_difference(alone, own)
            far = float("inf") if found is None or found.units is None else found.units
            kind, apart = ("batch", found.units) if found else ("", 0.0)
            name = f"row {place} of a batch of {m}"
            seen.steps.append(Observation(name, own, judged=False, kind=kind, apart=apart, ms=ms))
            if found and seen.apart is None:
                seen.first = (place, m)
            if found and far > worst:
                worst, seen.apart, seen.where = far, found, (place, m)
    return seen


def _explain_batch_orders(
    session: Session, form: Form, rows: Sequence[list[Any]], seen: _SeenInBatches
) -> dict[str, str]:
    """Columns that name the order in which the row is added alone, and that in the smallest batch in which it has other
    bytes, for that is asked some thousand times; none where neither can be read."""
    from tasks.checks.two_orders import explain_two_orders  # all that reads orders, for what differs alone

    assert isinstance(session, _BatchRows)
    place, count = seen.first
    batch = _make_batch_of_rows(rows, form.batched, count)
    return explain_two_orders(
        [
            (session.ask(rows[0]), rows[0], seen.alone, 0, "alone"),
            (session.ask(batch), batch, session.step(batch), place, f"row {place} of {count}"),
        ]
    )


def _check_batch_rows(outputs: Sequence[Any], m: int) -> None:
    if not outputs or any(x is None or not np.ndim(x) or np.shape(x)[0] != m for x in outputs):
        raise Unsupported("its outputs keep theirs")
