"""Triton kernels in its interpreter, with and without their accesses watched: prints {name: [CPU seconds without, with]}.

Run in a process of its own, with TRITON_INTERPRET=1; the argument is how often each is run: the least counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from tasks.catalogs.user import interpreted


@triton.jit
def _matmul(a, b, c, M, N, K, B: tl.constexpr):
    m, n, k = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for at in range(0, K, B):
        x = tl.load(a + m[:, None] * K + (at + k)[None, :], mask=(m < M)[:, None] & (at + k < K)[None, :], other=0.0)
        y = tl.load(b + (at + k)[:, None] * N + n[None, :], mask=(at + k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _add(x, y, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + offs, tl.load(y + offs, mask=offs < n) + tl.load(x + offs, mask=offs < n), mask=offs < n)


@triton.jit
def _histogram(x, h, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(h + tl.load(x + offs, mask=offs < n, other=0), 1, mask=offs < n)


@triton.jit
def _softmax(x, y, N, B: tl.constexpr):
    offs = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * N + offs, mask=offs < N, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + tl.program_id(0) * N + offs, v / tl.sum(v, 0), mask=offs < N)


@triton.jit
def _transpose(x, y, M, N, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y + n[None, :] * M + m[:, None], tl.load(x + m[:, None] * N + n[None, :], mask=mask), mask=mask)


@triton.jit
def _one_by_one(x, y, N):
    total = 0.0
    for k in range(N):
        total += tl.load(x + tl.program_id(0) * N + k)
    tl.store(y + tl.program_id(0), total)


@triton.jit
def _locked(x, y, lock, B: tl.constexpr):
    offs = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + offs)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y + offs, tl.load(y + offs) + v)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def launches() -> dict[str, Callable[[], Any]]:
    """Each kernel with a launch of its own."""
    n = 1 << 18
    x, y, square = torch.randn(n), torch.randn(n), torch.randn(256, 256)
    index, counts, lock = (
        torch.randint(0, 64, (n,)),
        torch.zeros(64, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    out, tile = torch.empty(256, 256), torch.zeros(1024)
    return {
        "matmul, blocks of 32": lambda: _matmul[(8, 8)](square, square, out, 256, 256, 256, 32),
        "matmul, blocks of 128": lambda: _matmul[(2, 2)](square, square, out, 256, 256, 256, 128),
        "in place, blocks of 256": lambda: _add[(n // 256,)](x, y, n, 256),
        "in place, blocks of 65536": lambda: _add[(n // 65536,)](x, y, n, 65536),
        "atomic histogram": lambda: _histogram[(n // 1024,)](index, counts, n, 1024),
        "softmax of rows": lambda: _softmax[(256,)](square, out, 256, 256),
        "transpose": lambda: _transpose[(4, 4)](square, out, 256, 256, 64),
        "numbers one by one": lambda: _one_by_one[(16,)](square, out, 200),
        "split-K with a lock": lambda: _locked[(n // 1024,)](x, tile, lock, 1024),
    }


def least(call: Callable[[], Any], times: int) -> float:
    """CPU seconds."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        call()
        taken.append(time.process_time() - begin)
    return min(taken)


def watched(call: Callable[[], Any]) -> None:
    with interpreted.prepare_triton_interpreter() as watch:
        call()
    watch.check()
    assert watch.launches == 1


def measure(times: int) -> dict[str, list[float]]:
    """{name: CPU seconds without and with}; the former before anything of the interpreter is changed."""
    torch.set_num_threads(1)
    all_of_them = launches()
    plain = {name: least(call, times) for name, call in all_of_them.items()}
    return {name: [plain[name], least(lambda: watched(call), times)] for name, call in all_of_them.items()}  # noqa: B023


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
