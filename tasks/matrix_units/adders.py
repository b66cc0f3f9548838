"""How matrix units add: a class for each kind of adder, vectorised over a matrix of results, in exact arithmetic.

An adder takes the products of one row and one column in their order, so many in a step, and adds each step to its
accumulator. Products are exact in all of them: float64 holds those of two numbers of at most 24 digits. Sources are
named in the table (`tasks.matrix_units.table`), whose rows are made of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

#: Exponent of float32's smallest normal number, digits behind its point, and the first power of two beyond its range.
LOWEST, DIGITS, BEYOND = -126, 23, 2.0**128


@dataclass(frozen=True)
class UnitFactors:
    """One side of a product, summed axis first: values (..., k, rows or columns) in float64.

    powers: of each value, 2 to its exponent as the unit reads it: not below that of the dtype's smallest normal number,
    0 for zero. scales, scale_powers: (..., k / block, rows or columns) in float64, of each ``block`` values, where they
    are not part of the values.
    """

    values: np.ndarray
    powers: np.ndarray
    scales: np.ndarray | None = None
    scale_powers: np.ndarray | None = None
    block: int = 1

    def cut(self, start: int, stop: int) -> UnitFactors:
        """The factors of some summed elements; with scales, of whole blocks."""
        scales, powers = self.scales, self.scale_powers
        if scales is not None and powers is not None:
            blocks = slice(start // self.block, -(-stop // self.block))
            scales, powers = scales[..., blocks, :], powers[..., blocks, :]
        return UnitFactors(self.values[..., start:stop, :], self.powers[..., start:stop, :], scales, powers, self.block)

    def finite(self) -> UnitFactors:
        """The factors with zero for what is no finite number."""
        good = np.isfinite(self.values)
        return replace(self, values=np.where(good, self.values, 0.0), powers=np.where(good, self.powers, 0.0))


def find_exponent_powers(values: np.ndarray, lowest: int) -> np.ndarray:
    """2 to the exponent of each value, at least 2**``lowest``; 0 for zero. float64 in, float64 out."""
    exponents = np.maximum(np.frexp(values)[1] - 1, lowest)
    return np.where(values == 0, 0.0, np.ldexp(1.0, exponents))


def multiply_unit_outer(a: np.ndarray, b: np.ndarray, place: int, out: np.ndarray | None = None) -> np.ndarray:
    """Products (..., m, n) of the elements at one place of the summed axis."""
    made: np.ndarray = np.multiply(a[..., place, :, None], b[..., place, None, :], out=out)
    return made


class UnitAdder:
    """Base of adders. fused: how many products it adds in a step."""

    fused: int

    @property
    def words(self) -> str:
        """How it adds, for people."""
        raise NotImplementedError

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        """The accumulator (float64, (..., m, n), in its own format) after one step. It may overflow to ±inf."""
        raise NotImplementedError

    def sum(self, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        """The accumulator after all products, from 0; NaN and infinities are taken as float64 takes them."""
        shape = np.broadcast_shapes(a.values.shape[:-2], b.values.shape[:-2])
        total = np.zeros((*shape, a.values.shape[-1], b.values.shape[-1]))
        with np.errstate(over="ignore", invalid="ignore"):
            for start, stop in list_unit_steps(a.values.shape[-2], self.fused):
                total = self.add(total, a.cut(start, stop), b.cut(start, stop))
        return total


class FiniteAdder(UnitAdder):
    """Base of adders that are computed on finite numbers: what is not is kept apart, and an accumulator that is not
    stays so."""

    def sum(self, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        known = np.isfinite(a.values).all() and np.isfinite(b.values).all()
        shape = np.broadcast_shapes(a.values.shape[:-2], b.values.shape[:-2])
        total = np.zeros((*shape, a.values.shape[-1], b.values.shape[-1]))
        special = np.zeros_like(total)
        for start, stop in list_unit_steps(a.values.shape[-2], self.fused):
            left, right = a.cut(start, stop), b.cut(start, stop)
            if not known:
                with np.errstate(invalid="ignore", over="ignore"):
                    products = np.matmul(np.swapaxes(left.values, -1, -2), right.values)
                    special += np.where(np.isfinite(products), 0.0, products)
                left, right = left.finite(), right.finite()
            total = self.add(total, left, right)
            if not np.isfinite(total).all():
                beyond = ~np.isfinite(total)
                special = np.where(beyond & (special == 0), total, special)
                total = np.where(beyond, 0.0, total)
        return np.where(special == 0, total, special)


def sum_aligned_terms(
    terms: Iterable[np.ndarray], unit: np.ndarray, cut: Callable[[np.ndarray], np.ndarray] | None = None
) -> np.ndarray:
    """The sum of arrays of float64, each cut off to whole ``unit`` s (a power of two for each result) before they are
    added, exactly; they are overwritten, for to allocate others costs more than all the rest. cut: to whole numbers,
    towards zero unless given. The adder of matrix units: unit is the largest power of two among the terms, so many
    digits lower."""
    per_unit, units = 1 / unit, np.zeros_like(unit)
    for term in terms:
        term *= per_unit
        units += np.trunc(term, out=term) if cut is None else cut(term)
    units *= unit
    return units


@dataclass(frozen=True)
class TruncatingAdder(FiniteAdder):
    """Products and accumulator are aligned at the largest exponent among them and cut off so many digits below it;
    their sum is cut off to the digits of the accumulator.

    kept: digits that are kept while aligning; floor: the lowest exponent at which anything is aligned, that of zeros;
    digits: of the accumulator; half: whether it is float16, to which the sum is rounded to nearest.
    """

    fused: int
    kept: int
    floor: int
    digits: int = DIGITS
    half: bool = False

    @property
    def words(self) -> str:
        return f"aligned and cut off {self.kept} digits below the largest; sum cut off to {self.digits} digits"

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        top = np.maximum(find_exponent_powers(total, -14 if self.half else LOWEST), 2.0**self.floor)
        term = np.empty_like(total)
        places = range(a.values.shape[-2])
        for place in places:
            np.maximum(top, multiply_unit_outer(a.powers, b.powers, place, term), out=top)
        products = (multiply_unit_outer(a.values, b.values, place, term) for place in places)
        units = sum_aligned_terms(itertools.chain([total.copy()], products), top * 2.0**-self.kept)
        if self.half:
            with np.errstate(over="ignore"):
                return units.astype(np.float16).astype(np.float64)
        return cut_adder_digits(units, self.digits)


@dataclass(frozen=True)
class GroupedAdder(FiniteAdder):
    """Products of 4-bit numbers are summed exactly in groups; the sums, each times the scales of its two blocks, and
    the accumulator are aligned at the largest exponent among the products of scales and the accumulator, and cut off as
    by `TruncatingAdder`.

    group: products of a group; kept, floor: as there.
    """

    fused: int
    group: int
    kept: int
    floor: int

    @property
    def words(self) -> str:
        return f"exact in groups of {self.group}, then aligned and cut off {self.kept} digits below the largest scale; sum cut off to {DIGITS} digits"

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        assert a.scales is not None and b.scales is not None
        assert a.scale_powers is not None and b.scale_powers is not None
        top = np.maximum(find_exponent_powers(total, LOWEST), 2.0**self.floor)
        sums = []
        for start, stop in list_unit_steps(a.values.shape[-2], self.group):
            block = start // a.block
            pairs = [multiply_unit_outer(a.values, b.values, place) for place in range(start, stop)]
            some = np.logical_or.reduce([x != 0 for x in pairs])
            sums.append(np.add.reduce(pairs) * multiply_unit_outer(a.scales, b.scales, block))
            np.maximum(top, np.where(some, multiply_unit_outer(a.scale_powers, b.scale_powers, block), 0.0), out=top)
        return cut_adder_digits(sum_aligned_terms((total.copy(), *sums), top * 2.0**-self.kept))


@dataclass(frozen=True)
class ExactAdder(FiniteAdder):
    """The products of a step and the accumulator are added as if exactly and rounded once, to nearest."""

    fused: int

    @property
    def words(self) -> str:
        return "exact, rounded once to nearest"

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        terms = [total, *(multiply_unit_outer(a.values, b.values, place) for place in range(a.values.shape[-2]))]
        return round_to_single(*_distil_sum(terms))


@dataclass(frozen=True)
class ChainedAdder(UnitAdder):
    """One product after the other is added to the accumulator by a fused multiply-add in float32."""

    fused: int = 1

    @property
    def words(self) -> str:
        return "fused multiply-add, rounded to nearest"

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        return round_to_single(*sum_with_rest(total, multiply_unit_outer(a.values, b.values, 0)))


@dataclass(frozen=True)
class PairedAdder(UnitAdder):
    """Products are added in pairs, the sums of pairs as well, then to the accumulator, each rounded to float32;
    subnormal numbers are taken for zero and returned as zero. fused: a power of two."""

    fused: int

    @property
    def words(self) -> str:
        return "in pairs, each sum rounded to nearest; subnormal numbers are 0"

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        count = a.values.shape[-2]
        sums = [_flush_subnormals(multiply_unit_outer(a.values, b.values, place)) for place in range(count)]
        sums += [np.zeros_like(sums[0])] * (self.fused - count)
        while len(sums) > 1:
            sums = [_flush_subnormals(x + y) for x, y in zip(sums[::2], sums[1::2])]
        return _flush_subnormals(_flush_subnormals(total) + sums[0]).astype(np.float64)


@dataclass(frozen=True)
class LateAdder(UnitAdder):
    """Products are aligned with one another and cut off; their sum and the accumulator are then aligned and rounded
    down, added, and rounded to nearest.

    kept: digits that are kept while aligning products, and of the accumulator; wide: digits of the sum; parted: whether
    even and odd products are aligned apart, and the two sums rounded down at the larger exponent.
    """

    fused: int
    kept: int = 24
    wide: int = 31
    parted: bool = False

    @property
    def words(self) -> str:
        return (
            f"{'even and odd apart, ' * self.parted}aligned and cut off {self.kept} digits below the largest; then with the accumulator, "
            f"rounded down to {self.wide} digits; sum to nearest"
        )

    def add(self, total: np.ndarray, a: UnitFactors, b: UnitFactors) -> np.ndarray:
        count = a.values.shape[-2]
        parts = [range(0, count, 2), range(1, count, 2)] if self.parted else [range(count)]
        sums = [self._align(total, a, b, places) for places in parts]
        power = np.maximum.reduce([x for x, _ in sums])
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if self.parted:
                dot = np.zeros_like(total)
                for own, part in sums:
                    dot += np.where(own > 0, _round_down_to_unit(part, power * 2.0**-self.kept), 0.0)
            else:
                dot = sums[0][1]
            own = np.maximum(find_exponent_powers(total, LOWEST), 2.0**LOWEST)
            top = np.maximum(power, own)
            held = _round_down_to_unit(total, top * 2.0**-self.kept)
            if self.parted:
                held = np.where(own < top * 2.0 ** (-self.kept - 1), 0.0, held)
            made = _round_down_to_unit(dot, top * 2.0 ** -(self.wide + 1)) + held
            made = _round_down_to_unit(
                made, np.maximum(find_exponent_powers(made, LOWEST), 2.0**LOWEST) * 2.0**-self.wide
            )
        return made.astype(np.float32).astype(np.float64)

    def _align(self, total: np.ndarray, a: UnitFactors, b: UnitFactors, places: range) -> tuple[np.ndarray, np.ndarray]:
        """(the largest power of two among some products, their sum cut off below it)."""
        top, term = np.zeros_like(total), np.empty_like(total)
        for place in places:
            np.maximum(top, multiply_unit_outer(a.powers, b.powers, place, term), out=top)
        products = (_overflow_to_infinity(multiply_unit_outer(a.values, b.values, place, term)) for place in places)
        return top, sum_aligned_terms(products, np.where(top > 0, top, 1.0) * 2.0**-self.kept)


def _overflow_to_infinity(values: np.ndarray) -> np.ndarray:
    """Values of which those beyond float32's range are ±inf."""
    beyond = np.abs(values) >= BEYOND
    if beyond.any():
        values[beyond] = np.copysign(np.inf, values[beyond])
    return values


