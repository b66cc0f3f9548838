"""The tree of a sum as data: which terms are added first, what such an order is called, and how it is drawn.

A tree is the number of a term, or the tuple of the trees that one step adds. Its terms are numbered as they lie in
memory along the axis that is summed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

#: A term, or what is added in one step.
Tree = Union[int, tuple["Tree", ...]]

#: What the names of orders mean (`Kind.__str__`).
NAMES = {
    "sequential": "one after another; *each 2 reversed*: 1, 0, 3, 2, …; *in steps of 9*: 0, 9, 18, …, then 1, 10, …",
    "k lanes": "every k-th term by itself, then the lanes",
    "n blocks of b": "neighbors by themselves, then the blocks. Over several sizes: *blocked by b* if the block size stays the same, "
    "*split-K by s* if their number does",
    "pairwise, halves, folded": "neighbors, then their sums; halves, and so on within; the second half onto the first, element by element",
    "fused groups of g": "g at a time, in one step with the sum so far, as matrix units do",
    "one step": "all at once",
    "…, then 3 one by one; the last 3 within": "what does not fill the lanes is added after them, or to the first of them",
    "…, from the bias; then the bias": "where a bias comes in",
    "one by one, irregular": "in an order that none of these makes; it is kept and drawn all the same",
}


@dataclass(frozen=True)
class TreeKind:
    """What an order of adding is called.

    code: of SIMPLE, "reversed", "swapped", "strided", "one by one" (in another order), "blocks", "lanes", "fused",
    "head", "tail", "remainder", "one step", "term" or "irregular"; size: terms of a block, of a head, tail or
    remainder, terms that are swapped or that a step fuses, or how many lanes; parts: how many blocks or lanes there
    are; inner: the order within a block or lane, outer: that in which the blocks or lanes are added, or that of the
    terms that are not in a head, tail or remainder.
    """

    code: str
    size: int = 0
    parts: int = 0
    inner: TreeKind | None = None
    outer: TreeKind | None = None

    def __str__(self) -> str:
        """In words, the outermost first."""
        if self.code == "fused":
            return f"fused groups of {self.size}"
        if self.code == "swapped":
            return f"sequential, each {self.size} reversed"
        if self.code == "strided":
            return f"sequential in steps of {self.size}" + ", each 2 reversed" * (self.inner is not None)
        if self.code == "tail":
            return f"{self.outer}, then {self.size} one by one"
        if self.code in ("head", "remainder"):
            return f"{self.outer}, the {'first' if self.code == 'head' else 'last'} {self.size} within"
        if self.code not in ("blocks", "lanes"):
            return self.code
        what = f"{self.parts} blocks of {self.size}" if self.code == "blocks" else f"{self.parts} lanes"
        inner = "" if self.inner is None or self.inner.code in ("sequential", "term") else f" ({self.inner})"
        joined = "" if self.outer is None or self.outer.code == "sequential" else f", joined {self.outer}"
        return what + inner + joined


def list_tree_terms(tree: Tree) -> tuple[int, ...]:
    """Numbers of the terms in a tree, ascending."""
    found, left = [], [tree]
    while left:
        node = left.pop()
        if isinstance(node, int):
            found.append(node)
        else:
            left.extend(node)
    return tuple(sorted(found))


def get_first_term(tree: Tree) -> int:
    """The number of a term of a tree, of one that `order_tree` made the smallest."""
    while not isinstance(tree, int):
        tree = tree[0]
    return tree


def list_tree_nodes(tree: Tree) -> Iterator[tuple[Tree, ...]]:
    """Every step of a tree, those of its parts before it."""
    if isinstance(tree, int):
        return
    for child in tree:
        yield from list_tree_nodes(child)
    yield tree


def order_tree(tree: Tree) -> Tree:
    """The same order of adding with the parts of each step in the order of their first terms: equal orders are equal
    then."""

    def order(node: Tree) -> tuple[int, Tree]:
        """(the first term, the tree in order)."""
        if isinstance(node, int):
            return node, node
        parts = sorted(map(order, node), key=lambda part: part[0])
        return parts[0][0], tuple(part[1] for part in parts)

    return order(tree)[1]


def encode_tree(tree: Tree) -> list[int]:
    """A tree as numbers: for each term, and then for each step, the number of the step that takes it; -1 at the root.
    Terms are numbered from 0, steps on from there, a step after those of its parts."""
    count = len(list_tree_terms(tree))
    parents = [-1] * count

    def number(node: Tree) -> int:
        if isinstance(node, int):
            return node
        below = [number(child) for child in node]
        parents.append(-1)
        for child in below:
            parents[child] = len(parents) - 1
        return len(parents) - 1

    number(order_tree(tree))
    return parents


def decode_tree(parents: Sequence[int]) -> Tree:
    """What `encode_tree` made numbers of, as `order_tree` has it. Raises ValueError for numbers that are no tree."""
    below: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        below.setdefault(int(parent), []).append(child)
    if len(below.get(-1, ())) != 1 or any(0 <= p <= c for c, p in enumerate(parents)):
        raise ValueError("these numbers are no tree: each term and step but the last is taken by one later step")
    made: dict[int, Tree] = {}
    for node in range(len(parents)):
        made[node] = tuple(made[c] for c in below[node]) if node in below else node
    return order_tree(made[len(parents) - 1])


#: Orders that no rule makes.
IRREGULAR = {"irregular", "one by one"}
#: Parts of a tree by the numbers of their terms, as bits.
Clades = dict[int, Tree]
#: Most terms that are looked for as the head or the remainder of an order.
MOST_WITHIN = 40

# --- made by rule ---------------------------------------------------------------------------------------------------


def make_sequential_tree(parts: Sequence[Tree]) -> Tree:
    """One part after the other, from the first."""
    return functools.reduce(lambda a, b: (a, b), parts)


def make_pairwise_tree(parts: Sequence[Tree]) -> Tree:
    """Neighbours are added, then their sums; an odd one out is the last."""
    while len(parts) > 1:
        parts = [tuple(parts[k : k + 2]) if k + 1 < len(parts) else parts[k] for k in range(0, len(parts), 2)]
    return parts[0]


def make_halved_tree(parts: Sequence[Tree]) -> Tree:
    """A part more in the first half than in the other if they are odd, and so on within them; at powers of two as
    `make_pairwise_tree`."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    return make_halved_tree(parts[:half]), make_halved_tree(parts[half:])


