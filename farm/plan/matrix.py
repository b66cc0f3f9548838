"""Config to cells: which groups each backend is given, how many samples, and why a cell is not planned."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from farm.plan.config import CatalogConfig, Config, ConfigError
from tasks import catalogs, checks
from tasks.backends import BackendSpec
from tasks.catalogs.base import Entry
from tasks.model import DISTRIBUTIONS, EXHAUSTIVE, Group, is_inexact
from tasks.nearest import nearest
from tasks.plugins import PluginError
from tasks.vendors import CALLED

#: Columns of the lake that tell one group of the matrix from another.
GROUP = ("check", "op", "variant", "dtype", "distribution")


@dataclass
class Matrix:
    """The plan of a run: rows are groups, columns backends.

    wanted[g, b]: samples of group g that backend b is asked to run (0: the cell is not planned);
    skipped: (group, backend, reason) of cells the config leaves out; absent: why ops that it names have no cell; places: which
    of the config's catalogs, by number, names a group first ([groups]; empty for one).
    """

    groups: list[Group]
    backends: list[BackendSpec]
    wanted: np.ndarray
    skipped: list[tuple[int, int, str]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """Number of planned cells (op, dtype, backend)."""
        return int(np.count_nonzero(self.wanted))

    def numbers(self) -> dict[tuple[str, ...], int]:
        """The number of each group, by its columns in the lake (`GROUP`)."""
        return {tuple(getattr(group, name) for name in GROUP): g for g, group in enumerate(self.groups)}

    def ordered(self, order: Sequence[int], wanted: np.ndarray | None = None) -> Matrix:
        """The groups with these numbers, in their order; wanted: of all groups, instead of this matrix's."""
        to = {g: place for place, g in enumerate(order)}
        return replace(
            self,
            groups=[self.groups[g] for g in order],
            wanted=(self.wanted if wanted is None else wanted)[list(order)],
            skipped=[(to[g], b, reason) for g, b, reason in self.skipped if g in to],
            places=[self.places[g] for g in order] if self.places else [],
        )


class UnknownOp(ConfigError):
    """A pattern without wildcard that names no op of its catalog."""

    def __init__(self, pattern: str, text: str) -> None:
        super().__init__(text)
        self.pattern = pattern


def build(config: Config, entries: Mapping[str, Sequence[Entry]], ops: Sequence[str] = ()) -> Matrix:
    """The matrix of a config.

    ``entries``: per catalog, its list; ``ops``: globs that narrow it further.

    A glob matches an op's name with or without its catalog, with or without its variant. Raises ConfigError
    for a pattern without wildcard that names no op.
    """
    specs = [b.spec() for b in config.backends]
    devices = [_device(spec) for spec in specs]
    takes = {check: np.array([_takes(spec, check) for spec in specs]) for check in config.all_checks}
    rows: dict[
        tuple[str, str, str, str, str], list[int]
    ] = {}  # a catalog may be listed twice: the larger number counts
    places: dict[tuple[str, str, str, str, str], int] = {}
    for place, catalog in enumerate(config.catalogs):
        dtypes = catalog.dtypes or config.dtypes
        listed = entries[catalog.name]
        _known_ops(catalog, listed)
        samples = [samples_of(catalog, spec.name) for spec in specs]
        if not any(samples):
            continue
        chosen, left_out, narrow = matcher(catalog.ops), matcher(catalog.exclude), matcher(ops)
        for entry in listed:
            called = names(entry)
            if not chosen(called) or left_out(called) or (ops and not narrow(called)):
                continue
            for dtype, asked in _asked(entry, dtypes, samples, devices):
                for check in catalog.checks or config.checks:
                    if not takes[check].any() or not checks.installed(check).asks(entry, catalogs.get(catalog.name)):
                        continue
                    if checks.installed(check).gradient and not is_inexact(dtype):
                        continue
                    for distribution in catalog.distributions:
                        if distribution in entry.distributions:
                            cell = (entry.op, entry.variant, dtype, check, distribution)
                            many = [checks.installed(check).wanted(n) if n else 0 for n in asked]
                            rows[cell] = list(map(max, many, rows.get(cell, many)))
                            places.setdefault(cell, place)
    groups = [
        Group(op, variant, dtype, max(samples), config.seed, check, distribution)
        for (op, variant, dtype, check, distribution), samples in rows.items()
    ]
    wanted = np.array(list(rows.values()), dtype=np.int32).reshape(len(groups), len(specs))
    for g, group in enumerate(groups):
        wanted[g, ~takes[group.check]] = 0
    planned = {name for group in groups for name in names(Entry(group.op, group.variant, ()))}
    named = {name: None for catalog in config.catalogs for name in catalog.ops if not _is_glob(name)}
    absent = [without(config, entries, [name]) for name in named if groups and not ops and name not in planned]
    matrix = Matrix(groups, specs, wanted, absent=list(filter(None, absent)), places=list(places.values()))
    for skip in config.skip:
        match_op, match_dtype, match_backend = matcher(skip.ops), matcher(skip.dtypes), matcher(skip.backends)
        columns = [b for b, spec in enumerate(specs) if match_backend([spec.name])]
        for g, group in enumerate(groups):
            if match_dtype([group.dtype]) and match_op(names(Entry(group.op, group.variant, ()))):
                for b in columns:
                    if wanted[g, b]:
                        wanted[g, b] = 0
                        matrix.skipped.append((g, b, skip.reason))
    return matrix