# --- exact arithmetic ---------------------------------------------------------------------------------------------


def cut_adder_digits(values: np.ndarray, digits: int = DIGITS) -> np.ndarray:
    """float64 values cut off, towards zero, to float32's range and so many of its digits; what is beyond the range
    becomes ±inf."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    rose = np.abs(near) > np.abs(values)
    bits = near.view(np.int32) - rose  # one spacing nearer to zero, whatever the sign
    bits &= ~np.int32((1 << (DIGITS - digits)) - 1)
    made = bits.view(np.float32).astype(np.float64)
    beyond = np.abs(values) >= BEYOND
    if beyond.any():
        made[beyond] = np.copysign(np.inf, values[beyond])
    return made


def sum_with_rest(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x + y in float64, and what was lost in it (Knuth, The Art of Computer Programming 2, 4.2.2)."""
    total = x + y
    other = total - x
    return total, (x - (total - other)) + (y - other)


def round_to_odd(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """high + low rounded to odd in float64: to the neighbour with an odd last bit where it is not a float64; |low| is
    below half a spacing of high, a sign for what is lost.

    53 digits are more than twice 24 and two, so that rounding again is rounding once (Boldo and Melquiond, Emulation of
    a FMA and correctly rounded sums, IEEE TC 57, 2008). Nothing is lost beside what is no number.
    """
    bits = np.ascontiguousarray(high).view(np.int64)
    lost = ((low > 0) | (low < 0)) & np.isfinite(high)
    away = (low > 0) == (high > 0)
    return np.where(lost & ((bits & 1) == 0), np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def round_to_single(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """high + low rounded once to float32, as float64; |low| as in `round_to_odd`."""
    with np.errstate(over="ignore"):
        return round_to_odd(high, low).astype(np.float32).astype(np.float64)


def _distil_sum(terms: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(the sum of some arrays rounded to float64, the largest part of what is lost in it), by adding neighbours with
    their errors until none changes: each is then below half a spacing of the next."""
    changed = True
    while changed:
        changed = False
        for k in range(len(terms) - 1):
            total, lost = sum_with_rest(terms[k + 1], terms[k])
            changed |= not (np.array_equal(total, terms[k + 1]) and np.array_equal(lost, terms[k]))
            terms[k + 1], terms[k] = total, lost
    return terms[-1], terms[-2]


def _flush_subnormals(values: np.ndarray) -> np.ndarray:
    """As float32, subnormal numbers as zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(np.float32, copy=False)
    return np.where(np.abs(made) < np.float32(2.0**LOWEST), np.float32(0), made)


def _round_down_to_unit(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Values rounded towards minus infinity to multiples of ``unit``, powers of two."""
    made: np.ndarray = np.floor(values / unit) * unit
    return made


def list_unit_steps(count: int, size: int) -> Iterator[tuple[int, int]]:
    """(first, behind the last) of each step of ``size`` elements of ``count``."""
    for start in range(0, count, size):
        yield start, min(start + size, count)
