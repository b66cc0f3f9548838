"""Rows on their way into the lake: counted when they come, durable a few seconds later."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from farm import lake as lakes
from farm.work.accounts import Accounts
from farm.work.state import Plan
from tasks.model.row import Row

#: Seconds between two parts of the lake, and rows that make one at once.
FLUSH_S, FLUSH_ROWS = 2.0, 50_000


class Ledger:
    """Keeps rows and writes them in parts."""

    def __init__(self, plan: Plan, accounts: Accounts) -> None:
        self._plan, self._accounts = plan, accounts
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._flushed = time.monotonic()
        #: Told of every batch of rows that comes.
        self.told: Callable[[list[pa.RecordBatch]], None] = lambda batches: None

    def keep(self, b: int, batches: list[pa.RecordBatch], status: Mapping[str, int], busy_ms: float = 0.0) -> None:
        """Take rows of a backend. Raises OSError when they cannot be written."""
        rows = sum(batch.num_rows for batch in batches)
        self._batches += batches
        self.told(batches)
        self._rows += rows
        self._accounts.kept(b, rows, status, busy_ms)
        if self._rows >= FLUSH_ROWS:
            self.flush()

    def write(self, b: int, columns: Mapping[str, Any]) -> None:
        """A row of the dispatcher's own, for a case that no process could report."""
        own = {"policy": self._plan.policy.id, "started_at": time.time()}
        origin = lakes.Origin.of(self._plan.run_id, self._plan.name(b), self._plan.offer(b).info)
        self.keep(b, [lakes.to_batch([Row.of({**own, **columns})], origin)], {columns["status"]: 1})

    def flush_if_due(self) -> None:
        if self._rows and time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Make the rows so far durable. Raises OSError; the rows are then kept for another try."""
        if self._batches:
            lakes.append(self._plan.request.lake, self._plan.run_id, self._batches)
            self._batches, self._rows = [], 0
        self._flushed = time.monotonic()
