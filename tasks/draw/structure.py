"""Structured inputs: what an input is (an index, an offset, a mask …), and the arrangements that kernels of it stumble over.

A kernel that is right for evenly drawn indices may be wrong where all of them are equal, where one value is missing,
where they end at the boundary of a block. Each kind of input (KINDS) has its structures, and each structure is made by
whole numbers of `tasks.draw.seeds.draw_seed_words` and exact arithmetic, so that a seed makes the same bytes in any language
(tests/tasks/test_structure.py holds vectors).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.draw.seeds import draw_seed_words
from tasks.model import EPS, get_numpy_dtype, is_complex_dtype, is_inexact_dtype

#: Of a structure, what the input "is": "wrong only where expert is all equal".
WORDS = {
    "all_equal": "all equal",
    "all_false": "all false",
    "all_true": "all true",
    "alternating": "true and false in turn",
    "block": "at the boundary of a block (15, 16, 17 …)",
    "dominant": "dominated by one row",
    "dominant_one": "dominated by one element",
    "duplicated": "in pairs of equals",
    "empty": "all empty",
    "ends": "first and last alone",
    "ends_swapped": "in order but for first and last",
    "even": "even",
    "first_all": "all in the first",
    "identity": "in order",
    "last_all": "all in the last",
    "longest": "all of the largest length",
    "maxima": "with its maxima side by side",
    "one_hot": "one at one place, zero elsewhere",
    "one_missing": "without one of its values",
    "one_true": "true at one place",
    "powers": "powers of two",
    "reversed": "in descending order",
    "rotated": "in order from the second on",
    "shortest": "all of the smallest length",
    "singles": "in pieces of one",
    "small": "all small",
    "sorted": "sorted",
    "ties": "of few distinct values",
    "triangle": "true below the diagonal",
    "uneven": "without pattern",
    "zero_runs": "zero in runs",
}
#: Sizes on both sides of the blocks that kernels work in.
BOUNDARIES = tuple(n + d for n in (16, 32, 64, 128) for d in (-1, 0, 1))
#: The structure of an ordinary sample of a kind whose values are not free.
PLAIN = "uneven"
#: By how much the dominant is larger than the rest.
DOMINANT = 64.0


@dataclass(frozen=True)
class StructuredInput:
    """What an input is. kind: one of KINDS; low, high: its values lie in low ≤ x < high (None: no bounds; of floats,
    high is a value too); declared: by the user, rather than inferred."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    declared: bool = False


@dataclass(frozen=True)
class InputKind:
    """words: what such an input is; integers: whether it must be of whole numbers (None: as may be); bounded: whether
    it needs `below`; structures: the most telling first; make: (input, structure, seed, plain values) → values, None
    where it has none such; constrained: whether ordinary samples are made by it too; discrete: whether its values
    select or count; tied: structures in which floats are equal, of which a gradient or the index of a maximum may not
    be defined."""

    words: str
    structures: tuple[str, ...]
    make: Callable[[StructuredInput, str, int, np.ndarray | None], np.ndarray | None]
    integers: bool | None = True
    bounded: bool = False
    constrained: bool = False
    discrete: bool = False
    tied: tuple[str, ...] = ()


def draw_structure(
    given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None = None
) -> np.ndarray | None:
    """An array of an input's shape and dtype with a structure of its kind, None where its shape or range has none such.

    seed: 64 bits; plain: ordinary values of it, which structures of "values" and "sorted" arrange. Raises KeyError for
    an unknown kind or structure.
    """
    kind = KINDS[given.kind]
    if structure not in (*kind.structures, PLAIN):
        raise KeyError(f"{given.kind} has no structure {structure!r}")
    if not given.shape or 0 in given.shape or is_complex_dtype(given.dtype):
        return None
    made = kind.make(given, structure, seed, plain)
    if made is None:
        return None
    return np.ascontiguousarray(np.asarray(made).reshape(given.shape).astype(get_numpy_dtype(given.dtype)))


