"""Config to cells: which groups each backend is given, how many samples, and why a cell is not planned."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import has_magic

import numpy as np

from farm.plan.config import CatalogConfig, Config, ConfigError
from farm.plan.left_out import (
    CHECKS,
    DTYPES,
    KEYS,
    NO_GRADIENT,
    NOT_THERE,
    SOURCES,
    AskedCells,
    LeftOut,
    format_op_pattern,
    merge_left_out,
)
from farm.plan.patterns import list_pattern_names, make_pattern_matcher
from tasks import catalogs, checks
from tasks.backends import BackendSpec
from tasks.catalogs.base import Entry
from tasks.devices import CALLED
from tasks.model import Group, is_inexact_dtype
from tasks.nearest import suggest_nearest_names

#: Columns of the lake that tell one group of the matrix from another.
GROUP = ("check", "op", "variant", "dtype", "distribution")


@dataclass(frozen=True)
class Matrix:
    """The plan of a run: rows are groups, columns backends.

    wanted[g, b]: samples of group g that backend b is asked to run (0: the cell is not planned);
    skipped: (group, backend, reason) of cells the config leaves out; left_out: what it names and has no cell of;
    places: which of the config's catalogs, by number, names a group first ([groups]; empty for one).
    """

    groups: list[Group]
    backends: list[BackendSpec]
    wanted: np.ndarray
    skipped: list[tuple[int, int, str]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def count_cells(self, on: Sequence[bool] | None = None) -> int:
        """Planned cells, as reports count them: an op in a dtype under a check on a backend, whatever its inputs are
        drawn from. on: which backends count (default: all)."""
        planned = self.wanted > 0 if on is None else self.wanted[:, np.asarray(on, dtype=bool)] > 0
        cells = [(group.check, group.op, group.variant, group.dtype) for group in self.groups]
        places = {cell: k for k, cell in enumerate(dict.fromkeys(cells))}
        merged = np.zeros((len(places), planned.shape[1]), dtype=bool)
        np.logical_or.at(merged, [places[cell] for cell in cells], planned)
        return int(merged.sum())

    def without_cells(self, checks: Sequence[str]) -> str:
        """The first of some checks of which there is no cell, not even one that is skipped; "" where each has one."""
        there = {group.check for group, some in zip(self.groups, self.wanted) if some.any()}
        there |= {self.groups[g].check for g, _, _ in self.skipped}
        return next((check for check in checks if check not in there), "")

    def numbers(self) -> dict[tuple[str, ...], int]:
        """The number of each group, by its columns in the lake (`GROUP`)."""
        return {tuple(getattr(group, name) for name in GROUP): g for g, group in enumerate(self.groups)}

    def reorder_groups(self, order: Sequence[int], wanted: np.ndarray | None = None) -> Matrix:
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


def build_matrix(config: Config, entries: Mapping[str, Sequence[Entry]], ops: Sequence[str] = ()) -> Matrix:
    """The matrix of a config.

    ``entries``: per catalog, its list; ``ops``: globs that narrow it further.

    A glob matches an op's name with or without its catalog, with or without its variant. Raises ConfigError
    for a pattern without wildcard that names no op.
    """
    specs = [b.spec() for b in config.backends]
    made = [spec.create_if_there() for spec in specs]
    devices = [
        None if one is None or one.resource == "CPU" else CALLED.get(one.device_vendor, "") for one in made
    ]  # as torch calls them
    unfit = {check: [checks.explain_check_exclusion(check, one) for one in made] for check in config.all_checks}
    takes = {check: np.array([not why for why in whys]) for check, whys in unfit.items()}
    rows: dict[
        tuple[str, str, str, str, str], list[int]
    ] = {}  # a catalog may be listed twice: the larger number counts
    counted: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[int]]] = {}
    places: dict[tuple[str, str, str, str, str], int] = {}
    left: list[LeftOut] = []
    asked: list[AskedCells] = []
    for place, catalog in enumerate(config.catalogs):
        dtypes = config.dtypes if catalog.dtypes is None else catalog.dtypes
        listed = entries[catalog.name]
        _check_ops_exist(catalog, listed)
        samples = [count_configured_samples(catalog, spec.name) for spec in specs]
        if not any(samples):
            continue
        chosen, excluded, narrow = (
            make_pattern_matcher(catalog.ops),
            make_pattern_matcher(catalog.exclude),
            make_pattern_matcher(ops),
        )
        its = [b for b, n in enumerate(samples) if n]
        one = AskedCells(
            catalogs.get_catalog(catalog.name),
            values={CHECKS: catalog.checks or config.checks, DTYPES: dtypes, SOURCES: catalog.distributions},
            named=[key for key in KEYS if key in catalog.model_fields_set | config.model_fields_set],
            devices={devices[b] for b in its},
            unfit={check for check, fits in takes.items() if not any(fits[its])},
            parts={pattern: [] for pattern in _collect_op_patterns(catalog, listed, ops)},
        )
        asked.append(one)
        matches = {pattern: make_pattern_matcher([pattern]) for pattern in one.parts}
        able = [check for check in one.values[CHECKS] if takes[check].any()]
        for entry in listed:
            known = list_pattern_names(entry)
            if not chosen(known) or excluded(known) or (ops and not narrow(known)):
                continue
            of = [pattern for pattern in one.parts if matches[pattern](known)]
            for pattern in of:
                one.parts[pattern].append(entry)
            its_checks = [c for c in able if not checks.get_check_or_default(c).unasked(entry, one.catalog)]
            for dtype, given in _select_planned_dtypes(entry, dtypes, samples, devices):
                for check in its_checks:
                    if checks.get_check_or_default(check).gradient and not is_inexact_dtype(dtype):
                        continue
                    many, there = _count_planned_samples(check, tuple(given), takes[check], counted)
                    for distribution in catalog.distributions:
                        if (
                            distribution in entry.distributions
                            and distribution in checks.get_check_or_default(check).distributions
                        ):
                            cell = (entry.op, entry.variant, dtype, check, distribution)
                            rows[cell] = list(map(max, many, rows[cell])) if cell in rows else many
                            places.setdefault(cell, place)
                            if there:
                                one.on[dtype].update(there)
                                for pattern in of:
                                    one.had[pattern] |= {(CHECKS, check), (DTYPES, dtype), (SOURCES, distribution)}
        left += _list_unplanned_pairs(one, [(specs[b].name, b) for b in its], unfit)
    for one in asked:
        left += _find_unmatched_patterns(one, entries[one.catalog.name], [x for x in asked if x.catalog is one.catalog])
        left += one.left_out(set().union(*(other.planned_keys for other in asked if other.catalog is one.catalog)))
    groups = [
        Group(op, variant, dtype, max(samples), config.seed, check, distribution)
        for (op, variant, dtype, check, distribution), samples in rows.items()
    ]
    wanted = np.array(list(rows.values()), dtype=np.int32).reshape(len(groups), len(specs))
    for g, group in enumerate(groups):
        wanted[g, ~takes[group.check]] = 0
    left += _find_unused_catalogs_and_backends(config, wanted, specs, unfit)
    matrix = Matrix(groups, specs, wanted, left_out=merge_left_out(left), places=list(places.values()))
    for skip in config.skip:
        match_op, match_dtype, match_backend = (
            make_pattern_matcher(skip.ops),
            make_pattern_matcher(skip.dtypes),
            make_pattern_matcher(skip.backends),
        )
        columns = [b for b, spec in enumerate(specs) if match_backend([spec.name])]
        for g, group in enumerate(groups):
            if match_dtype([group.dtype]) and match_op(list_pattern_names(Entry(group.op, group.variant, ()))):
                for b in columns:
                    if wanted[g, b]:
                        wanted[g, b] = 0
                        matrix.skipped.append((g, b, skip.reason))
    return matrix


def _collect_op_patterns(catalog: CatalogConfig, listed: Sequence[Entry], ops: Sequence[str]) -> list[str]:
    """What a config, or the command line, names of a catalog's ops: each is planned or has a line. Kernels of one's own
    are named by their declaration."""
    if ops:
        return [
            pattern
            for pattern in ops
            if any(make_pattern_matcher([pattern])(list_pattern_names(entry)) for entry in listed)
        ]
    if catalog.name == "user" and catalog.ops == ["*"]:
        return [entry.op for entry in listed]
    return list(dict.fromkeys(catalog.ops))


def _find_unmatched_patterns(
    asked: AskedCells, listed: Sequence[Entry], all_of_it: Sequence[AskedCells]
) -> Iterator[LeftOut]:
    """Patterns that match no op that is left, wherever the config lists the catalog."""
    for pattern in asked.parts:
        if any(one.parts.get(pattern) for one in all_of_it):
            continue
        there = any(make_pattern_matcher([pattern])(list_pattern_names(entry)) for entry in listed)
        why = "the config's ops and exclude leave it out" if there else "it matches no op"
        yield LeftOut("ops", (format_op_pattern(asked.catalog.name, pattern),), why)


def _list_unplanned_pairs(
    asked: AskedCells, backends: Sequence[tuple[str, int]], unfit: Mapping[str, Sequence[str]]
) -> Iterator[LeftOut]:
    """Checks that are not planned on some backend, or in some dtype, and dtypes that are not on some backend."""
    for check in asked.values[CHECKS] if any(asked.parts.values()) else ():
        for name, b in backends:
            if unfit[check][b]:
                yield LeftOut(CHECKS, (check,), unfit[check][b], "on", (name,))
        if (
            checks.get_check_or_default(check).gradient
            and (CHECKS, check) in asked.planned_keys
            and DTYPES in asked.named
        ):
            whole = [d for d in asked.values[DTYPES] if (DTYPES, d) in asked.planned_keys and not is_inexact_dtype(d)]
            yield from (LeftOut(CHECKS, (check,), NO_GRADIENT, "in", (dtype,)) for dtype in whole)
    there = set().union(*asked.on.values())
    for dtype in asked.values[DTYPES] if DTYPES in asked.named else ():
        if asked.on[dtype]:
            without = [name for name, b in backends if b in there - asked.on[dtype]]
            yield from (LeftOut(DTYPES, (dtype,), NOT_THERE, "on", (name,)) for name in without)


def _find_unused_catalogs_and_backends(
    config: Config, wanted: np.ndarray, specs: Sequence[BackendSpec], unfit: Mapping[str, Sequence[str]]
) -> Iterator[LeftOut]:
    """Catalogs that no backend is given, and backends that nothing is planned for."""
    given = {b: [c for c in config.catalogs if count_configured_samples(c, spec.name)] for b, spec in enumerate(specs)}
    there = {catalog.name for some in given.values() for catalog in some}
    for catalog in config.catalogs:
        if catalog.name not in there:
            yield LeftOut("catalogs", (catalog.name,), "it is for none of these backends")
    for b in np.flatnonzero(~(wanted > 0).any(axis=0)).tolist():
        asked = dict.fromkeys(check for catalog in given[b] for check in catalog.checks or config.checks)
        whys = dict.fromkeys(filter(None, (unfit[check][b] for check in asked)))
        why = "; ".join(whys) if asked and all(unfit[check][b] for check in asked) else ""
        none = "no op of its catalogs is planned" if given[b] else "no catalog of the config is for it"
        yield LeftOut("backends", (specs[b].name,), why or none)


def _select_planned_dtypes(
    entry: Entry, wanted: Sequence[str], samples: Sequence[int], devices: Sequence[str | None]
) -> Iterator[tuple[str, Sequence[int]]]:
    """(dtype, samples of each backend) of an op: a dtype that no CPU computes is asked of devices alone that have
    it."""
    having: dict[str, set[str]] = {}
    for device, dtype in entry.on_devices:
        having.setdefault(dtype, set()).add(device)
    there = (*entry.dtypes, *having)
    for dtype in there if "*" in wanted else [d for d in wanted if d in there]:
        asked = samples if dtype in entry.dtypes else [n * (d in having[dtype]) for n, d in zip(samples, devices)]
        if any(asked):
            yield dtype, asked


def _count_planned_samples(
    check: str,
    given: tuple[int, ...],
    takes: np.ndarray,
    counted: dict[tuple[str, tuple[int, ...]], tuple[list[int], list[int]]],
) -> tuple[list[int], list[int]]:
    """How many samples of a check each backend has where a config asks for ``given``, and the backends that run any;
    kept in ``counted``, for a matrix asks the same of each of its cells."""
    if (check, given) not in counted:
        many = [checks.get_check_or_default(check).wanted(n) if n else 0 for n in given]
        counted[check, given] = many, [b for b, n in enumerate(many) if n and takes[b]]
    return counted[check, given]


def count_configured_samples(catalog: CatalogConfig, backend: str) -> int:
    """How many samples of an op and dtype a config gives a backend; 0 if the catalog is not for it."""
    if not any(fnmatch.fnmatchcase(backend, p) for p in catalog.backends):
        return 0
    for pattern, count in catalog.samples_for.items():
        if fnmatch.fnmatchcase(backend, pattern):
            return count
    return catalog.samples


def _check_ops_exist(catalog: CatalogConfig, listed: Sequence[Entry]) -> None:
    """Raise ConfigError for an op named in the config that the catalog does not have."""
    valid: list[str] | None = None
    for pattern in [*catalog.ops, *catalog.exclude]:
        if has_magic(pattern):
            continue
        if valid is None:
            valid = sorted({n for e in listed for n in list_pattern_names(e)})
        if pattern not in valid:
            raise UnknownOp(
                pattern, f"catalogs.{catalog.name}.ops: no op {pattern!r}{suggest_nearest_names(pattern, valid)}"
            )
