"""What a config names and its matrix has no cell of, each with the reason: a line for people, an entry of the run's record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tasks import checks
from tasks.catalogs.base import Catalog, Entry
from tasks.model import DISTRIBUTIONS, EXHAUSTIVE, is_inexact_dtype

#: Names in a line; the record has all.
SHOWN = 3
#: Keys of a config whose values are asked of ops, in the order in which they are looked at.
CHECKS, DTYPES, SOURCES = KEYS = ("checks", "dtypes", "distributions")
#: Said of a check of gradients in an integer dtype; of a dtype, anywhere and on a backend; and beside a distribution.
NO_GRADIENT = "gradients are of floating dtypes"
NO_DTYPE = "no such dtype is declared"
NOT_THERE = "no op has it on this device"
EVERY = "; exhaustive is for ops of one tensor that are functions, and for pairs of 8 bits of ops of two"


@dataclass(frozen=True)
class LeftOut:
    """What is named and not planned. key: of the config ("checks", "dtypes", "distributions", "ops", "catalogs",
    "backends"); names: its values; of: what they are not planned for, with the preposition before it ("of" ops or
    catalogs, "on" backends, "in" dtypes), empty where they are planned for nothing; why: the reason."""

    key: str
    names: tuple[str, ...]
    why: str
    by: str = ""
    of: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = (
            f"{shorten_names_left_out(self.names)} {self.by} {shorten_names_left_out(self.of)}"
            if self.of
            else shorten_names_left_out(self.names)
        )
        return f"{what}: {self.why}"

    def record(self) -> dict[str, Any]:
        """As a run's record has it, with the line."""
        return asdict(self) | {"text": str(self)}