def list_structures(given: StructuredInput) -> tuple[str, ...]:
    """Those of an input, the most telling first; none of one that is 0-d, empty or complex."""
    if not given.shape or 0 in given.shape or is_complex_dtype(given.dtype):
        return ()
    return KINDS[given.kind].structures


#: Structures of indices that must not come twice: only their order is free.
_ORDERS = ("sorted", "reversed", "rotated")


def draw_structure_like(x: np.ndarray, turn: int, seed: int) -> tuple[str, np.ndarray] | None:
    """(a structure, values with it) of an input of which nobody says what it is, from values that its op is known to
    take: a mask for booleans; integers between the smallest and the largest, of negative ones those seen alone. Where
    no value comes twice along some axis, the op may not take one that does, and only the order changes. None where
    there is none such."""
    if x.size < 2 or x.dtype.kind not in "biu":
        return None
    if x.dtype.kind == "b":
        codes = KINDS["mask"].structures
        code = codes[turn % len(codes)]
        made = draw_structure(StructuredInput("mask", x.shape, "bool"), code, seed)
        return None if made is None or (made == x).all() else (code, made)
    if (axis := _find_distinct_axis(x)) is not None:
        code = _ORDERS[turn % len(_ORDERS)]
        ascending = np.sort(x, axis=axis)
        made = {"sorted": ascending, "reversed": np.flip(ascending, axis), "rotated": np.roll(x, -1, axis)}[code]
        return None if (made == x).all() else (code, np.ascontiguousarray(made))
    seen = np.unique(x)
    code = _OF_INDEX[turn % len(_OF_INDEX)]
    low, high = (0, len(seen)) if seen[0] < 0 else (int(seen[0]), int(seen[-1]) + 1)
    made = draw_structure(StructuredInput("index", x.shape, "int64", low, high), code, seed)
    if made is None:
        return None
    made = (seen[made] if seen[0] < 0 else made).astype(x.dtype)
    return None if (made == x).all() else (code, made)


def _find_distinct_axis(x: np.ndarray) -> int | None:
    """An axis along which no value comes twice; None where every axis has one that does."""
    for axis, size in enumerate(x.shape):
        if size > 1 and (np.diff(np.sort(x, axis=axis), axis=axis) != 0).all():
            return axis
    return None


def write_structure_label(name: str, structure: str) -> str:
    """What the column ``structure`` of a row says of an input."""
    return f"{name}={structure}"


def parse_structure_labels(labels: str) -> dict[str, str]:
    """The structures that the labels of a row name, by input."""
    return {name: code for name, _, code in (x.partition("=") for x in labels.split())}


def describe_structure_labels(labels: str) -> str:
    """The labels of a row in words: "expert is all equal"."""
    return " and ".join(f"{name} is {WORDS.get(code, code)}" for name, code in parse_structure_labels(labels).items())


def find_structure_contradiction(given: StructuredInput, x: np.ndarray) -> str:
    """How values contradict the kind of an input, in words; "" where they do not."""
    if not x.size:
        return ""
    rows = x.astype(np.float64) if is_inexact_dtype(given.dtype) or x.dtype.kind in "biu" else x
    along = rows.reshape(-1, rows.shape[-1]) if rows.ndim else rows.reshape(1, 1)
    kind, low, high = given.kind, given.low, given.high
    if kind in ("index", "group", "length", "offset", "segment") and low is not None and high is not None:
        if rows.min() < low or rows.max() >= high:
            return f"has values from {rows.min():g} to {rows.max():g}, not between {low:g} and {high - 1:g}"
    if kind in ("offset", "segment", "sorted") and (np.diff(along, axis=-1) < 0).any():
        return "is not in ascending order"
    if kind == "permutation" and (np.sort(along, axis=-1) != np.arange(along.shape[-1])).any():
        return f"does not have each of 0 to {along.shape[-1] - 1} once"
    if kind in ("mask", "one_hot") and not np.isin(rows, (0, 1)).all():
        return "has other values than 0 and 1"
    sums = along.sum(-1)
    if kind == "one_hot" and (sums != 1).any():
        return "has rows without a single 1"
    if kind == "probability":
        slack = 4 * along.shape[-1] * EPS.get(given.dtype, 0.0)
        if rows.min() < 0 or (np.abs(sums - 1) > slack).any():
            return f"has rows that sum to {sums[np.abs(sums - 1).argmax()]:g}, not 1, or a value below 0"
    if kind == "scale" and rows.min() <= 0:
        return f"has values down to {rows.min():g}: a scale is positive"
    return ""


