"""How each step of a sum adds: bits that it keeps, rounding, whether products are rounded first, subnormal numbers, NaN and Inf.

Feature by feature, as matrix units have been probed: a power of two beside a one says by where the one vanishes how
many bits are kept, ties and signs tell the ways of rounding apart (Fasi, Higham, Mikaitis, Pranesh, PeerJ Computer
Science 7:e330, 2021).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tasks.model.dtypes import TABLE
from tasks.passport.device_sum import DeviceSum, NotReadable, Question
from tasks.passport.sum_reading import NodeRule
from tasks.passport.sum_trees import Tree, list_tree_nodes, list_tree_terms

#: Steps of a tree that are measured, spread over it; the others are taken to be as most are.
MEASURED = 48
#: What a step's rounding is called by what becomes of (a half, one and a half, three quarters, minus three quarters) of
#: the last bit kept, in units of it: of a half upwards from an even number, of one from an odd one.
ROUNDINGS: dict[tuple[float, ...], str] = {
    (0.0, 2.0, 1.0, -1.0): "nearest even",
    (0.0, 1.0, 0.0, 0.0): "truncated",
    (0.0, 1.0, 0.0, -1.0): "down",
    (1.0, 2.0, 1.0, 0.0): "up",
    (1.0, 2.0, 1.0, -1.0): "nearest away",
}
#: Accumulators by the bits that they keep.
FORMATS = {
    row.digits + 1: row.name for row in TABLE.values() if row.family == "float" and row.digits and row.bits >= 16
}


#: What tells the largest term of a step: the exponents of its products, or the sums of the exponents of their factors,
#: as matrix units take them: of 1.5 · 1.5 that of 1.
PRODUCTS, FACTORS = "products", "factors"


@dataclass(frozen=True)
class SumAdder:
    """How the steps of a tree add.

    rule: that of most steps; others: those of single steps which differ, by place in `list_tree_nodes`; fused: terms whose
    product is not rounded before it is added. flushes: whether subnormal (inputs, results) become zero, None where it
    is not known. specials: what Inf, Inf − Inf and NaN become ("inf nan nan" is as IEEE 754 has it). overflow: what
    becomes of sums beyond the largest number (`_measure_adder_overflow`). taken: bits that are kept of a factor, 0 for
    all; taking: how the others are lost, of ROUNDINGS.
    """

    rule: NodeRule
    others: dict[int, NodeRule] = field(default_factory=dict)
    fused: tuple[int, ...] = ()
    flushes: tuple[bool | None, bool | None] = (None, None)
    specials: str = ""
    overflow: str = ""
    taken: int = 0
    taking: str = ""

    @property
    def accumulator(self) -> str:
        """The dtype in which most steps add; "" where no dtype has so many bits."""
        return FORMATS.get(self.rule.bits, "")

    def describe(self) -> str:
        """In a few words: what the sums are kept in."""
        what = self.accumulator or f"{self.rule.bits} bits"
        rounding = "" if self.rule.rounding in ("", "nearest even") else f" {self.rule.rounding}"
        aligned = f", {self.rule.aligned} bits aligned" if self.rule.aligned else ""
        others = Counter(FORMATS.get(x.bits, f"{x.bits} bits") for x in self.others.values())
        more = "".join(f", {count} steps {name}" for name, count in others.items())
        return f"{what}{rounding}{aligned}{more}"


class _AdderProbe:
    """Sums of a few terms beside zeros, in units of a number of which the dtype has many powers."""

    def __init__(self, device: DeviceSum) -> None:
        row = TABLE[device.dtype]
        assert row.lowest is not None and row.digits is not None and row.largest is not None
        self.device, self.digits = device, row.digits + 1
        top, lowest = math.floor(math.log2(row.largest)), row.lowest
        share = math.ceil(math.log2(device.terms.products))
        # Far from both ends: a step's result and a share of it are normal numbers.
        if top > 64:
            self.unit, self.most = 0, min(top, 300) // 2
            self.high = self.most
        else:
            # A share of it has four bits, if subnormal ones.
            self.unit = lowest - row.digits + share + 4 if device.terms.divided else lowest + 2
            self.most, self.high = top - self.unit, top
        self.products = device.weighted

    def add_each(self, asked: Sequence[Mapping[int, float]]) -> list[float]:
        """The sums of some terms by number, in units, beside zeros. A value beyond the dtype's range is made of two
        factors where terms are products."""
        scale = self.device.terms.products if self.device.terms.divided else 1
        found = self.device.add_each([self._give(values) for values in asked])
        return [float(x) * scale / 2.0**self.unit for x in found]

    def _give(self, values: Mapping[int, float]) -> Question:
        device = self.device
        left, right = np.zeros(device.count), np.ones(device.count)
        limit = 2.0**self.high
        for term, value in values.items():
            value = value * 2.0**self.unit
            is_alone = bool(device.terms.alone) and term == device.count - 1
            if abs(value) > limit and self.products and not is_alone:
                half = math.floor(math.log2(abs(value))) // 2
                left[term], right[term] = value / 2.0**half, 2.0**half
            else:
                left[term] = value
        return left, right


def confirm_adder(device: DeviceSum, tree: Tree, rule: NodeRule, fused: bool) -> SumAdder | None:
    """The adder whose steps all add by a rule, and all or none of whose products are fused, if that is true of the
    tree's first step but one; None where it is not."""
    node, parent = next(
        ((child, node) for node in list_tree_nodes(tree) for child in node if isinstance(child, tuple)), (None, None)
    )
    found = None if node is None else _measure_adder_node(_AdderProbe(device), node, parent, rule)
    if found is None or replace(found, exponents=rule.exponents) != rule:
        return None
    return measure_adder_ends(device, SumAdder(rule, {}, tuple(range(device.terms.products)) if fused else ()), tree)