def without(config: Config, entries: Mapping[str, Sequence[Entry]], ops: Sequence[str] = ()) -> str:
    """Of ops of a config, those that the globs ``ops`` leave, without a cell: what they have instead of the distributions or dtypes that
    it asks for; "" where that is not why."""
    found, rare, narrow = [], False, matcher(ops)
    for catalog in config.catalogs:
        chosen, left_out = matcher(catalog.ops), matcher(catalog.exclude)
        some = [e for e in entries[catalog.name] if chosen(called := names(e)) and not left_out(called)]
        some = [e for e in some if not ops or narrow(names(e))]
        who = some[0].op if len({e.op for e in some}) == 1 else f"{len(some)} ops of {catalog.name}"
        dtypes = catalog.dtypes or config.dtypes
        offered = {name for entry in some for name in entry.distributions}
        if some and not offered & set(catalog.distributions):
            asked, has = ", ".join(catalog.distributions), ", ".join(d for d in DISTRIBUTIONS if d in offered)
            found.append(f"{who}: no samples of the distribution {asked}, but {has}")
            rare |= EXHAUSTIVE in catalog.distributions
        elif (
            some
            and not (there := {d for e in some for d in (*e.dtypes, *(d for _, d in e.on_devices))}) & set(dtypes)
            and "*" not in dtypes
        ):
            found.append(f"{who}: not in {', '.join(dtypes)}, but in {', '.join(sorted(there))}")
    many = "; exhaustive is for ops of one tensor that are functions, and for pairs of 8 bits of ops of two"
    return "; ".join(found) + many * rare


def _asked(
    entry: Entry, wanted: Sequence[str], samples: Sequence[int], devices: Sequence[str | None]
) -> Iterator[tuple[str, Sequence[int]]]:
    """(dtype, samples of each backend) of an op: a dtype that no CPU computes is asked of devices alone that have it."""
    having: dict[str, set[str]] = {}
    for device, dtype in entry.on_devices:
        having.setdefault(dtype, set()).add(device)
    there = (*entry.dtypes, *having)
    for dtype in there if "*" in wanted else [d for d in wanted if d in there]:
        asked = samples if dtype in entry.dtypes else [n * (d in having[dtype]) for n, d in zip(samples, devices)]
        if any(asked):
            yield dtype, asked


def _device(spec: BackendSpec) -> str | None:
    """The device of a backend as torch calls it, "" where it does not; None of the CPU."""
    try:
        made = spec.create()
    except PluginError:
        return None
    return None if made.resource == "CPU" else CALLED.get(made.device_vendor, "")


def _takes(spec: BackendSpec, check: str) -> bool:
    """Whether cells of a check are planned for a backend."""
    try:
        backend = spec.create()
    except PluginError:  # a line of the preflight
        return checks.planned(check, (checks.FORWARD,))
    return checks.planned(check, backend.checks) and checks.installed(check).fits(backend)


def samples_of(catalog: CatalogConfig, backend: str) -> int:
    """How many samples of an op and dtype a config gives a backend; 0 if the catalog is not for it."""
    if not any(fnmatch.fnmatchcase(backend, p) for p in catalog.backends):
        return 0
    for pattern, count in catalog.samples_for.items():
        if fnmatch.fnmatchcase(backend, pattern):
            return count
    return catalog.samples


def names(entry: Entry) -> list[str]:
    """What an op may be called in a pattern: with and without its catalog, with and without its variant."""
    bare = entry.op.partition(":")[2]
    called = [entry.op, bare]
    return called + [f"{n}.{entry.variant}" for n in called] if entry.variant else called


def matcher(globs: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """A function that tells whether any of some names matches any of the globs."""
    if "*" in globs:
        return lambda called: True
    if not globs:
        return lambda called: False
    match = re.compile("|".join(fnmatch.translate(g) for g in globs)).match
    return lambda called: any(match(n) for n in called)


def _is_glob(pattern: str) -> bool:
    return any(c in pattern for c in "*?[")


def _known_ops(catalog: CatalogConfig, listed: Sequence[Entry]) -> None:
    """Raise ConfigError for an op named in the config that the catalog does not have."""
    valid: list[str] | None = None
    for pattern in [*catalog.ops, *catalog.exclude]:
        if _is_glob(pattern):
            continue
        if valid is None:
            valid = sorted({n for e in listed for n in names(e)})
        if pattern not in valid:
            raise UnknownOp(pattern, f"catalogs.{catalog.name}.ops: no op {pattern!r}{nearest(pattern, valid)}")
