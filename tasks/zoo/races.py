"""Races and accesses out of bounds in Triton kernels: numbers that Triton's interpreter gets right, or that a lucky GPU does.

Apart from the other themes (`tasks.zoo.TRITON`): Triton must be installed.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from tasks.zoo.specimen import Kernel, Theme

THEME = Theme("races", __name__)
B = 64


def _many(n: int) -> int:
    return int(triton.cdiv(n, B))


def _dense(kernel: Kernel) -> Kernel:
    """With inputs that lie densely in memory of their own, as these kernels read them."""

    def own(x: Any) -> Any:
        return x.clone(memory_format=torch.contiguous_format)

    @functools.wraps(kernel)
    def made(*arguments: Any, **named: Any) -> Any:
        return kernel(*map(own, arguments), **{name: own(x) for name, x in named.items()})

    return made


# --- programs
# -------------------------------------------------------------------------------------------------------------------


@triton.jit
def _total(x, y, n, B: tl.constexpr, HOW: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    s = tl.sum(tl.load(x + offs, mask=offs < n, other=0.0), 0)
    if HOW == "atomic":
        tl.atomic_add(y, s)
    elif HOW == "block":
        tl.atomic_add(y, s, scope="cta")
    else:
        tl.store(y, tl.load(y) + s)


def _totals(how: str) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.zeros(1, dtype=x.dtype, device=x.device)
        _total[(_many(x.numel()),)](x, y, x.numel(), B, how)
        return y

    return kernel


THEME.add(
    "total",
    reference=lambda x: x.sum().reshape(1),
    inputs={"x": ["n"]},
    dims={"n": [130, 300]},
    op_class="reduction",
    right=_totals("atomic"),
    wrong={"no_atomic": ("race", _totals("plain")), "scope_of_a_block": ("race", _totals("block"))},
)


@triton.jit
def _scale(x, y, n, STEP: tl.constexpr, B: tl.constexpr):
    offs = tl.program_id(0) * STEP + tl.arange(0, B)
    tl.store(y + offs, 2 * tl.load(x + offs, mask=offs < n), mask=offs < n)


def _scaled(step: int) -> Kernel:
    """In place, in tiles of B elements that begin every ``step``."""

    @_dense
    def kernel(x: Any) -> Any:
        y = x.clone()
        _scale[(int(triton.cdiv(x.numel(), step)),)](y, y, x.numel(), step, B)
        return y

    return kernel


THEME.add(
    "scaled_in_place",
    reference=lambda x: 2 * x,
    inputs={"x": ["n"]},
    dims={"n": [130, 300]},
    op_class="elementary",
    right=_scaled(B),
    wrong={"tiles_overlap": ("race", _scaled(B - 1))},
)


@triton.jit
def _locked(x, y, lock, n, B: tl.constexpr, HOW: tl.constexpr):
    offs = tl.arange(0, B)
    at = tl.program_id(0) * B + offs
    v = tl.load(x + at, mask=at < n, other=0.0)
    if HOW == "load_before":
        v += tl.load(y + offs)
    if HOW == "ignored":
        tl.atomic_cas(lock, 0, 1)
    elif HOW == "relaxed":
        while tl.atomic_cas(lock, 0, 1, sem="relaxed") == 1:
            pass
    elif HOW == "other_lock":
        while tl.atomic_cas(lock + tl.program_id(0) % 2, 0, 1) == 1:
            pass
    else:
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
    if HOW == "early":
        tl.atomic_xchg(lock, 0)
    if HOW != "load_before":
        v += tl.load(y + offs)
    tl.store(y + offs, v)
    tl.debug_barrier()
    if HOW == "relaxed":
        tl.atomic_xchg(lock, 0, sem="relaxed")
    elif HOW == "other_lock":
        tl.atomic_xchg(lock + tl.program_id(0) % 2, 0)
    elif HOW != "early":
        tl.atomic_xchg(lock, 0)


def _split(how: str) -> Kernel:
    """Split-K: programs add to one tile in turn, under a lock."""

    @_dense
    def kernel(x: Any) -> Any:
        y, lock = torch.zeros(B, dtype=x.dtype, device=x.device), torch.zeros(2, dtype=torch.int32, device=x.device)
        _locked[(_many(x.numel()),)](x, y, lock, x.numel(), B, how)
        return y

    return kernel


def _folded(x: np.ndarray) -> np.ndarray:
    summed: np.ndarray = np.pad(x, (0, -len(x) % B)).reshape(-1, B).sum(0)
    return summed


SPLIT: dict[str, Any] = {
    "reference": _folded,
    "inputs": {"x": ["n"]},
    "dims": {"n": [200, 300]},
    "op_class": "reduction",
}
THEME.add(
    "split_k_with_a_lock",
    **SPLIT,
    right=_split("right"),
    wrong={
        "read_before_the_lock": ("race", _split("load_before")),
        "released_early": ("race", _split("early")),
        "lock_not_waited_for": ("race", _split("ignored")),
        "relaxed_lock": ("race", _split("relaxed")),
        "another_lock": ("race", _split("other_lock")),
    },
)


@triton.jit
def _last(x, part, count, y, n, B: tl.constexpr, MANY: tl.constexpr, ROUND: tl.constexpr, HOW: tl.constexpr):
    pid, offs = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + pid * B + offs, mask=pid * B + offs < n, other=0.0)
    if HOW != "late":
        tl.store(part + pid * B + offs, v)
    if HOW == "relaxed":
        done = tl.atomic_add(count, 1, sem="relaxed")
    else:
        done = tl.atomic_add(count, 1)
    if HOW == "late":
        tl.store(part + pid * B + offs, v)
    if done == (0 if HOW == "first" else MANY - 1):
        rows = tl.arange(0, ROUND)
        all = tl.load(part + rows[:, None] * B + offs[None, :], mask=(rows < MANY)[:, None], other=0.0)
        tl.store(y + offs, tl.sum(all, 0))
        tl.store(count, 0)


def _counted(how: str) -> Kernel:
    """Split-K: every program stores its part, and the one that counts itself last adds them up."""

    @_dense
    def kernel(x: Any) -> Any:
        many = _many(x.numel())
        y, part, count = (
            torch.zeros(B, device=x.device),
            torch.zeros(many, B, device=x.device),
            torch.zeros(1, dtype=torch.int32, device=x.device),
        )
        _last[(many,)](x, part, count, y, x.numel(), B, many, int(triton.next_power_of_2(many)), how)
        return y

    return kernel


THEME.add(
    "split_k_with_a_counter",
    **SPLIT,
    right=_counted("right"),
    wrong={
        "relaxed_counter": ("race", _counted("relaxed")),
        "stored_after_counting": ("race", _counted("late")),
        "first_adds_up": ("race", _counted("first")),
    },
)


@triton.jit
def _neighbours(x, y, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    left = tl.load(x + offs - 1, mask=(offs > 0) & (offs < n), other=0.0)
    tl.store(y + offs, left + tl.load(x + offs, mask=offs < n), mask=offs < n)


def _stencil(in_place: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        x = x.clone()
        y = x if in_place else torch.empty_like(x)
        _neighbours[(_many(x.numel()),)](x, y, x.numel(), B, num_warps=1)
        return y

    return kernel


THEME.add(
    "neighbours",
    reference=lambda x: x + np.concatenate(([0.0], x[:-1])),
    inputs={"x": ["n"]},
    dims={"n": [130, 300]},
    op_class="reduction",
    right=_stencil(False),
    wrong={"in_place": ("race", _stencil(True))},
)


@triton.jit
def _flag(x, y, n, B: tl.constexpr, WHO: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    if tl.max(tl.load(x + offs, mask=offs < n, other=0.0), 0) > 0:
        tl.store(y, (tl.program_id(0) if WHO else 0) * 0.5 + 1.0)


def _flagged(who: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.zeros(1, device=x.device)
        _flag[(_many(x.numel()),)](x, y, x.numel(), B, who)
        return y.clamp_max(1)

    return kernel


THEME.add(
    "any_positive",
    reference=lambda x: np.asarray([float((x > 0).any())]),
    inputs={"x": ["n"]},
    dims={"n": [200, 300]},
    op_class="exact",
    right=_flagged(False),
    wrong={"values_differ": ("race", _flagged(True))},
)


@triton.jit
def _count(x, h, n, B: tl.constexpr, ATOMIC: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    at = h + tl.load(x + offs, mask=offs < n, other=0)
    if ATOMIC:
        tl.atomic_add(at, 1, mask=offs < n)
    else:
        for k in range(B):
            tl.store(
                at, tl.load(at, mask=(offs < n) & (tl.arange(0, B) == k)) + 1, mask=(offs < n) & (tl.arange(0, B) == k)
            )


def _histogram(atomic: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        h = torch.zeros(8, dtype=torch.int32, device=x.device)
        _count[(_many(x.numel()),)](x, h, x.numel(), B, atomic, num_warps=1)
        return h.long()

    return kernel


THEME.add(
    "histogram",
    reference=lambda x: np.bincount(x.astype(np.int64), minlength=8),
    inputs={"x": {"shape": ["n"], "dtype": "int32", "low": 0, "high": 8}},
    dims={"n": [130, 200]},
    dtypes=["int32"],
    op_class="exact",
    right=_histogram(True),
    wrong={"no_atomic": ("race", _histogram(False))},
)

# --- lanes of one program
# -------------------------------------------------------------------------------------------------------


@triton.jit
def _swap(x, scratch, y, B: tl.constexpr, BARRIER: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(scratch + offs, tl.load(x + offs))
    if BARRIER:
        tl.debug_barrier()
    tl.store(y + offs, tl.load(scratch + (offs ^ 1)))


def _swapped(barrier: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        scratch, y = torch.empty_like(x), torch.empty_like(x)
        _swap[(x.shape[0],)](x, scratch, y, x.shape[1], barrier)
        return y

    return kernel


THEME.add(
    "pairs_swapped",
    reference=lambda x: x.reshape(-1, 2)[:, ::-1].reshape(x.shape),
    inputs={"x": ["rows", B]},
    dims={"rows": [1, 3]},
    op_class="exact",
    right=_swapped(True),
    wrong={"no_barrier": ("race", _swapped(False))},
)


@triton.jit
def _reverse(x, B: tl.constexpr, BARRIER: tl.constexpr):
    row, offs = x + tl.program_id(0) * B, tl.arange(0, B)
    v = tl.load(row + offs)
    if BARRIER:
        tl.debug_barrier()
    tl.store(row + (B - 1 - offs), v)


def _reversed(barrier: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = x.clone()
        _reverse[(x.shape[0],)](y, x.shape[1], barrier)
        return y

    return kernel


THEME.add(
    "reversed_in_place",
    reference=lambda x: x[:, ::-1],
    inputs={"x": ["rows", 256]},
    dims={"rows": [1, 3]},
    op_class="exact",
    right=_reversed(True),
    wrong={"no_barrier": ("race", _reversed(False))},
)


@triton.jit
def _one_hot(x, y, B: tl.constexpr, BARRIER: tl.constexpr):
    row = tl.program_id(0)
    at = tl.load(x + row)
    tl.store(y + row * B + tl.arange(0, B), tl.zeros((B,), tl.float32))
    if BARRIER:
        tl.debug_barrier()
    tl.store(y + row * B + at, 1.0)


def _hot(barrier: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.empty(x.numel(), B, device=x.device)
        _one_hot[(x.numel(),)](x, y, B, barrier)
        return y

    return kernel


THEME.add(
    "one_hot",
    reference=lambda x: np.eye(B)[x.astype(np.int64)],
    inputs={"x": {"shape": ["n"], "dtype": "int32", "low": 0, "high": B}},
    dims={"n": [1, 5]},
    dtypes=["int32"],
    op_class="exact",
    right=_hot(True),
    wrong={"no_barrier": ("race", _hot(False))},
)


@triton.jit
def _halve(x, y, B: tl.constexpr, MASK: tl.constexpr):
    offs = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + offs)
    at = y + tl.program_id(0) * (B // 2) + offs // 2
    if MASK:
        tl.store(at, v, mask=offs % 2 == 1)
    else:
        tl.store(at, v)


def _halved(mask: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.empty(x.shape[0], B // 2, device=x.device)
        _halve[(x.shape[0],)](x, y, B, mask)
        return y

    return kernel


THEME.add(
    "every_second",
    reference=lambda x: x[:, 1::2],
    inputs={"x": ["rows", B]},
    dims={"rows": [1, 3]},
    op_class="exact",
    right=_halved(True),
    wrong={"last_lane_wins": ("race", _halved(False))},
)

# --- bounds
# ---------------------------------------------------------------------------------------------------------------------


@triton.jit
def _copy(x, y, n, B: tl.constexpr, LOAD: tl.constexpr, STORE: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + offs, mask=(offs < n) | LOAD)
    tl.store(y + offs, v, mask=(offs < n) | STORE)


def _copied(load: bool = False, store: bool = False) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.empty_like(x)
        _copy[(_many(x.numel()),)](x, y, x.numel(), B, load, store)
        return y

    return kernel


COPY: dict[str, Any] = {
    "reference": lambda x: x,
    "inputs": {"x": ["n"]},
    "dims": {"n": [33, 127, 300]},
    "op_class": "exact",
}
THEME.add(
    "masked_copy",
    **COPY,
    right=_copied(),
    wrong={"load_without_mask": ("mask", _copied(load=True)), "store_without_mask": ("mask", _copied(store=True))},
)


@triton.jit
def _copy_rows(x, y, width, stride, B: tl.constexpr, SKIP: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + (row + SKIP) * stride + offs, mask=offs < width)
    tl.store(y + row * width + offs, v, mask=offs < width)


def _rows(skip: int) -> Kernel:
    """Of rows with a gap behind each; skip: rows too many."""

    @_dense
    def kernel(x: Any) -> Any:
        padded = torch.nn.functional.pad(x, (0, 3))[:, : x.shape[1]]
        y = torch.empty_like(x)
        _copy_rows[(x.shape[0],)](padded, y, x.shape[1], padded.stride(0), B, skip)
        return y

    return kernel


THEME.add(
    "padded_rows",
    reference=lambda x: x,
    inputs={"x": ["rows", 33]},
    dims={"rows": [1, 5]},
    op_class="exact",
    right=_rows(0),
    wrong={"a_row_too_far": ("off by one", _rows(1))},
)


@triton.jit
def _transpose(x, y, M, N, STRIDE, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(y + n[None, :] * STRIDE + m[:, None], tl.load(x + m[:, None] * N + n[None, :], mask=mask), mask=mask)


def _transposed(swapped: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        M, N = x.shape
        y = torch.empty(N, M, device=x.device)
        _transpose[(int(triton.cdiv(M, 16)), int(triton.cdiv(N, 16)))](x, y, M, N, N if swapped else M, 16)
        return y

    return kernel


THEME.add(
    "transpose",
    reference=lambda x: x.T,
    inputs={"x": [5, "n"]},
    dims={"n": [20, 33]},
    op_class="exact",
    right=_transposed(False),
    wrong={"stride_of_the_input": ("stride ignored", _transposed(True))},
)


@triton.jit
def _shift(x, y, n, B: tl.constexpr, MASK: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    mask = (offs > 0) & (offs < n) if MASK else offs < n
    tl.store(y + offs, tl.where(offs > 0, tl.load(x + offs - 1, mask=mask, other=0.0), 0.0), mask=offs < n)


def _shifted(mask: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.empty_like(x)
        _shift[(_many(x.numel()),)](x, y, x.numel(), B, mask)
        return y

    return kernel


THEME.add(
    "shift",
    reference=lambda x: np.concatenate(([0.0], x[:-1])),
    inputs={"x": ["n"]},
    dims={"n": [33, 300]},
    op_class="exact",
    right=_shifted(True),
    wrong={"before_the_first": ("off by one", _shifted(False))},
)


def _of_view(begin: int) -> Kernel:
    """x[1:] less what stands before each element: the first of them lies before the view, in the same storage."""

    @_dense
    def kernel(x: Any) -> Any:
        y = torch.empty(x.numel() - 1, device=x.device)
        _before[(_many(y.numel()),)](x.clone()[begin:], y, y.numel(), B)
        return y

    return kernel


@triton.jit
def _before(x, y, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    mask = offs < n
    tl.store(y + offs, tl.load(x + offs, mask=mask) - tl.load(x + offs - 1, mask=mask), mask=mask)


THEME.add(
    "differences",
    reference=lambda x: x[1:] - x[:-1],
    inputs={"x": ["n"]},
    dims={"n": [33, 300]},
    op_class="reduction",
    right=_of_view(1),
    wrong={"of_the_whole": ("off by one", _of_view(0))},
)


@triton.jit
def _gather(x, index, y, n, B: tl.constexpr, BEGIN: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    at = tl.load(index + offs, mask=offs < n, other=0) + BEGIN
    tl.store(y + offs, tl.load(x + at, mask=offs < n), mask=offs < n)


def _gathered(begin: int) -> Kernel:
    @_dense
    def kernel(x: Any, index: Any) -> Any:
        y = torch.empty(index.numel(), device=index.device)
        _gather[(_many(index.numel()),)](x, index, y, index.numel(), B, begin)
        return y

    return kernel


THEME.add(
    "gather",
    reference=lambda x, index: x[index.astype(np.int64)],
    inputs={"x": [8], "index": {"shape": ["n"], "dtype": "int64", "low": 0, "high": 8}},
    dims={"n": [100, 200]},
    op_class="exact",
    right=_gathered(0),
    wrong={"from_one": ("off by one", _gathered(1))},
)


@triton.jit
def _wide(x, y, n, B: tl.constexpr, NARROW: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    at = offs.to(tl.int8) if NARROW else offs
    tl.store(y + offs, tl.load(x + at, mask=offs < n), mask=offs < n)


def _indexed(narrow: bool) -> Kernel:
    @_dense
    def kernel(x: Any) -> Any:
        y = torch.empty_like(x)
        _wide[(_many(x.numel()),)](x, y, x.numel(), B, narrow)
        return y

    return kernel


THEME.add(
    "copy_of_many",
    reference=lambda x: x,
    inputs={"x": ["n"]},
    dims={"n": [150, 300]},
    op_class="exact",
    right=_indexed(False),
    wrong={"index_of_8_bits": ("index overflow", _indexed(True))},
)


@triton.jit
def _product(a, b, c, M, N, K, B: tl.constexpr, MASK: tl.constexpr):
    m, n, k = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for at in range(0, K, B):
        inside = (at + k < K) | (not MASK)
        x = tl.load(a + m[:, None] * K + (at + k)[None, :], mask=(m < M)[:, None] & (at + k < K)[None, :], other=0.0)
        y = tl.load(b + (at + k)[:, None] * N + n[None, :], mask=inside[:, None] & (n < N)[None, :], other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])


def _multiplied(mask: bool) -> Kernel:
    @_dense
    def kernel(a: Any, b: Any) -> Any:
        (M, K), N = a.shape, b.shape[1]
        c = torch.empty(M, N, device=a.device)
        _product[(int(triton.cdiv(M, 16)), int(triton.cdiv(N, 16)))](a, b, c, M, N, K, 16, mask)
        return c

    return kernel


THEME.add(
    "matmul",
    reference=lambda a, b: a @ b,
    inputs={"a": ["m", "k"], "b": ["k", "n"]},
    dims={"m": [20], "k": [17, 40], "n": [33]},
    op_class="contraction",
    right=_multiplied(True),
    wrong={"tail_of_k": ("mask", _multiplied(False))},
)


@triton.jit
def _described(x, y, M, N, B: tl.constexpr):
    given = tl.make_tensor_descriptor(x, [M, N], [N, 1], [B, B])
    made = tl.make_tensor_descriptor(y, [M, N], [N, 1], [B, B])
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    made.store([m, n], 2 * given.load([m, n]))


def _by_descriptor(more: int) -> Kernel:
    """more: rows that the descriptor has and the tensor has not."""

    @_dense
    def kernel(x: Any) -> Any:
        M, N = x.shape
        y = torch.empty_like(x)
        _described[(int(triton.cdiv(M, 16)), int(triton.cdiv(N, 16)))](x, y, M + more, N, 16)
        return y

    return kernel


THEME.add(
    "by_descriptor",
    reference=lambda x: 2 * x,
    inputs={"x": ["m", 40]},
    dims={"m": [5, 20]},
    op_class="elementary",
    right=_by_descriptor(0),
    wrong={"a_row_too_many": ("off by one", _by_descriptor(1))},
)


@triton.jit
def _columns(x, part, M, N, B: tl.constexpr):
    pid, offs = tl.program_id(0), tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for row in range(pid, M, tl.num_programs(0)):
        acc += tl.load(x + row * N + offs, mask=offs < N, other=0.0)
    tl.store(part + pid * N + offs, acc, mask=offs < N)


def _column_sums(short: int) -> Kernel:
    """short: rows of partial sums that there is no room for."""

    @_dense
    def kernel(x: Any) -> Any:
        M, N = x.shape
        part = torch.zeros(4 - short, N, device=x.device)
        _columns[(4,)](x, part, M, N, B)
        return part.sum(0)

    return kernel


THEME.add(
    "column_sums_in_parts",
    reference=lambda x: x.sum(0),
    inputs={"x": ["m", 40]},
    dims={"m": [5, 20]},
    op_class="reduction",
    right=_column_sums(0),
    wrong={"a_part_too_few": ("off by one", _column_sums(1))},
)
