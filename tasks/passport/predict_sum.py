"""The model of a sum: what a device with a known tree and adder gives for any terms, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.matrix_units.adders import find_exponent_powers, round_to_odd, sum_aligned_terms, sum_with_rest
from tasks.model.dtypes import round_to_dtype
from tasks.passport.adder import FACTORS, SumAdder
from tasks.passport.sum_reading import NodeRule
from tasks.passport.sum_trees import Tree, list_tree_nodes

#: Bits of float64, and the exponent of its smallest normal number.
FULL, LOWEST = 53, -1022
#: Splits a float64 into two halves whose products are exact (Dekker 1971).
_SPLIT = 2.0**27 + 1


@dataclass(frozen=True)
class SumModel:
    """What a device computes of some terms.

    finish: what is done with the sum: "" nothing, "divide" by the number of terms, "reciprocal": times one over that
    number, rounded.
    """

    tree: Tree
    adder: SumAdder
    output: str
    finish: str = ""
    products: int = 0

    def compute(self, left: np.ndarray, right: np.ndarray | None = None) -> np.ndarray:
        """The result of terms [..., count], in float64; each value is one of the output's dtype. right: the other
        factors."""
        if right is not None and self.adder.taken:
            rule = NodeRule(self.adder.taken, self.adder.taking)
            left, right = (np.where(np.isfinite(x), _round_to_kept_bits(x, rule), x) for x in (left, right))
        high, low = (left, None) if right is None else _predict_product(left, right)
        powers = _find_exponent_power(left) * (1.0 if right is None else _find_exponent_power(right))
        fused = frozenset(self.adder.fused)
        number = {id(node): k for k, node in enumerate(list_tree_nodes(self.tree))}

        def evaluate(node: Tree) -> tuple[np.ndarray, np.ndarray | None]:
            """(value, what it is too small by), of a product that is not rounded."""
            if isinstance(node, int):
                if low is None or node >= self.products:
                    return high[..., node], None
                if node in fused:
                    return high[..., node], low[..., node]
                if self.adder.rule.bits >= FULL:
                    return high[..., node], None
                return _round_to_kept_bits(_round_sum_to_odd(high[..., node], low[..., node]), self.adder.rule), None
            rule = self.adder.others.get(number[id(node)], self.adder.rule)
            parts = [evaluate(child) for child in node]
            if all(isinstance(child, int) and child in fused for child in node) and len(node) == 2:
                # One of two products begins the sum: it is rounded, the other is added to it.
                value, rest = parts[0]
                assert rest is not None
                parts[0] = (
                    (value if rule.bits >= FULL else _round_to_kept_bits(_round_sum_to_odd(value, rest), rule)),
                    None,
                )
            if len(parts) == 2 and not rule.aligned:
                return _predict_sum(parts[0], parts[1], rule), None
            by_factors = rule.exponents == FACTORS
            tops = [
                powers[..., child] if by_factors and isinstance(child, int) else _find_exponent_power(part[0])
                for child, part in zip(node, parts)
            ]
            return _predict_aligned_sum(parts, tops, rule), None

        value, rest = evaluate(self.tree)
        total = value if rest is None else value + rest
        if self.finish:
            total = _predict_quotient(total, self.products, self.adder.rule, self.finish)
        return round_to_dtype(total, self.output)


def _predict_product(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The product as a float64 and what that is off by."""
    product = left * right

    def split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        big = _SPLIT * x
        high = big - (big - x)
        return high, x - high

    with np.errstate(all="ignore"):
        (a, b), (c, d) = split(left), split(right)
        return product, ((a * c - product) + a * d + b * c) + b * d


def _round_sum_to_odd(value: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """value + rest rounded to odd, so that rounding it to fewer bits rounds the exact sum."""
    return round_to_odd(*sum_with_rest(value, rest))


def _predict_sum(
    a: tuple[np.ndarray, np.ndarray | None], b: tuple[np.ndarray, np.ndarray | None], rule: NodeRule
) -> np.ndarray:
    """a + b rounded once."""
    if a[1] is not None and b[1] is not None:
        total, rest = sum_with_rest(a[0], b[0])
        return _round_to_kept_bits(_round_sum_to_odd(total, rest + a[1] + b[1]), rule)
    exact, (high, low) = (b, a) if a[1] is not None else (a, b)
    if low is None:
        if rule.bits == FULL and rule.rounding in ("", "nearest even"):
            return exact[0] + high
        total, rest = sum_with_rest(exact[0], high)
        return _round_to_kept_bits(_round_sum_to_odd(total, rest), rule)
    # A product and a sum: three numbers, whose sum is rounded once.
    first, second = sum_with_rest(exact[0], low)
    third, fourth = sum_with_rest(high, first)
    odd = _round_sum_to_odd(fourth, second)
    if rule.bits == FULL:
        return third + odd
    total, rest = sum_with_rest(third, odd)
    return _round_to_kept_bits(_round_sum_to_odd(total, rest), rule)


def _predict_aligned_sum(
    parts: list[tuple[np.ndarray, np.ndarray | None]], powers: list[np.ndarray], rule: NodeRule
) -> np.ndarray:
    """Several terms added at once: each is cut to the bits that are kept beside the largest power of two, their sum is
    exact, and is rounded."""
    values = [np.array(p[0]) if p[1] is None else _round_sum_to_odd(p[0], p[1]) for p in parts]
    top = np.maximum.reduce(np.broadcast_arrays(*powers))
    unit = np.where(top > 0, top, 1.0) * 2.0 ** (1 - (rule.aligned or FULL))
    unit = np.broadcast_to(unit, np.broadcast_shapes(*(np.shape(x) for x in (unit, *values))))
    return _round_to_kept_bits(sum_aligned_terms(values, unit, lambda x: _cut_to_whole_bits(x, rule.alignment)), rule)


def _find_exponent_power(values: np.ndarray) -> np.ndarray:
    """2 to the exponent of each value; 0 for zero."""
    return find_exponent_powers(values, LOWEST)


def _round_to_kept_bits(value: np.ndarray, rule: NodeRule) -> np.ndarray:
    """float64 numbers with the bits that a step keeps."""
    if rule.bits >= FULL or not rule.bits:
        return value
    significand, exponent = np.frexp(value)
    scaled = np.ldexp(significand, rule.bits)
    return np.asarray(np.ldexp(_cut_to_whole_bits(scaled, rule.rounding), exponent - rule.bits))


def _cut_to_whole_bits(scaled: np.ndarray, how: str) -> np.ndarray:
    """Whole numbers of others, as a rounding makes them; to the nearest even one unless it says otherwise."""
    if how == "nearest away":
        return np.asarray(np.trunc(scaled + np.copysign(0.5, scaled)))
    ways: dict[str, Callable[[np.ndarray], Any]] = {"truncated": np.trunc, "down": np.floor, "up": np.ceil}
    return np.asarray(ways.get(how, np.round)(scaled))


def _predict_quotient(total: np.ndarray, count: int, rule: NodeRule, how: str) -> np.ndarray:
    if how == "reciprocal":
        share = _round_to_kept_bits(np.asarray(1.0 / count), rule)
        return _round_to_kept_bits(
            _round_sum_to_odd(*_predict_product(total, np.broadcast_to(share, total.shape))), rule
        )
    quotient = total / count
    if rule.bits >= FULL:
        return quotient
    high, low = _predict_product(quotient, np.full_like(total, count))
    return _round_to_kept_bits(_round_sum_to_odd(quotient, (total - high - low) / count), rule)