def shorten_names_left_out(names: Sequence[str]) -> str:
    """The first names and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def format_op_pattern(catalog: str, pattern: str) -> str:
    """A pattern of ops as lines have it; the catalog alone for all of them."""
    return catalog if pattern == "*" else f"{catalog}:{pattern.removeprefix(f'{catalog}:')}"


def merge_left_out(found: Iterable[LeftOut]) -> list[LeftOut]:
    """One entry for what is left out for the same reason: of several ops or backends, then several names."""
    by_name: dict[LeftOut, dict[str, None]] = defaultdict(dict)
    for one in found:
        by_name[replace(one, of=())].update(dict.fromkeys(one.of))
    by_of: dict[LeftOut, dict[str, None]] = defaultdict(dict)
    for one, of in by_name.items():
        by_of[replace(one, names=(), of=tuple(of))].update(dict.fromkeys(one.names))
    return [replace(one, names=tuple(names)) for one, names in by_of.items()]


@dataclass(frozen=True)
class AskedCells:
    """What a catalog of a config is asked. values: by key, what is asked of its ops; named: the keys whose values the
    config says itself; devices: of the backends that it is given to, as torch calls them, None for the CPU; unfit:
    checks that none of these backends is given; parts: the ops of each pattern that the config writes; had: by pattern,
    keys and values that cells are planned of; on: by dtype, numbers of the backends that cells are planned on."""

    catalog: Catalog
    values: Mapping[str, Sequence[str]]
    named: Collection[str]
    devices: Collection[str | None]
    unfit: Collection[str]
    parts: dict[str, list[Entry]]
    had: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    on: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def planned_keys(self) -> set[tuple[str, str]]:
        """Keys and values that cells are planned of, of any of its ops."""
        return set().union(*self.had.values())

    def left_out(self, elsewhere: Collection[tuple[str, str]]) -> Iterator[LeftOut]:
        """What is asked of its ops and not planned; of the whole catalog, where it is planned of none of them, nor of
        those that the catalog is listed with ``elsewhere``. Nothing of checks that are ``unfit``: that is said of the
        backends."""
        parts = {pattern: entries for pattern, entries in self.parts.items() if entries}
        if not parts or set(self.values[CHECKS]) <= set(self.unfit):
            return
        for pattern in parts:
            if not self.had[pattern]:  # of nothing that is asked: the first key that explains it is the reason
                why = next(
                    filter(
                        None,
                        (self._explain_missing_value(key, None, parts[pattern]) for key in (SOURCES, DTYPES, CHECKS)),
                    ),
                    "",
                )
                key = "catalogs" if pattern == "*" else "ops"
                yield LeftOut(
                    key, (self._qualify_pattern(pattern),), why or self._explain_missing_combination(parts[pattern])
                )
        some = [pattern for pattern in parts if self.had[pattern]]
        for key in self.named:
            for value in self.values[key]:
                lacking = [pattern for pattern in some if (key, value) not in self.had[pattern]]
                if value == "*" or value in self.unfit:
                    continue
                if len(lacking) == len(parts) and (key, value) not in elsewhere:
                    yield self._describe_lacking_value(
                        key, value, "*", [e for entries in parts.values() for e in entries]
                    )
                else:
                    yield from (
                        self._describe_lacking_value(key, value, pattern, parts[pattern]) for pattern in lacking
                    )

    def _qualify_pattern(self, pattern: str) -> str:
        return format_op_pattern(self.catalog.name, pattern)

    def _describe_lacking_value(self, key: str, value: str, pattern: str, entries: Sequence[Entry]) -> LeftOut:
        why = self._explain_missing_value(key, value, entries) or self._explain_missing_combination(entries, key, value)
        return LeftOut(key, (value,), why, "of", (self._qualify_pattern(pattern),))

    def _explain_missing_value(self, key: str, value: str | None, entries: Sequence[Entry]) -> str:
        """What no op has of a value, or of all that the key names; "" where one has it."""
        values = self.values[key] if value is None else [value]
        if key == CHECKS:
            whys = [self._explain_unasked(v, entries) for v in values if v not in self.unfit]
            return "; ".join(dict.fromkeys(whys)) if all(whys) else ""
        if "*" in values:
            return ""
        if not values:  # a catalog's own, of which the command line has left none
            return f"none of its {key} is asked for"
        there = {x for e in entries for x in (self._dtypes(e) if key == DTYPES else e.distributions)}
        if there & set(values):
            return ""
        if key == DTYPES:
            on = {device or "others" for e in entries for device, x in e.on_devices if x in values}
            only = f"it is computed on {', '.join(sorted(on))} alone" if on else ""
            return only or (f"not in {', '.join(values)}, but in {_format_names(there)}" if value is None else NO_DTYPE)
        has = ", ".join(d for d in DISTRIBUTIONS if d in there)
        return f"no samples of the distribution {', '.join(values)}, but {has}" + EVERY * (EXHAUSTIVE in values)

    def _explain_unasked(self, check: str, entries: Sequence[Entry]) -> str:
        whys = [checks.get_check_or_default(check).unasked(entry, self.catalog) for entry in entries]
        return "; ".join(dict.fromkeys(whys)) if all(whys) else ""

    def _dtypes(self, entry: Entry) -> set[str]:
        """Those of an op that some backend is given: one that no CPU computes is for the devices that do."""
        return {*entry.dtypes, *(x for device, x in entry.on_devices if device in self.devices)}

    def _explain_missing_combination(self, entries: Sequence[Entry], key: str = "", value: str = "") -> str:
        """Why ops that have each value have no cell of all of them."""
        given = {k: [value] if k == key else self.values[k] for k in KEYS}
        dtypes = {x for e in entries for x in self._dtypes(e) if x in given[DTYPES] or "*" in given[DTYPES]}
        if all(checks.get_check_or_default(c).gradient for c in given[CHECKS]) and not any(
            map(is_inexact_dtype, dtypes)
        ):
            return NO_GRADIENT
        has: dict[str, Callable[[Entry], Collection[str]]] = {
            CHECKS: lambda e: [c for c in given[CHECKS] if not self._explain_unasked(c, [e])],
            DTYPES: self._dtypes,
            SOURCES: lambda e: e.distributions,
        }
        kept = [e for e in entries if not key or value in has[key](e)]
        if key != CHECKS and self._explain_missing_value(CHECKS, None, kept):
            return f"its only checks with that: {_format_names(x for e in kept for x in e.checks)}"
        whys = [self._explain_missing_value(k, None, kept) for k in (DTYPES, SOURCES) if k != key]
        return next(filter(None, whys), "no op has it with the other checks, dtypes and distributions that are named")


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"