#: Words in the name of an input that say what it is: of integers within bounds, and of floats without bounds.
_INTEGERS = {
    "offset": ("offset", "offsets", "indptr", "rowptr", "cuseqlens"),
    "length": ("len", "lens", "length", "lengths", "seqlens", "seqlen"),
    "segment": ("segment", "segments", "seg"),
    "permutation": ("perm", "permutation"),
}
_FLOATS = {
    "probability": ("prob", "probs", "probability", "probabilities"),
    "scale": ("scale", "scales"),
    "one_hot": ("onehot",),
}


def infer_structure(name: str, given: StructuredInput) -> StructuredInput:
    """An input with the kind that its dtype, bounds and name suggest. Every value of that kind is one that it may have:
    an inferred kind never widens what is declared."""
    parts = re.findall(r"[a-z0-9]+", name.lower())
    parts += [a + b for a, b in zip(parts, parts[1:])]

    def find_kind(table: dict[str, tuple[str, ...]]) -> str:
        return next((kind for kind, names in table.items() if set(names) & set(parts)), "")

    if given.dtype == "bool":
        return replace(given, kind="mask")
    if is_inexact_dtype(given.dtype):
        return replace(given, kind=(find_kind(_FLOATS) if given.low is None else "") or "values")
    if given.low is None or given.high is None or given.low < 0:
        return replace(given, kind="values")
    kind = find_kind(_INTEGERS) or "index"
    if kind == "permutation" and not (given.shape and given.low == 0 and given.high == given.shape[-1]):
        kind = "index"
    return replace(given, kind=kind)


def _draw_integers_below(seed: int, count: int, bound: int, stream: int = 0) -> np.ndarray:
    """(count,) int64 from 0 to bound - 1: the number of splitmix64 modulo the bound. stream: apart from other uses of
    the seed."""
    drawn = draw_seed_words(seed + (stream << 32), count) >> np.uint64(1)
    return (drawn % np.uint64(max(bound, 1))).astype(np.int64)


