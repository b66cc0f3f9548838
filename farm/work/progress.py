"""What a run shows while it goes on: on a terminal a line per backend, in a log what changed; and the time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from farm.fleet.detect_vendors import explain_no_device_of
from farm.fleet.inventory import AWAITED, BackendOffer
from farm.plan.left_out import shorten_names_left_out
from farm.work.durations import format_duration
from farm.work.work_left import count_expected_cases, estimate_run_left
from tasks.backends.needs import write_install_line
from tasks.model import FAILED, name_statuses

if TYPE_CHECKING:
    from farm.work.run_counts import BackendCount
    from farm.work.run_state import RunState

#: Seconds between two lines where there is no terminal to redraw, after which it is said that nothing came, between two
#: looks for the first numbers there, and between two drawings where there is one.
LINE_S, QUIET_S, FIRST_S, DRAW_S = 60.0, 180.0, 2.0, 0.3
#: Seconds after which it is said for which backends a run waits.
PROBED_S = 10.0
#: Seconds of a run that nothing is shown of, where a function started it.
MOMENT_S = 1.0
#: How many of the jobs under way are named then.
NAMED = 3
#: A terminal of fewer columns has no room for bars and every status.
WIDE = 120


class RunProgress:
    """Called by the dispatcher; draws on a terminal, prints lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._drawn = self._said = float("-inf")
        self._told: dict[str, Counter[str]] = {}  # backend → counts by status, as last printed
        self._noticed = self._come = 0
        self._begun = False  # rows have been told of

    def __call__(self, run: RunState) -> None:
        for text in run.notices[self._noticed :]:
            self.console.print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)
        self._noticed = len(run.notices)
        if come := run.come[self._come :]:
            self._come += len(come)
            print_preflight_lines(self.console, come, run.plan.offers, run.plan.describe_sharing)
        now = time.monotonic()
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False, transient=True)
                self._live.start()
            if now - self._drawn > DRAW_S:
                self._drawn = now
                self._live.update(self._table(run), refresh=True)
        elif now - self._drawn > (LINE_S if self._begun else FIRST_S):
            self._drawn = now
            self._print(run)

    def close(self, run: RunState | None = None) -> None:
        """Stop redrawing; elsewhere print what changed since the last line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif run is not None:
            self._print(run)

    def _print(self, run: RunState) -> None:
        """The state, and what came since the last line; where nothing did for a while, what is at work."""
        new = {
            name: Counter(count.status) - self._told.get(name, Counter())
            for name, count in run.run_counts.counts.items()
        }
        self._begun |= any(new.values())
        now, news = time.monotonic(), _describe_new_rows(new)
        if self._told and not news:
            if now - self._said < QUIET_S:
                return
            news = _list_silent_jobs(run, now)
        self._said = now
        self._told = {name: Counter(count.status) for name, count in run.run_counts.counts.items()}
        self.console.print(self._state(run) + news, highlight=False, soft_wrap=True)

    def _table(self, run: RunState) -> Table:
        wide = self.console.width >= WIDE
        table = Table(title=self._state(run), title_justify="left", box=None, pad_edge=False)
        for name in ("backend", "done", "", "by status"):
            table.add_column(name, overflow="fold")
        for name, count in run.run_counts.counts.items():
            if not run.plan.offers[name].available:
                continue
            share = count.done / count.planned if count.planned else 0.0
            bar = "█" * int(share * 20) + "·" * (20 - int(share * 20)) if wide else f"{share:4.0%}"
            table.add_row(
                name, f"{count.done}/{count.planned}", bar, _count_all_cases(count) if wide else _format_count(count)
            )
        return table

    def _state(self, run: RunState) -> str:
        """Elapsed time, cases done, what is still being made, and the time left."""
        elapsed_s = time.monotonic() - run.started
        done = sum(count.done for count in run.run_counts.counts.values()) + run.run_groups.count_stored_cases()
        cases = sum(count_expected_cases(run))
        left_s, about = estimate_run_left(run)
        minutes, seconds = divmod(int(elapsed_s), 60)
        text = f"{minutes}:{seconds:02d}  {done:.0f} of {cases:.0f} cases done"
        for kind, what, more in (
            ("prepare", "set", " of inputs and references to prepare"),
            ("export", "model", " to export"),
        ):
            if left := run.run_groups.left[kind]:
                text += f", {left} {what}{'s' * (left != 1)}{more}"
        return text if done >= cases else f"{text}, {about} {format_duration(left_s)} left"


class AwaitedJob:
    """Says for which backends a run waits before its cells are planned: on a terminal in one line that goes when they
    have answered, elsewhere in a line when another one has, after `PROBED_S` seconds and then every `LINE_S`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._say_at = time.monotonic() + PROBED_S

    def __call__(self, names: Collection[str]) -> None:
        """names: of those that have not answered."""
        text = f"waiting for the answer of {shorten_names_left_out(sorted(names))}"
        if self._status:
            self._status.update(escape(text))
            self._status.start()
        elif time.monotonic() > self._say_at:
            self._say_at = time.monotonic() + LINE_S
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """All that were waited for have answered."""
        if self._status:
            self._status.stop()