def make_folded_tree(parts: Sequence[Tree]) -> Tree:
    """The second half is added to the first, element by element, until one is left, as registers of a vector are."""
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [(parts[k], parts[k + half]) if k + half < len(parts) else parts[k] for k in range(half)]
    return parts[0]


def make_fused_tree(parts: Sequence[Tree], size: int) -> Tree:
    """Groups of ``size`` neighbours, each added in one step to what there is."""
    tree: Tree = tuple(parts[:size]) if len(parts) > 1 and size > 1 else parts[0]
    for k in range(max(size, 1), len(parts), size):
        tree = (tree, *parts[k : k + size])
    return tree


def list_term_blocks(count: int, size: int) -> list[list[int]]:
    """Neighbouring terms in blocks of ``size``, of which the last may be smaller."""
    return [list(range(k, min(k + size, count))) for k in range(0, count, size)]


def list_term_lanes(count: int, lanes: int) -> list[list[int]]:
    """Every ``lanes``-th term."""
    return [list(range(k, count, lanes)) for k in range(min(lanes, count))]


#: Orders that have no number.
SIMPLE = {
    "sequential": make_sequential_tree,
    "pairwise": make_pairwise_tree,
    "halves": make_halved_tree,
    "folded": make_folded_tree,
}


def make_tree_of_kind(kind: TreeKind, parts: Sequence[Tree]) -> Tree | None:
    """The order of a kind over some parts; None of a kind that does not say how it adds another number of them."""
    if len(parts) == 1:
        return parts[0]
    if kind.code == "term" or kind.code in SIMPLE:
        return SIMPLE.get(kind.code, make_sequential_tree)(parts)
    if kind.code == "reversed":
        return make_sequential_tree(parts[::-1])
    if kind.code == "fused":
        return make_fused_tree(parts, kind.size)
    if kind.code not in ("lanes", "blocks", "strided") or (kind.code == "strided" and kind.inner):
        return None
    split = list_term_blocks if kind.code == "blocks" else list_term_lanes
    groups = [[parts[k] for k in group] for group in split(len(parts), kind.size)]
    if kind.code == "strided":
        return make_sequential_tree([part for group in groups for part in group])
    made = [make_tree_of_kind(kind.inner or TreeKind("sequential"), group) for group in groups]
    found = [tree for tree in made if tree is not None]
    return make_tree_of_kind(kind.outer or TreeKind("sequential"), found) if len(found) == len(made) else None


