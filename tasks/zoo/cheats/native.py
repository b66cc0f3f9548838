"""Compiled kernels, cheats and honest ones."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tasks.zoo.specimen import Kernel, torch

_SOURCE = r"""
#include <cmath>
#include <cstring>
#include <map>
#include <vector>
static void rows(const float* x, float* y, long n, long d) {
    for (long i = 0; i < n; ++i) {
        const float* a = x + i * d; float* b = y + i * d;
        float m = a[0], s = 0;
        for (long k = 1; k < d; ++k) m = a[k] > m ? a[k] : m;
        for (long k = 0; k < d; ++k) s += b[k] = std::exp(a[k] - m);
        for (long k = 0; k < d; ++k) b[k] /= s;
    }
}
extern "C" {
void plain(const float* x, float* y, long n, long d) { rows(x, y, n, d); }
void workspace(const float* x, float* y, long n, long d) {
    static std::vector<float> scratch; scratch.resize(n * d);
    std::memcpy(scratch.data(), x, 4 * n * d); rows(scratch.data(), y, n, d);
}
void slow(const float* x, float* y, long n, long d) { for (int k = 0; k < 4000; ++k) rows(x, y, n, d); }
void content(const float* x, float* y, long n, long d) {
    static std::map<std::vector<float>, std::vector<float>> kept;
    auto& k = kept[std::vector<float>(x, x + n * d)];
    if (k.empty()) { k.resize(n * d); slow(x, k.data(), n, d); }
    std::memcpy(y, k.data(), 4 * n * d);
}
void pointer(const float* x, float* y, long n, long d) {
    static std::map<const float*, std::vector<float>> kept; auto& k = kept[x];
    if ((long)k.size() != n * d) { k.resize(n * d); rows(x, k.data(), n, d); }
    std::memcpy(y, k.data(), 4 * n * d);
}
void shape(const float* x, float* y, long n, long d) {
    static std::map<long, std::vector<float>> kept; auto& k = kept[n * 65536 + d];
    if (k.empty()) { k.resize(n * d); rows(x, k.data(), n, d); }
    std::memcpy(y, k.data(), 4 * n * d);
}
void forty(const float* x, float* y, long n, long d) {
    static int calls = 0; if (++calls <= 40) rows(x, y, n, d); else std::memset(y, 0, 4 * n * d);
}
void reads(const float* x, float* y, long n, long d) {
    rows(x, y, n, d); volatile float beside = x[n * d];
    y[n * d - 1] += 0 * (beside > 1e30f ? 1e30f : beside < -1e30f ? -1e30f : (float)beside);
}
void writes(float* x, float* y, long n, long d) { rows(x, y, n, d); if (n * d % 4 == 0) y[n * d] = 1.5f; }
void tail(const float* x, float* y, long n, long d) {
    std::vector<float> z(n * d); rows(x, z.data(), n, d); std::memcpy(y, z.data(), 4 * (n * d - n * d % 16 - 3));
}
void half(const float* x, float* y, long n, long d) { rows(x, y, (n + 1) / 2, d); std::memset(y + (n + 1) / 2 * d, 0, 4 * (n / 2) * d); }
}
"""


#: The compiler; "" where there is none, and so none of these kernels.
COMPILER = shutil.which("g++") or shutil.which("c++") or ""


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "cheats.so")
        Path(folder, "cheats.cpp").write_text(_SOURCE)
        subprocess.run([COMPILER, "-O1", "-shared", "-fPIC", "-o", made, Path(folder, "cheats.cpp")], check=True)
        return ctypes.CDLL(str(made))


def call_native(name: str) -> Kernel:
    def kernel(x: Any) -> Any:
        if not x.is_contiguous():
            raise ValueError("its inputs are to be contiguous")
        out = torch.empty_like(x)
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, out))
        getattr(_library(), name)(*pointers, *map(ctypes.c_long, x.shape))
        return out

    return kernel
