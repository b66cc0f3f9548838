"""Rows on their way into the lake: counted when they come, durable a few seconds later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from farm import lake as lakes
from farm.lake import beside
from farm.work.run_counts import RunCounts
from farm.work.state import RunPlan
from tasks.model.row import Row

#: Seconds between two parts of the lake, and rows that make one at once.
FLUSH_S, FLUSH_ROWS = 2.0, 50_000
#: So many times as many may wait while others are being written.
BEHIND = 4


class RowWriter:
    """Keeps rows and writes them in parts."""

    def __init__(self, plan: RunPlan, run_counts: RunCounts) -> None:
        self._plan, self._run_counts = plan, run_counts
        self._batches: list[pa.RecordBatch] = []
        self._steps: list[pa.RecordBatch] = []
        self._rows, self._most = 0, BEHIND * FLUSH_ROWS
        self._writer = ThreadPoolExecutor(1, "row_writer")
        self._writing: Future[None] | None = None
        self._written: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])  # what it is to write
        self._flushed = time.monotonic()
        #: Told of every batch of rows that comes.
        self.told: Callable[[list[pa.RecordBatch]], None] = lambda batches: None

    def keep(
        self,
        b: int,
        batches: list[pa.RecordBatch],
        status: Mapping[str, int],
        busy_ms: float = 0.0,
        steps: Sequence[pa.RecordBatch] = (),
    ) -> None:
        """Take rows of a backend, and what is beside them: steps of traces, readings of passports. Raises OSError when
        they cannot be written."""
        rows = sum(batch.num_rows for batch in batches)
        self._batches += batches
        self._steps += steps
        self.told(batches)
        self._rows += rows
        self._run_counts.count_rows(b, rows, status, busy_ms)
        if self._rows >= FLUSH_ROWS:
            self._begin(self._most)

    def write(self, b: int, columns: Mapping[str, Any]) -> None:
        """A row of the dispatcher's own, for a case that no process could report."""
        own = {"policy": self._plan.request.policy.id, "started_at": time.time()}
        origin = lakes.Origin.of(self._plan.run_id, self._plan.name(b), self._plan.offer(b).info)
        self.keep(b, [lakes.make_row_batch([Row.of({**own, **columns})], origin)], {columns["status"]: 1})

    def flush_if_due(self) -> None:
        if self._rows and time.monotonic() - self._flushed > FLUSH_S:
            self._begin(self._most)

    def flush(self) -> None:
        """Make the rows so far durable. Raises OSError; the rows are then kept for another try."""
        self._begin(0)
        self._end()

    def _begin(self, most: int) -> None:
        """Have the rows so far written, in a thread of its own: the loop has better to do. As long as the rows before
        them are being written that waits, up to ``most`` rows. Raises OSError for the rows before them."""
        if self._writing is not None and not self._writing.done() and self._rows < most:
            return
        self._end()
        if self._batches:
            self._written, self._batches, self._steps, self._rows = (self._batches, self._steps), [], [], 0
            where = self._plan.request.lake, self._plan.run_id
            self._writing = self._writer.submit(beside.append_rows_and_beside, *where, *self._written)
        self._flushed = time.monotonic()

    def _end(self) -> None:
        """Wait for what is being written. Raises OSError; its rows are then kept for another try."""
        if self._writing is None:
            return
        try:
            self._writing.result()
        except Exception:
            self._batches = [*self._written[0], *self._batches]
            self._steps = [*self._written[1], *self._steps]
            self._rows = sum(batch.num_rows for batch in self._batches)
            self._writing = None
            raise
        self._writing, self._written = None, ([], [])