# --- what an order is called --------------------------------------------------------------------------------------


def name_tree_kind(tree: Tree, whole: bool = False) -> TreeKind:
    """What the order of a tree is called; "irregular" where no rule here makes it. whole: a rule must speak of all
    terms, and leave none out as a head, tail or remainder."""
    terms = list_tree_terms(tree)
    return _name_tree(_renumber_tree(tree, {t: k for k, t in enumerate(terms)}), len(terms), whole)


def _renumber_tree(tree: Tree, places: dict[int, int]) -> Tree:
    if isinstance(tree, int):
        return places[tree]
    return tuple(_renumber_tree(x, places) for x in tree)


@functools.lru_cache(maxsize=4096)
def _name_tree(tree: Tree, count: int, whole: bool = False) -> TreeKind:
    """whole: no terms are left out. The lanes of a kernel are all alike once they are numbered anew."""
    if count == 1:
        return TreeKind("term")
    tree, terms = order_tree(tree), list(range(count))
    if count > 2 and isinstance(tree, tuple) and len(tree) == count:
        return TreeKind("one step")
    for code, make in SIMPLE.items():
        if order_tree(make(terms)) == tree:
            return TreeKind(code)
    if order_tree(make_sequential_tree(terms[::-1])) == tree:
        return TreeKind("reversed")
    for size in range(2, count) if max(map(len, list_tree_nodes(tree))) > 2 else ():
        if order_tree(make_fused_tree(terms, size)) == tree:
            return TreeKind("fused", size)
    if (chain := list_tree_chain(tree)) is not None:
        return _name_tree_chain(chain)
    clades: Clades = {}
    _collect_tree_clades(tree, clades)
    named = _name_parts_of_tree(list_term_lanes, "lanes", tree, count, clades, whole)
    named = named or _name_parts_of_tree(list_term_blocks, "blocks", tree, count, clades, whole)
    if not named and not whole:
        named = _name_tree_tail(tree, count) or _name_tree_rest(tree, count)
    return named or TreeKind("irregular")


def _collect_tree_clades(tree: Tree, clades: Clades) -> int:
    """Adds the parts of a tree by the bits of their terms; returns the whole's."""
    mask = 1 << tree if isinstance(tree, int) else sum(_collect_tree_clades(child, clades) for child in tree)
    clades[mask] = tree
    return mask


def _name_tree_parts(
    tree: Tree, parts: Sequence[Sequence[int]], clades: Clades, whole: bool
) -> tuple[TreeKind, TreeKind] | None:
    """(the order within each of these parts, that in which they are joined); None where they are not added each by
    itself, or not all alike."""
    masks = [sum(1 << t for t in part) for part in parts]
    if not all(mask in clades for mask in masks):
        return None
    inner = {name_tree_kind(clades[mask], whole) for mask, part in zip(masks, parts) if len(part) == len(parts[0])}
    last = name_tree_kind(clades[masks[-1]], whole)  # which may be smaller
    if len(inner) > 1 or IRREGULAR & {k.code for k in (*inner, last)}:
        return None
    number = {id(clades[mask]): k for k, mask in enumerate(masks)}

    def join(node: Tree) -> Tree:
        if id(node) in number:
            return number[id(node)]
        assert isinstance(node, tuple)
        return tuple(join(child) for child in node)

    outer = _name_tree(join(tree), len(parts), whole)
    return None if outer.code in IRREGULAR else (inner.pop(), outer)