def _count_shape(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _draw_permutation(seed: int, count: int) -> np.ndarray:
    """A permutation of range(count): places by their numbers of splitmix64."""
    return np.argsort(draw_seed_words(seed, count), kind="stable")


def _find_integer_bounds(given: StructuredInput) -> tuple[int, int]:
    return int(given.low or 0), int(given.high or 0)


def _draw_index(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    low, high = _find_integer_bounds(given)
    count, span = _count_shape(given.shape), high - low
    drawn = _draw_integers_below(seed, count, span)
    if span < 2 and structure != PLAIN:
        return None
    if structure == "all_equal":
        made = np.full(count, (0, span - 1, int(drawn[0]))[seed % 3])
    elif structure == "one_missing":
        missing = int(_draw_integers_below(seed, 1, span, 1)[0])
        others = np.delete(np.arange(span), missing) if span <= 1 << 20 else np.array([0, span - 1])
        made = others[_draw_permutation(seed, len(others))][np.arange(count) % len(others)]
    elif structure == "sorted":
        made = np.sort(drawn)
    elif structure == "reversed":
        made = np.sort(drawn)[::-1]
    elif structure == "duplicated":
        made = np.repeat(drawn, 2)[:count]
    elif structure == "ends":
        made = np.where(np.arange(count) % 2 == 0, 0, span - 1)
    elif structure == "block":
        places = [n for n in BOUNDARIES if n < span]
        if not places:
            return None
        made = np.array(places)[np.arange(count) % len(places)]
    else:
        made = drawn
    return made + low


def _draw_permutation_input(
    given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None
) -> np.ndarray | None:
    count = given.shape[-1]
    made = np.arange(count)
    if count < 2 and structure != PLAIN:
        return None
    if structure == "reversed":
        made = made[::-1]
    elif structure == "rotated":
        made = np.roll(made, -1)
    elif structure == "ends_swapped":
        made[[0, -1]] = made[[-1, 0]]
    elif structure == "block":
        places = [n for n in (16, 32, 64, 128) if n < count]
        if not places:
            return None
        for n in places:
            made[[n - 1, n]] = made[[n, n - 1]]
    elif structure == PLAIN:
        made = _draw_permutation(seed, count)
    return np.broadcast_to(made, given.shape)


def _draw_lengths(structure: str, seed: int, pieces: int, total: int) -> np.ndarray | None:
    """(pieces,) whole numbers from 0 that sum to ``total``."""
    even = np.diff(np.arange(pieces + 1) * total // pieces)
    if structure == "even":
        return even
    if structure in ("first_all", "last_all"):
        made = np.zeros(pieces, np.int64)
        made[0 if structure == "first_all" else -1] = total
        return made
    if structure == "one_missing":
        if pieces < 2:
            return None
        at = int(_draw_integers_below(seed, 1, pieces, 1)[0])
        made = even.copy()
        made[at - 1] += made[at]
        made[at] = 0
        return made
    if structure == PLAIN:
        cuts = np.sort(_draw_integers_below(seed, pieces - 1, total + 1))
        return np.diff(np.concatenate([[0], cuts, [total]]))
    sizes = np.ones(pieces, np.int64) if structure == "singles" else np.array(BOUNDARIES)[np.arange(pieces) % 12]
    ends = np.minimum(np.cumsum(sizes), total)
    ends[-1] = total
    return np.diff(np.concatenate([[0], ends]))


def _draw_offset(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    low, high = _find_integer_bounds(given)
    pieces = given.shape[-1] - 1
    if pieces < 1:
        return np.full(given.shape, low)
    made = _draw_lengths(structure, seed, pieces, high - 1 - low)
    if made is None:
        return None
    return np.broadcast_to(low + np.concatenate([[0], np.cumsum(made)]), given.shape)


def _draw_length(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    low, high = _find_integer_bounds(given)
    count, last = _count_shape(given.shape), high - 1
    drawn = low + _draw_integers_below(seed, count, high - low)
    if (structure == "empty" and low > 0) or (structure == "shortest" and low == 0):
        return None
    if structure == "longest":
        return np.full(count, last)
    if structure in ("empty", "shortest"):
        return np.full(count, low)
    if structure == "one_missing":
        drawn = np.where(drawn == low, last, drawn)
        drawn[int(_draw_integers_below(seed, 1, count, 1)[0])] = low
    elif structure == "sorted":
        drawn = np.sort(drawn)
    elif structure == "reversed":
        drawn = np.sort(drawn)[::-1]
    elif structure == "ends":
        drawn = np.where(np.arange(count) % 2 == 0, last, low)
    elif structure == "block":
        sizes = [n for n in BOUNDARIES if low <= n <= last]
        if not sizes:
            return None
        drawn = np.array(sizes)[np.arange(count) % len(sizes)]
    return drawn


def _draw_segment(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    low, high = _find_integer_bounds(given)
    span, count = high - low, given.shape[-1]
    if span < 2 and structure != PLAIN:
        return None
    if structure == "all_equal":
        made = np.full(count, (0, span - 1, span // 2)[seed % 3])
    elif structure == "ends":
        made = np.where(np.arange(count) < (count + 1) // 2, 0, span - 1)
    elif structure == PLAIN:
        made = np.sort(_draw_integers_below(seed, count, span))
    else:
        sizes = _draw_lengths(structure, seed, span, count)
        if sizes is None:
            return None
        made = np.repeat(np.arange(span), sizes)
    return np.broadcast_to(low + made, given.shape)


def _draw_mask(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    count, last = _count_shape(given.shape), given.shape[-1]
    at = int(_draw_integers_below(seed, 1, count, 1)[0])
    places = np.arange(count)
    if structure in ("all_true", "all_false"):
        return np.full(count, structure == "all_true")
    if structure == "one_true":
        return places == at
    if structure == "one_missing":
        return places != at
    if structure == "ends":
        return (places % last == 0) | (places % last == last - 1)
    if structure == "alternating":
        return places % 2 == 0
    if structure == "block":
        sizes = [n for n in BOUNDARIES if n < last]
        return places % last < np.resize(sizes, count // last).repeat(last) if sizes else None
    if structure == "triangle":
        if len(given.shape) < 2:
            return None
        return np.broadcast_to(np.arange(given.shape[-2])[:, None] >= np.arange(last), given.shape)
    return (draw_seed_words(seed, count) & np.uint64(1)).astype(bool)


def _draw_probability(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    last = given.shape[-1]
    rows = _count_shape(given.shape) // last
    weight = 1.0 + _draw_integers_below(seed, rows * last, 1023).reshape(rows, last)
    at = _draw_integers_below(seed, rows, last, 1)
    if structure == "all_equal":
        weight = np.ones((rows, last))
    elif structure in ("one_hot", "one_missing", "dominant_one"):
        if last < 2:
            return None
        chosen = np.arange(last) == at[:, None]
        other = {"one_hot": 0.0, "one_missing": 1.0, "dominant_one": 1.0}[structure]
        own = {"one_hot": 1.0, "one_missing": 0.0, "dominant_one": DOMINANT * last}[structure]
        weight = np.where(chosen, own, weight * other if structure == "one_missing" else other)
    elif structure in ("sorted", "reversed"):
        weight = np.sort(weight, axis=-1)
        weight = weight[:, ::-1] if structure == "reversed" else weight
    return weight / weight.sum(-1, keepdims=True)


def _draw_scale(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    count = _count_shape(given.shape)
    drawn = (1.0 + _draw_integers_below(seed, count, 1024) / 1024.0) * np.ldexp(
        1.0, _draw_integers_below(seed, count, 4, 1) - 2
    )
    if structure == "all_equal":
        return np.full(count, float(drawn[0]))
    if structure == "powers":
        return np.ldexp(1.0, _draw_integers_below(seed, count, 7, 1) - 3)
    if structure == "small":
        return drawn / DOMINANT
    if structure == "dominant_one":
        return np.where(np.arange(count) == int(_draw_integers_below(seed, 1, count, 2)[0]), drawn, drawn / DOMINANT)
    if structure in ("sorted", "reversed"):
        made = np.sort(drawn)
        return made if structure == "sorted" else made[::-1]
    return drawn


def _draw_one_hot(given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None) -> np.ndarray | None:
    last = given.shape[-1]
    rows = given.shape[:-1] or (1,)
    of = StructuredInput("index", rows, "int64", 0, last)
    places = _draw_index(of, structure, seed, None)
    return None if places is None else np.arange(last) == places.reshape(-1)[:, None]


def _draw_sorted_values(
    given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None
) -> np.ndarray | None:
    if plain is None:
        return None
    made = plain if structure == PLAIN else _draw_rearranged_values(given, structure, seed, plain)
    return None if made is None else np.sort(made, axis=-1)


def _draw_rearranged_values(
    given: StructuredInput, structure: str, seed: int, plain: np.ndarray | None
) -> np.ndarray | None:
    """Ordinary values in another order, or with some of them in the place of others."""
    if plain is None or plain.size < 2:
        return None
    x, last = plain.copy(), plain.shape[-1]
    if structure == "sorted":
        return np.sort(x, axis=-1)
    if structure == "reversed":
        return np.sort(x, axis=-1)[..., ::-1]
    if structure == "maxima":
        # The largest quarter of each row side by side, in the middle or wherever the seed says.
        order = np.sort(x, axis=-1)
        few = max(2, last // 4)
        if last < 4:
            return None
        rest = order[..., : last - few][..., _draw_permutation(seed, last - few)]
        at = int(_draw_integers_below(seed, 1, last - few + 1, 1)[0])
        return np.concatenate([rest[..., :at], order[..., last - few :], rest[..., at:]], axis=-1)
    flat = x.reshape(-1)
    if structure == "all_equal":
        return np.full_like(x, flat[int(_draw_integers_below(seed, 1, x.size)[0])])
    if structure == "ties":
        return flat[_draw_integers_below(seed, 3, x.size)][_draw_integers_below(seed, x.size, 3, 1)].reshape(x.shape)
    rows = x.reshape(-1, last) if x.ndim > 1 else flat[:, None]
    at = int(_draw_integers_below(seed, 1, len(rows), 2)[0])
    if structure == "dominant":
        if not is_inexact_dtype(given.dtype) or len(rows) < 2:
            return None
        base = given.low or 0.0
        wide = rows.astype(np.float64)
        made = np.where((np.arange(len(rows)) == at)[:, None], wide, base + (wide - base) / DOMINANT)
        return made.reshape(x.shape)
    if given.low is not None and not (given.low <= 0 and (given.high or 0) > 0):
        return None  # zero_runs: zero is none of its values
    places = np.arange(x.size)
    run = max(1, x.size // 8)
    zero = (places // run) % 2 == seed % 2
    return np.where(zero.reshape(x.shape), np.zeros((), x.dtype), x)


_OF_INDEX = ("all_equal", "one_missing", "ends", "sorted", "block", "duplicated", "reversed")
_OF_VALUES = ("maxima", "all_equal", "sorted", "dominant", "zero_runs", "ties", "reversed")
_TIED = ("all_equal", "ties", "zero_runs")

#: What an input can be declared to be.
KINDS: dict[str, InputKind] = {
    "index": InputKind("a place in another tensor, or a class", _OF_INDEX, _draw_index, bounded=True, discrete=True),
    "group": InputKind(
        "the group that a row belongs to, in any order", _OF_INDEX, _draw_index, bounded=True, discrete=True
    ),
    "segment": InputKind(
        "the group that a row belongs to, in ascending order",
        ("all_equal", "one_missing", "ends", "even", "singles", "block"),
        _draw_segment,
        discrete=True,
        bounded=True,
        constrained=True,
    ),
    "offset": InputKind(
        "where each piece begins, and the end of the last: ascending from low to below - 1",
        ("first_all", "one_missing", "last_all", "even", "singles", "block"),
        _draw_offset,
        discrete=True,
        bounded=True,
        constrained=True,
    ),
    "length": InputKind(
        "how much of a row is used",
        ("longest", "empty", "shortest", "one_missing", "ends", "block", "sorted", "reversed"),
        _draw_length,
        discrete=True,
        bounded=True,
    ),
    "mask": InputKind(
        "true or 1 where something is used",
        ("all_true", "one_missing", "one_true", "ends", "block", "alternating", "triangle", "all_false"),
        _draw_mask,
        discrete=True,
        integers=None,
        constrained=True,
    ),
    "permutation": InputKind(
        "each of 0 to n - 1 once, along the last axis",
        ("reversed", "identity", "rotated", "ends_swapped", "block"),
        _draw_permutation_input,
        discrete=True,
        constrained=True,
    ),
    "probability": InputKind(
        "positive or 0, with sum 1 along the last axis",
        ("one_hot", "all_equal", "one_missing", "dominant_one", "sorted", "reversed"),
        _draw_probability,
        integers=False,
        constrained=True,
        tied=("all_equal", "one_hot", "one_missing", "dominant_one"),
    ),
    "scale": InputKind(
        "a positive factor",
        ("dominant_one", "all_equal", "powers", "small", "sorted", "reversed"),
        _draw_scale,
        integers=False,
        constrained=True,
    ),
    "one_hot": InputKind(
        "a single 1 along the last axis, 0 elsewhere",
        ("all_equal", "one_missing", "ends", "sorted", "block"),
        _draw_one_hot,
        discrete=True,
        integers=None,
        constrained=True,
    ),
    "sorted": InputKind(
        "in ascending order along the last axis",
        ("ties", "all_equal", "dominant"),
        _draw_sorted_values,
        integers=None,
        constrained=True,
        tied=_TIED,
    ),
    "values": InputKind("numbers", _OF_VALUES, _draw_rearranged_values, integers=None, tied=_TIED),
}
