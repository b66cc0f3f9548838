"""The noise floor: how far an exact result moves when every floating input moves by a relative ε. One scheme for all.

A *draw* is one evaluation of a reference on inputs whose every element is multiplied by 1 + ε·s·u: the sign s is
random, the size u is random in [½, 1]. Both are others in every draw, so that two terms do not cancel in all of them;
but the signs of draws 2 and 3 are the opposite of those of 0 and 1, so that a step is met from both sides. The floor of
an element is its largest distance from the exact result over all draws. A catalog says how its reference is evaluated
on moved inputs, and nothing else.

A factor is decided by the number of the draw, the *place* of the tensor (a number that tells apart all tensors that one
evaluation moves: inputs, weights, results) and the place of the element in it; where equal elements must stay equal, by
its value (`perturb_by_value`). Nothing else draws noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tasks.model import SMALLEST_NORMAL, WITHOUT_NOISE, OpClass
from tasks.model.leaf import compute_row_floor

#: Draws of the noise floor: two pairs of opposite signs.
DRAWS = 4
#: Draws for an exact or elementary op, whose floor only a device that declares a coarser precision asks for.
FEW_DRAWS = 2
#: Draws of float64's own rounding: for each bit of a result's number those results move that have it, then those that
#: have it not.
ROUNDOFF_BITS = 5
ROUNDOFF_DRAWS = 2 * ROUNDOFF_BITS
#: Draws for a step, which stands still in most of them: to be found, an edge needs more.
STEP_DRAWS = 32
#: Where nobody has computed the result in the dtype under test, nothing shows that so few draws missed an element:
#: there are TIMES as many. Where somebody has, and lies more than FAR error units off, the floor is drawn MORE_DRAWS
#: times: a rare element that hardly moved in the first draws is no false alarm then (`python -m tests.bench noise`).
TIMES, FAR, MORE_DRAWS = 4, 2.0, 16
#: A whole model gets MODEL_TIMES as many draws, since its row floor pools a row of elements; TIMES as many, as all
#: others, where its inputs and weights have no more elements than this.
MODEL_TIMES, SMALL_MODEL = 2, 1 << 22
#: Elements of the inputs beyond which a step gets no more draws than asked for, and what lies far off none either: one
#: is then a matter of seconds. Of a million elements that four draws move, a hundred hardly move in any.
LARGE, VERY_LARGE = 1 << 18, 1 << 22

#: A row jumps if this share of it moves by this much of its largest element: another key has won all of a query's
#: softmax, say. Where this share of an output's rows jumps, any of them may.
ROW_JUMPS, JUMP, OUTPUT_JUMPS = 0.25, 0.5, 0.05
#: Or if no more than this share of it keeps half of its own size: values of many magnitudes, of which few are near the
#: largest.
ROW_KEEPS = 0.25

#: What is asked of an element of a reference in float64 may be lost in its own rounding below this share of the
#: largest.
BELOW = 2.0**-45

#: No draw: the largest element of each array moves, and nothing else (`measure_shared_noise`).
ALONE = -1
#: Elements of an output from which on it is asked how many of them hang together.
MANY = 1 << 12

#: Length of the table of random steps: a prime, so that no shape falls in step with its period.
_TABLE = 262147
#: Number of tables; further draws begin elsewhere in them.
_TABLES = 16
#: Numbers whose distances are taken in one go.
_TOGETHER = 1 << 16
#: Numbers of one result whose distances are taken in one go.
_BLOCK = 1 << 14
#: Factors that are kept for the next array of the same size, at most.
_KEPT = 1 << 12

Arrays = Sequence[np.ndarray]
#: What a reference returns for the inputs of each of some draws; None where it refuses them.
Evaluate = Callable[[Sequence[int]], Iterable["Arrays | None"]]
#: A result in the dtype under test: per output its values and the ε of its dtype, None where it is not to be asked. It
#: is gone through once, if at all.
Witness = Iterable["tuple[np.ndarray, float] | None"]


@functools.cache
def _draw_noise_steps(draw: int) -> np.ndarray:
    """s·u of a draw for all elements of the table."""
    turned = draw in (2, 3)
    signs = np.random.Generator(np.random.PCG64([20, draw - 2 * turned])).integers(0, 2, _TABLE) * 2 - 1
    sizes = np.random.Generator(np.random.PCG64([21, draw])).uniform(0.5, 1.0, _TABLE)
    return np.asarray((-signs if turned else signs) * sizes)


def _seed_noise_draw(draw: int, place: int) -> int:
    return (place + draw // _TABLES) * 104729 % (_TABLE // 2)


@functools.lru_cache(maxsize=64)
def _draw_noise_factors(eps: float, table: int) -> np.ndarray:
    """1 + ε·s·u for all elements of a table."""
    return _draw_noise_steps(table) * eps + 1.0


def perturb_by_noise(x: np.ndarray, eps: float, draw: int, place: int, begin: int = 0) -> np.ndarray:
    """``x`` (float64 or complex128) as a draw moves it; ``place`` tells the arrays of a call apart. begin: ``x`` is the
    part of an array that begins with this element of it, so that one may be moved part by part, each of 2¹⁷ elements at
    most."""
    if draw == ALONE:
        return _move_one_element(x)
    start, n = _seed_noise_draw(draw, place), x.size
    if begin:
        row = _draw_noise_factors(eps, draw % _TABLES)[start:]
        begin %= len(row)
        rest = max(0, begin + n - len(row))
        factors = np.concatenate([row[begin:], row[:rest]]) if rest else row[begin : begin + n]
        return x * factors.reshape(x.shape)
    if n > _TABLE - start:
        return _move_by_repeated_factors(x, _draw_noise_factors(eps, draw % _TABLES)[start:])
    u = _draw_noise_steps(draw % _TABLES)[start : start + n] * eps
    u += 1.0
    u = u.reshape(x.shape)
    return np.multiply(u, x, out=u) if x.dtype == np.float64 else np.asarray(u * x)


def perturb_in_place(x: np.ndarray, eps: float, draw: int, place: int, given: np.ndarray | None = None) -> None:
    """`perturb_by_noise` into ``x`` (float64), of itself or of what is given, of its shape. Elements that share memory (of
    an expanded result) are one number that is rounded once: they move alike."""
    start, given = _seed_noise_draw(draw, place), x if given is None else given
    if draw != ALONE and x.size > _TABLE - start and x.flags.c_contiguous:
        _move_by_repeated_factors(given, _draw_noise_factors(eps, draw % _TABLES)[start:], x)
    else:
        x[...] = perturb_by_noise(given.astype(np.float64, copy=False), eps, draw, place)


def move_last_digit(x: np.ndarray, draw: int, place: int) -> np.ndarray:
    """``x`` (float64) with each element an ulp up or down, as one of ROUNDOFF_DRAWS draws has it; zeros, infinities and
    NaN stay.

    Not all results of a function move in one draw: of any 2^ROUNDOFF_BITS that follow each other, each moves in some
    draw in which a given other one stands still. Were all to move, whole ulps would undo each other too often: in
    log(sum(exp(x − max))) the largest term and the sum are both 1, and a step down of the one takes back a step up of
    the other."""
    has_bit, bit = divmod(draw, ROUNDOFF_BITS)
    if place >> bit & 1 == has_bit:
        return x
    signs = np.resize(np.sign(_draw_noise_steps(draw % _TABLES)[_seed_noise_draw(draw, place) :]), x.shape)
    with np.errstate(all="ignore"):
        moved = x + np.spacing(x) * signs
    return np.where(np.isfinite(moved) & (x != 0), moved, x)


def _move_one_element(x: np.ndarray) -> np.ndarray:
    """``x`` with its largest element half as large again; a single element, which all results have, stays."""
    made = x.copy()
    if x.size > 1:
        sizes = np.abs(x.reshape(-1))
        made.reshape(-1)[np.argmax(np.where(np.isfinite(sizes), sizes, 0.0))] *= 1.5
    return made


def _move_by_repeated_factors(x: np.ndarray, row: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``x`` times the factors of ``row``, which begin again at its end: no table as large as ``x`` is ever made. out:
    where it is put, contiguous; may be ``x``."""
    made, given, n = np.empty(x.size, x.dtype) if out is None else out.reshape(-1), x.reshape(-1), len(row)
    whole = x.size // n * n
    np.multiply(given[:whole].reshape(-1, n), row, out=made[:whole].reshape(-1, n))
    np.multiply(given[whole:], row[: x.size - whole], out=made[whole:])
    return made.reshape(x.shape)


