"""What a run shows while it goes on: one line per backend with counts by status and the time left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from farm.work.accounts import Count
    from farm.work.dispatcher import Dispatcher

#: Seconds between two plain lines where there is no terminal to redraw.
PLAIN_S = 10.0


class Progress:
    """Called by the dispatcher; draws on a terminal, prints lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._drawn = 0.0
        self._last = ""
        self._noticed = 0

    def __call__(self, run: Dispatcher) -> None:
        for text in run.outages.notices[self._noticed :]:
            self.console.print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)
        self._noticed = len(run.outages.notices)
        now = time.monotonic()
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False, transient=True)
                self._live.start()
            if now - self._drawn > 0.3:
                self._drawn = now
                self._live.update(self._table(run), refresh=True)
        elif now - self._drawn > PLAIN_S:
            self._drawn = now
            self._print(run)

    def close(self, run: Dispatcher | None = None) -> None:
        """Stop redrawing; elsewhere print the last state once more."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif run is not None:
            self._print(run)

    def _print(self, run: Dispatcher) -> None:
        text = f"{now_and_left(run)}"
        for name, count in run.accounts.counts.items():
            if count.planned:
                text += f"\n  {name}: {count.done}/{count.planned}{_statuses(count)}"
        if text != self._last:
            self._last = text
            self.console.print(text, highlight=False, soft_wrap=True)

    def _table(self, run: Dispatcher) -> Table:
        table = Table(title=now_and_left(run), title_justify="left", box=None, pad_edge=False)
        for name in ("backend", "done", "", "by status"):
            table.add_column(name)
        for name, count in run.accounts.counts.items():
            if not run.plan.offers[name].available:
                continue
            share = count.done / count.planned if count.planned else 0.0
            bar = "█" * int(share * 20) + "·" * (20 - int(share * 20))
            table.add_row(name, f"{count.done}/{count.planned}", bar, _statuses(count).lstrip())
        return table


def _statuses(count: Count) -> str:
    order = sorted(count.status.items(), key=lambda s: -s[1])
    return "  " + " ".join(f"{name} {number}" for name, number in order) if order else ""


def now_and_left(run: Dispatcher) -> str:
    """Elapsed time, what is being prepared, and the time left as far as it can be told."""
    elapsed = time.monotonic() - run.started
    done = sum(c.done for c in run.accounts.counts.values())
    planned = sum(c.planned for c in run.accounts.counts.values())
    text = f"{_duration(elapsed)}  {done}/{planned} cases"
    to_prepare, to_export = run.stock.left["prepare"], run.stock.left["export"]
    if to_prepare:
        text += f", {to_prepare} groups to prepare"
    if to_export:
        text += f", {to_export} to export"
    left_s = (
        sum((c.planned - c.done) * run.accounts.case_ms(b) for b, c in enumerate(run.accounts.counts.values())) / 1e3
    )
    slots = max(run.plan.executor.slots(None, 1.0), 1)
    if planned > done and not to_prepare and not to_export:
        text += f", about {_duration(left_s / slots)} left"
    return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