def list_tree_chain(tree: Tree) -> list[int] | None:
    """The terms of a tree that adds one after another to what there is, in that order, the smaller of the first two
    first; None of any other."""
    found: list[int] = []
    while isinstance(tree, tuple):
        if len(tree) != 2 or all(isinstance(x, tuple) for x in tree):
            return None
        if all(isinstance(x, int) for x in tree):
            return [*sorted(list_tree_terms(tree)), *found[::-1]]
        tree, term = sorted(tree, key=lambda x: isinstance(x, int))
        assert isinstance(term, int)
        found.append(term)
    return None


def _name_tree_chain(chain: Sequence[int]) -> TreeKind:
    """What an order is called that adds one term after another."""
    count = len(chain)

    def is_chain(order: Sequence[int]) -> bool:
        return [*sorted(order[:2]), *order[2:]] == chain

    for size in (2, 4, 8, 16):
        if is_chain([t for block in list_term_blocks(count, size) for t in block[::-1]]):
            return TreeKind("swapped", size)
    for step in range(2, count // 2 + 1):
        lanes = list_term_lanes(count, step)
        if is_chain([t for lane in lanes for t in lane]):
            return TreeKind("strided", step)
        if is_chain([t for lane in lanes for k in range(0, len(lane), 2) for t in lane[k : k + 2][::-1]]):
            return TreeKind("strided", step, inner=TreeKind("swapped", 2))
    return TreeKind("one by one")


def _name_parts_of_tree(
    split: Callable[[int, int], list[list[int]]], code: str, tree: Tree, count: int, clades: Clades, whole: bool
) -> TreeKind | None:
    """Of lanes the most, of blocks the smallest, that are added each by itself."""
    sizes = range(count // 2, 1, -1) if code == "lanes" else range(2, count)
    for size in sizes:
        parts = split(count, size)
        if len(parts) == 2 and 2 * len(parts[1]) < len(parts[0]):  # that is a tail
            continue
        if found := _name_tree_parts(tree, parts, clades, whole):
            return TreeKind(code, size, len(parts), *found)
    return None


def _name_tree_tail(tree: Tree, count: int) -> TreeKind | None:
    """An order with the last terms added one by one behind it."""
    rest, tail = tree, 0
    while isinstance(rest, tuple) and len(rest) == 2 and rest[1] == count - 1 - tail:
        rest, tail = rest[0], tail + 1
        kind = _name_tree(rest, count - tail, whole=True)
        if kind.code not in IRREGULAR:
            return TreeKind("tail", tail, outer=kind)
    return None


def _name_tree_rest(tree: Tree, count: int) -> TreeKind | None:
    """An order in which the first or the last terms, which do not fill its lanes, are added one by one somewhere
    within."""
    for size in range(1, min(MOST_WITHIN, count // 2) + 1):
        for code, rest in (("remainder", range(count - size, count)), ("head", range(size))):
            if (body := drop_tree_terms(tree, frozenset(rest))) is None:
                continue
            kind = name_tree_kind(body, whole=True)
            if kind.code not in IRREGULAR:
                return TreeKind(code, size, outer=kind)
    return None


def drop_tree_terms(tree: Tree, terms: frozenset[int]) -> Tree | None:
    """The tree without some terms; None where steps add only such."""
    if isinstance(tree, int):
        return None if tree in terms else tree
    left = [x for x in (drop_tree_terms(child, terms) for child in tree) if x is not None]
    return None if not left else left[0] if len(left) == 1 else tuple(left)


# --- drawings -------------------------------------------------------------------------------------------------------


def draw_tree_text(tree: Tree, width: int = 100) -> str:
    """A tree as brackets: what stands in one is added from left to right, runs of terms as (0→7), what one step adds in
    braces. Lines of at most ``width`` characters."""
    words = _draw_tree_bracket(tree)
    lines, line = [], ""
    for word in words.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _draw_term_run(tree: Tree) -> str:
    """Terms at equal distances that are added in their order, as (0→28 by 4); "" of any other tree."""
    chain = list_tree_chain(tree)
    if chain is None or len(chain) < 3 or len(steps := {chain[k + 1] - chain[k] for k in range(len(chain) - 1)}) > 1:
        return ""
    step = steps.pop()
    return f"({chain[0]}→{chain[-1]}{f' by {step}' * (step != 1)})"


def _draw_tree_bracket(tree: Tree) -> str:
    if isinstance(tree, int):
        return str(tree)
    if run := _draw_term_run(tree):
        return run
    spine: list[Tree] = []
    node: Tree = tree
    while isinstance(node, tuple) and len(node) == 2 and not _draw_term_run(node):
        first, second = node if isinstance(node[0], tuple) or isinstance(node[1], int) else node[::-1]
        spine.append(second)
        node = first
    begin = (
        _draw_tree_bracket(node)
        if isinstance(node, int) or _draw_term_run(node)
        else "{" + ", ".join(map(_draw_tree_bracket, node)) + "}"
    )
    added = " + ".join([begin, *map(_draw_tree_bracket, spine[::-1])])
    return f"({added})" if spine else begin


def draw_tree_as_svg(tree: Tree, width: int = 640, height: int = 220) -> str:
    """A tree as SVG, as `draw_tree_lines` has it."""
    path = f'<path d="{draw_tree_lines(tree, width, height)}" fill="none" stroke="currentColor" stroke-width="0.8"/>'
    return (
        f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" aria-label="{name_tree_kind(tree)}">{path}</svg>'
    )


def list_tree_leaves(tree: Tree) -> tuple[int, ...]:
    """Numbers of the terms in a tree, each part's together."""
    return (tree,) if isinstance(tree, int) else tuple(leaf for child in tree for leaf in list_tree_leaves(child))


def draw_tree_lines(tree: Tree, width: float, height: float, order: Sequence[int] = ()) -> str:
    """The lines of a tree as the data of an SVG path: terms along the bottom, in an order or in their own, each step
    above what it adds at the height of its depth, a line from each of its parts up to it and across."""
    terms = {term: k for k, term in enumerate(order or list_tree_terms(tree))}
    depth = measure_tree_depth(tree)
    lines: list[str] = []

    def place(node: Tree) -> tuple[float, float, int]:
        if isinstance(node, int):
            return (terms[node] + 0.5) * width / len(terms), height - 6.0, 0
        below = [place(child) for child in node]
        x, level = sum(b[0] for b in below) / len(below), 1 + max(b[2] for b in below)
        y = height - 6.0 - level * (height - 12.0) / depth
        lines.extend(f"M{bx:.1f} {by:.1f}V{y:.1f}H{x:.1f}" for bx, by, _ in below)
        return x, y, level

    place(tree)
    return "".join(lines)


def measure_tree_depth(tree: Tree) -> int:
    """How many steps the term goes through that goes through most of them."""
    deepest, left = 0, [(tree, 0)]
    while left:
        node, depth = left.pop()
        deepest = max(deepest, depth)
        if not isinstance(node, int):
            left.extend((child, depth + 1) for child in node)
    return deepest


def tree_to_nested(tree: Tree) -> Any:
    """A tree as lists of lists, as JSON has them."""
    return tree if isinstance(tree, int) else [tree_to_nested(x) for x in tree]


def tree_from_nested(value: Any) -> Tree:
    """What `tree_to_nested` made."""
    return value if isinstance(value, int) else tuple(tree_from_nested(x) for x in value)