def perturb_by_value(eps: float, draw: int, place: int) -> tuple[np.ndarray, int]:
    """As `perturb_by_noise`, where equal elements of tensors of one place must stay equal: 2¹⁸ factors or more, and what
    is added to the bits of an element before they are hashed to the number of its factor."""
    return _draw_noise_factors(eps, draw % _TABLES), place + draw // _TABLES


def perturb_tensor(x: Any, eps: float, draw: int, place: int) -> Any:
    """``x`` with every element times a factor that its value, the draw and ``place`` decide: what is equal and has the
    same place stays equal (the gradient of a maximum looks for the elements that are equal to it)."""
    import torch

    x = x.detach()
    if x.dtype not in (torch.float64, torch.complex128) or x.layout != torch.strided:
        return x
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    bits = parts.contiguous().view(torch.int64)
    factors, start = perturb_by_value(eps, draw, place)
    # Fibonacci hashing to 18 bits.
    moved = parts * torch.from_numpy(factors)[((bits + start) * -0x61C8864680B583EB >> 46) & 0x3FFFF]
    return torch.view_as_complex(moved) if x.is_complex() else moved


def perturb_by_each_draw(x: np.ndarray, eps: float, draws: Sequence[int], place: int) -> np.ndarray:
    """`perturb_by_noise` for each of ``draws``, along a first axis."""
    if x.size * len(draws) > _KEPT:
        if len(draws) == 1:
            return perturb_by_noise(x, eps, draws[0], place)[np.newaxis]  # large: not copied once more
        return np.stack([perturb_by_noise(x, eps, draw, place) for draw in draws])
    return np.asarray(_list_first_factors(x.size, eps, tuple(draws), place).reshape(len(draws), *x.shape) * x)