@contextlib.contextmanager
def show_run_progress() -> Iterator[Callable[[RunState], None]]:
    """What tells of a run that a function started: on a terminal as `RunProgress` does, once it takes longer than a
    moment; elsewhere nothing, for what is written there is the caller's."""
    console = Console(emoji=False)
    progress = RunProgress(console)

    def tell(run: RunState) -> None:
        if console.is_terminal and sys.stdout.isatty() and time.monotonic() - run.started > MOMENT_S:
            progress(run)

    try:
        yield tell
    finally:
        progress.close()


def print_preflight_lines(
    console: Console,
    offers: Iterable[BackendOffer],
    known: Mapping[str, BackendOffer],
    shares: Callable[[BackendOffer], str],
) -> None:
    """One line for each runtime, device and node of these offers, with how it ``shares`` its devices, and for each
    reason why others are not there, or not yet; with the last of all that are ``known``, how to have those whose needs
    can be installed."""
    width = max(map(len, known), default=0)
    alike: dict[str, list[BackendOffer]] = {}
    offers = list(offers)
    nowhere = explain_no_device_of(offer.absent for offer in offers)
    for offer in sorted(offers, key=lambda offer: bool(nowhere and offer.absent)):
        words = nowhere if nowhere and offer.absent else "; ".join(filter(None, (offer.words, shares(offer))))
        alike.setdefault(words, []).append(offer)
    for words, same in alike.items():
        known_yet = ("green", "available") if same[0].available else ("yellow", "unavailable")
        colour, state = ("cyan", "awaited") if same[0].awaited else known_yet
        names = f"{len(same)} backends" if words == nowhere else ", ".join(offer.name for offer in same)
        said = f"  {names:{width}}  [{colour}]{state:11}[/] "
        console.print(said, Text(words), highlight=False, soft_wrap=True)
    lacking = [offer for offer in known.values() if offer.installs and not offer.available]
    if lacking and not any(offer.reason == AWAITED for offer in known.values()):
        line = write_install_line(pair for offer in lacking for pair in offer.installs)
        console.print(f"to enable {', '.join(o.name for o in lacking)}: {line}", highlight=False, soft_wrap=True)


def _describe_new_rows(new: dict[str, Counter[str]]) -> str:
    """What came, by status; a failure with its backends."""
    total: Counter[str] = sum(new.values(), Counter())
    told = []
    for status, number in total.most_common():
        where = [f"{name} {some[status]}" for name, some in new.items() if some[status]]
        told.append(f"{status} {number}" + (f" ({', '.join(where)})" if status in name_statuses(FAILED) else ""))
    return f"; since the last line: {', '.join(told)}" if told else ""


def _list_silent_jobs(run: RunState, now: float) -> str:
    """The jobs that have been silent for longest, each with what it is at."""
    told = []
    for flight in sorted((f for f in run.flights.values() if f.begun and f.remaining), key=lambda f: f.heard)[:NAMED]:
        number = flight.remaining[0]
        g = flight.cases[number][0] if flight.backend >= 0 and flight.cases else flight.groups[number]
        group = run.plan.matrix.groups[g]
        who = run.plan.name(flight.backend) if flight.backend >= 0 else flight.job.kind
        told.append(f"{who} {group.label} {group.dtype} for {format_duration(now - flight.heard)}")
    return f"; running: {', '.join(told)}" if told else "; nothing is running"


def _count_all_cases(count: BackendCount) -> str:
    return " ".join(f"{name} {number}" for name, number in sorted(count.status.items(), key=lambda s: -s[1]))


def _format_count(count: BackendCount) -> str:
    failed = sum(count.status.get(name, 0) for name in name_statuses(FAILED))
    others = sum(count.status.values()) - failed - count.status.get("pass", 0)
    return f"pass {count.status.get('pass', 0)}, failed {failed}, others {others}"