def measure_adder_ends(device: DeviceSum, adder: SumAdder, tree: Tree) -> SumAdder:
    """An adder with what becomes of subnormal numbers, Inf and NaN, and of sums beyond the largest number."""
    node = next(list_tree_nodes(tree))  # the first step takes nothing but terms
    i, j = (list_tree_terms(child)[0] for child in node[:2])
    far = next((term for term in range(device.count) if term not in (i, j)), None)
    return replace(
        adder,
        flushes=measure_adder_flushing(device, i, j),
        specials=_measure_adder_specials(device),
        overflow="" if far is None else _measure_adder_overflow(device, i, j, far),
    )


def measure_adder(device: DeviceSum, tree: Tree) -> SumAdder:
    """How the steps of a revealed tree add. Raises NotReadable."""
    probe = _AdderProbe(device)
    nodes = list(list_tree_nodes(tree))
    parents = {id(child): node for node in nodes for child in node if isinstance(child, tuple)}
    sizes = {id(node): len(list_tree_terms(node)) for node in nodes}

    def alike(node: tuple[Tree, ...]) -> tuple[Any, ...]:
        """What tells the steps of a kernel apart: how many terms their parts have, and the step that takes them."""
        parent = parents.get(id(node))
        parts = tuple(sorted(sizes.get(id(child), 1) for child in node))
        taken = min(sizes.get(id(x), 1) for x in parent) if parent else 0
        return (parts[0], len(parts), parts[-1] > 1, taken, parent is tree)

    kinds: dict[tuple[Any, ...], list[int]] = {}
    for k, node in enumerate(nodes):
        kinds.setdefault(alike(node), []).append(k)
    rules: dict[int, NodeRule] = {}
    like = NodeRule(0)
    for members in kinds.values():
        step = max(1, len(members) * len(kinds) // MEASURED)
        found: dict[int, NodeRule] = {}
        for k in members[::step]:
            rule = _measure_adder_node(probe, nodes[k], parents.get(id(nodes[k])), like)
            if rule is not None:
                found[k] = like = rule
        if found:
            most = Counter(found.values()).most_common(1)[0][0]
            rules |= dict.fromkeys(members, most) | found
    if not rules:
        raise NotReadable("too few values", "no step's bits lie within what the dtype can ask")
    usual = Counter(rules.values()).most_common(1)[0][0]
    others = {k: rule for k, rule in rules.items() if rule != usual}
    fused = tuple(list_fused_terms(device, tree)) if device.weighted else ()
    taken = measure_factor_bits(device) if device.weighted else 0
    if taken:  # nothing that so few bits show is rounded before it is added
        fused = tuple(range(device.terms.products))
    return measure_adder_ends(device, SumAdder(usual, others, fused, taken=taken), tree)


def _measure_adder_node(
    probe: _AdderProbe, node: tuple[Tree, ...], parent: tuple[Tree, ...] | None, like: NodeRule
) -> NodeRule | None:
    """The rule of a step; None of the last, whose result is the output's. like: the rule that it is likely to have."""
    i, j = (list_tree_terms(x)[0] for x in node[:2])
    aligned, alignment = 0, ""
    if len(node) > 2:
        aligned, alignment = _measure_adder_width(probe, i, j, list_tree_terms(node[2])[0], like.aligned)
        if (
            isinstance(node[0], tuple) and len(node) > 3
        ):  # among products alone: the sum so far may be taken with more bits
            i, j = list_tree_terms(node[1])[0], list_tree_terms(node[2])[0]
    if parent is None:
        alone = aligned and not any(isinstance(child, tuple) for child in node)
        return NodeRule(aligned, alignment, aligned, alignment) if alone else None
    beside = next(x for x in parent if x is not node)
    bits, rounding = _measure_adder_width(probe, i, j, list_tree_terms(beside)[0], like.bits)
    return NodeRule(bits, rounding, aligned, alignment) if bits else None


def _measure_adder_width(probe: _AdderProbe, i: int, j: int, far: int, like: int = 0) -> tuple[int, str]:
    """(bits that are kept where terms i and j are added, how the rest is lost); (0, "") where nothing can be seen. far:
    a term that meets both of them later, or in the same step of several; like: bits that are likely, 0 for none."""

    def ask(*asked: tuple[int, float]) -> list[float]:
        """Of (power, value, …): what is left of a value beside that power of two, of the same sign."""
        signs = [math.copysign(2.0**k, value) for k, value in asked]
        found = probe.add_each([{i: big, j: value, far: -big} for big, (_, value) in zip(signs, asked)])
        divided = probe.device.terms.divided
        return [round(2 * x) / 2 if divided and math.isfinite(x) else x for x in found]

    def fractions(bits: int) -> list[tuple[int, float]]:
        return [(bits, 1.0), (bits, 3.0), (bits, 1.5), (bits, -1.5)]

    most = probe.most if not probe.products else min(2 * probe.high - probe.unit, 120)
    none, kept, *said = ask((0, 1.0), *([(like - 1, 1.0), *fractions(like)] if 0 < like <= most else [(0, 1.0)]))
    if none != 1.0:
        return 0, ""
    bits = like
    if not said or kept != 1.0 or said[0] == 1.0:
        low, high = 0, most
        while high - low > 1:  # kept at low
            width = probe.device.width
            points = sorted({low + (high - low) * k // (width + 1) for k in range(1, width + 1)} - {low})
            told = ask(*((point, 1.0) for point in points))
            lost = next((point for point, x in zip(points, told) if x != 1.0), high)
            low, high = max([low, *(point for point in points if point < lost)]), lost
        if high == most and ask((most, 1.0)) == [1.0]:
            return 0, ""
        bits = low + 1
        said = ask(*fractions(bits))
    return bits, ROUNDINGS.get(tuple(x / 2 for x in said), "other")


def measure_sum_width(device: DeviceSum) -> tuple[int, str]:
    """(bits that are kept where a device's first two terms meet, beside the third, how the rest is lost); (0, "") where
    nothing is lost."""
    return _measure_adder_width(_AdderProbe(device), 0, 1, 2)


def measure_factor_bits(device: DeviceSum) -> int:
    """Bits of a factor that a product of it and one takes, one beside zeros; 0 where it takes all that the dtype
    has."""
    digits = TABLE[device.dtype].digits or 0
    right, left = np.ones(device.count), np.zeros(device.count)
    for kept in range(digits, 0, -1):
        left[0] = 1 + 2.0**-kept
        if device.add(left, right) == left[0]:
            return 0 if kept == digits else kept + 1
    return 0


def list_fused_terms(device: DeviceSum, tree: Tree) -> list[int]:
    """Terms whose product reaches the sum with more bits than the dtype has."""
    terms = sorted(
        (term, list_tree_terms(next(x for x in node if x is not term))[0])
        for node in list_tree_nodes(tree)
        for term in node
        if isinstance(term, int) and term < device.terms.products
    )
    rests = device.add_each([one for term, beside in terms for one in _sum_square_beside(device, term, beside)])
    return [term for (term, _), both in zip(terms, rests.reshape(-1, 2)) if 0.0 not in both]


def is_term_fused(device: DeviceSum, term: int, beside: int) -> bool:
    """Whether the product of a term reaches the sum, here of it and another term, with more bits than the dtype has."""
    return 0.0 not in device.add_each(_sum_square_beside(device, term, beside))


def _sum_square_beside(device: DeviceSum, term: int, beside: int) -> list[Question]:
    """Sums of a product that the dtype does not hold and of a term that takes it away as it is rounded down, and up: 0
    where it was."""
    digits = (TABLE[device.dtype].digits or 0) + 1
    half = (digits + 1) // 2
    factor = 1.0 + 1.5 * 2.0**-half  # whose square lies an eighth of a last bit above a number of the dtype
    low = Fraction(factor) ** 2 // Fraction(2) ** (1 - digits) * Fraction(2) ** (1 - digits)
    asked: list[Question] = []
    for rounded in (float(low), float(low) + 2.0 ** (1 - digits)):
        left, right = np.zeros(device.count), np.zeros(device.count)
        left[term] = right[term] = factor
        left[beside], right[beside] = -rounded, 1.0
        asked.append((left, right))
    return asked


def measure_adder_flushing(device: DeviceSum, i: int = 0, j: int = 1) -> tuple[bool | None, bool | None]:
    """Whether subnormal (inputs, results) become zero, of either factor of a product. i, j: terms that meet before all
    others."""
    row = TABLE[device.dtype]
    assert row.lowest is not None and row.digits is not None
    scale = device.terms.products if device.terms.divided else 1
    normal = 2.0**row.lowest
    tiny = normal / 2

    def give(values: Mapping[int, float], factors: Mapping[int, float]) -> Question:
        left, right = np.zeros(device.count), np.zeros(device.count)
        left[list(values)], right[list(factors)] = list(values.values()), list(factors.values())
        return left, right

    if scale > 1:
        return (None, None)
    if device.weighted:
        asked = [give({0: tiny}, {0: 4.0}), give({0: 4.0}, {0: tiny}), give({0: normal}, {0: 0.5})]
        first, second, result = device.add_each(asked) == 0.0
        return bool(first or second), bool(result)
    # Beside a normal number no result is subnormal, unless the tiny one comes to a sum of nothing before.
    beside = [give({one: normal, other: tiny}, {}) for one, other in ((i, j), (j, i))]
    *sums, result = device.add_each([*beside, give({i: 1.5 * normal, j: -normal}, {})])
    return all(x == normal for x in sums), bool(result == 0.0)


#: Words for what a sum beyond the largest number becomes: the sum itself, and less, as where sums saturate.
HELD, LESS = "held", "less"


def _measure_adder_overflow(device: DeviceSum, i: int, j: int, far: int) -> str:
    """What 2P becomes and what 2P − P is, P being the largest power of two of the dtype: "inf inf" where nothing larger
    is held on the way either, "inf held" where it is, "less less" where sums saturate. i, j: terms that meet before the
    one that is ``far``."""
    row = TABLE[device.dtype]
    assert row.largest is not None
    top = 2.0 ** (math.frexp(row.largest)[1] - 1)
    share = 1.0 / device.terms.products if device.terms.divided else 1.0
    asked, expected = [], (2.0 * top * share, top * share)
    for values in ({i: top, j: top}, {i: top, j: top, far: -top}):
        left = np.zeros(device.count)
        left[list(values)] = list(values.values())
        asked.append((left, np.ones(device.count)))
    near = 2.0**-row.digits if row.digits else 0.0  # a share of it is rounded
    with np.errstate(all="ignore"):
        found = device.add_each(asked)

    def name(x: float, exact: float) -> str:
        if not math.isfinite(x):
            return f"{x:g}"
        return HELD if abs(x - exact) <= (near * exact if share != 1.0 else 0.0) else LESS

    return " ".join(name(float(x), exact) for x, exact in zip(found, expected))


def _measure_adder_specials(device: DeviceSum) -> str:
    """What Inf, Inf − Inf and NaN become, as numbers are written."""
    asked = []
    for values in ((math.inf,), (math.inf, -math.inf), (math.nan,)):
        left = np.zeros(device.count)
        left[: len(values)] = values
        asked.append((left, np.ones(device.count)))
    try:
        return " ".join(f"{x:g}" for x in device.add_each(asked))
    except (OverflowError, ValueError):
        return ""