@functools.lru_cache(maxsize=512)
def _list_first_factors(count: int, eps: float, draws: tuple[int, ...], place: int) -> np.ndarray:
    """The first ``count`` factors of each of ``draws``, a row each: most arrays are small, and their sizes recur."""
    starts = [_seed_noise_draw(draw, place) for draw in draws]
    return np.stack([_draw_noise_steps(draw % _TABLES)[at : at + count] for draw, at in zip(draws, starts)]) * eps + 1.0


def measure_noise_distance(moved: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """|moved − reference| in float64; 0 where both are the same NaN or infinity, infinite where only one is."""
    kind = np.complex128 if reference.dtype.kind == "c" else np.float64
    a, b = moved.astype(kind, copy=False), reference.astype(kind, copy=False)
    with np.errstate(all="ignore"):
        apart = a - b
        apart = np.abs(apart, out=apart) if apart.dtype == np.float64 and apart.ndim else np.abs(apart)
    if apart.max(initial=0.0) < np.inf:
        return apart
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _widen_noise_distance(before: np.ndarray | None, moved: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The larger of ``before`` (0 if None), which is overwritten, and the `measure_noise_distance`: a block at a time, which
    the processor's cache holds, and no array as large as the results but the one returned."""
    wider = np.zeros(reference.shape) if before is None else np.ascontiguousarray(before)
    into, a, b = wider.reshape(-1), moved.reshape(-1), reference.reshape(-1)
    for at in range(0, a.size, _BLOCK):
        part = into[at : at + _BLOCK]
        np.maximum(part, measure_noise_distance(a[at : at + _BLOCK], b[at : at + _BLOCK]), out=part)
    return wider


def count_noise_draws(op_class: OpClass, draws: int, elements: int) -> int:
    """How many of the first draws an op of a class gets whose inputs have so many elements, ``draws`` being asked
    for."""
    if op_class in WITHOUT_NOISE:
        return min(draws, FEW_DRAWS)
    if op_class is OpClass.MODEL:
        return (TIMES if elements <= SMALL_MODEL else MODEL_TIMES) * draws
    return STEP_DRAWS if op_class is OpClass.DISCONTINUOUS and draws and elements <= LARGE else draws


def count_draws_without_witness(op_class: OpClass, draws: int, elements: int) -> int:
    """How many draws there are in all where nobody has computed the result in the dtype under test."""
    first = count_noise_draws(op_class, draws, elements)
    return first if op_class is OpClass.MODEL else max(first, TIMES * draws)


def compute_noise_floor(
    references: Arrays, evaluate: Evaluate, op_class: OpClass, draws: int, elements: int, witness: Witness | None = None
) -> list[np.ndarray | None]:
    """δ per output of ``references``: the largest distance over the draws; None for zero everywhere.

    It is infinite where a draw is refused, or returns other shapes. elements: of all inputs; draws: how many are asked
    for (see `count_noise_draws` and MORE_DRAWS). What ``evaluate`` raises is passed on.
    """
    first = count_noise_draws(op_class, draws, elements)
    total = _widen_noise_floor(references, evaluate(range(first)), first)
    wanted = count_draws_without_witness(op_class, draws, elements) if witness is None else first
    if witness is not None and first and op_class not in WITHOUT_NOISE and elements <= VERY_LARGE:
        wanted = max(first, MORE_DRAWS if is_beyond_noise_floor(witness, references, total) else 0)
    if wanted > first:
        further = _widen_noise_floor(references, evaluate(range(first, wanted)), wanted - first)
        total = [a if b is None else b if a is None else np.asarray(np.maximum(a, b)) for a, b in zip(total, further)]
    return total


def measure_shared_noise(references: Arrays, evaluate: Evaluate) -> list[float | None]:
    """Per output: the share of its elements that moves with a single element of each input; None of fewer than MANY.

    The rows of a normalisation move one at a time: what rounding does to a row's norm, all of its elements have in
    common.
    """
    if max((y.size for y in references), default=0) < MANY:
        return [None] * len(references)
    (outputs,) = evaluate([ALONE])
    if outputs is None or [y.shape for y in outputs] != [y.shape for y in references]:
        return [None] * len(references)
    return [
        float((measure_noise_distance(x, y) > 0).mean()) if y.size >= MANY and y.dtype.kind in "fc" else None
        for x, y in zip(outputs, references)
    ]


def compute_kernel_floor(
    references: Arrays,
    floors: Iterable[np.ndarray | None],
    inputs: Iterable[np.ndarray],
    dtype: str,
    share: float = ROW_JUMPS,
    derivative: bool = False,
) -> list[np.ndarray | None]:
    """δ of what a kernel of ``dtype`` returns of which nothing is known but its reference, given ``inputs``.

    Who wins a tie is chance, and an element that every draw took from equal numbers did not move: where whole rows
    jump, others may. share: of a row's elements that make it jump, at least one; a gradient's row jumps by one, as what
    its elements have in common, a sum, is rounded for all of them (softmax's p·(g − Σ g·p), where p is 1). And a factor
    of an input may have no place in the dtype that is computed in, float32 or wider: δ is no lower than the smallest
    normal number times the largest input. derivative: a factor is then one of all inputs, and of one of them twice (the
    r³ in x·r³·Σ g·w·x of a norm).
    """
    sizes = [max(float(np.abs(x[np.isfinite(x)]).max(initial=0.0)), 1.0) for x in inputs]
    largest = max(sizes, default=1.0) * (math.prod(sizes) if derivative else 1.0)
    lost = min(SMALLEST_NORMAL["float32"], SMALLEST_NORMAL.get(dtype, 1.0)) * largest
    return [
        None if delta is None else _smooth_jumping_rows(y, delta, share) + lost for y, delta in zip(references, floors)
    ]


def _smooth_jumping_rows(y: np.ndarray, delta: np.ndarray, share: float) -> np.ndarray:
    """δ, or its root mean square over each row that jumps, or over all rows where enough of them jump by as much as any
    is high."""
    if not (y.ndim and y.size):
        return delta

    def rows(high: np.ndarray) -> np.ndarray:
        moved = (delta > 0) & (delta >= JUMP * high)
        return np.asarray(moved.mean(-1, keepdims=True) >= max(share, 1 / y.shape[-1]))

    with np.errstate(all="ignore"):
        size = np.abs(y)
        high = size.max(-1, keepdims=True)
        kept = delta <= JUMP * size  # as is a zero that no draw moves
        jumps = rows(high) | (kept.mean(-1, keepdims=True) <= ROW_KEEPS)
        if not jumps.any():  # nor, then, by as much as any is high
            return delta
        pooled = compute_row_floor(delta)
        if rows(high.max()).mean() >= OUTPUT_JUMPS:
            pooled, jumps = compute_row_floor(pooled.reshape(-1)).reshape(pooled.shape), np.ones_like(jumps)
    return np.where(jumps & np.isfinite(pooled), pooled, delta)


def is_far_below(references: Arrays, floors: Sequence[np.ndarray | None], eps: float) -> bool:
    """Whether more is asked of an element than float64 may tell of it: it is so small beside the largest that a sum of
    both has lost it."""
    with np.errstate(all="ignore"):
        for y, delta in zip(references, floors):
            if y.dtype == np.float64 and y.size:
                asked = eps * np.abs(y) if delta is None else eps * np.abs(y) + delta
                if asked.min() < BELOW * np.abs(y).max(initial=0.0, where=np.isfinite(y)):
                    return True
    return False


def is_beyond_noise_floor(witness: Witness, references: Arrays, floors: Sequence[np.ndarray | None]) -> bool:
    """Whether a result lies so far off that it may be the noise floor that has been drawn too low."""
    with np.errstate(all="ignore"):
        for own, y, delta in zip(witness, references, floors):
            if own is None or y.dtype != np.float64 or own[0].shape != y.shape:
                continue
            allowed = np.abs(y)
            allowed *= own[1]
            if delta is not None:
                allowed += delta
            allowed *= FAR
            if (np.abs(own[0] - y) > allowed).any():
                return True
    return False


def _stack_moved_arrays(values: list[np.ndarray]) -> np.ndarray:
    """Arrays of one shape along a first axis; `np.stack` takes three times as long for small ones."""
    plain = values[0].flags.c_contiguous and not values[0].dtype.hasobject
    return np.array(values) if plain else np.stack(values)


def _widen_noise_floor(references: Arrays, found: Iterable[Arrays | None], draws: int) -> list[np.ndarray | None]:
    if not draws:
        return [None] * len(references)
    small = sum(y.size for y in references) * draws <= _TOGETHER
    many = [list(found)] if small else ([outputs] for outputs in found)
    total: list[np.ndarray | None] = [None] * len(references)
    for some in many:
        for i, y in enumerate(references):
            before = total[i]
            if all(x is not None and len(x) == len(references) and x[i].shape == y.shape for x in some):
                values = [x[i] for x in some if x is not None]
                if len(values) > 1:
                    delta = measure_noise_distance(_stack_moved_arrays(values), y).max(0)
                elif y.size > _BLOCK:
                    before, delta = None, _widen_noise_distance(before, values[0], y)
                else:
                    delta = measure_noise_distance(values[0], y)
            else:
                delta = np.full(y.shape, np.inf)
            total[i] = delta if before is None else np.maximum(before, delta)
    return [np.asarray(delta) if delta is not None and delta.any() else None for delta in total]
