"""Variables of the shell that change what a runtime computes: a child is not given those that options say better, and a row
names the others."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

#: Precision that a backend's options ask for, and its rows declare.
_DROPPED = re.compile(
    r"NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_EMULAT\w+|JAX_DEFAULT_MATMUL_PRECISION|JAX_ENABLE_X64"
    r"|(?:ONEDNN|DNNL)_DEFAULT_FPMATH_MODE"
)
#: Choices of kernels and architectures, without which some devices do not work at all.
_NAMED = re.compile(
    r"HSA_OVERRIDE_GFX_VERSION|MIOPEN_\w+|ROCBLAS_\w+|HIPBLASLT_\w+|CUBLAS_WORKSPACE_CONFIG|XLA_FLAGS|TF_XLA_FLAGS|(?:ONEDNN|DNNL)_MAX_CPU_ISA"
)


def drop_overriding_variables(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without what would compute otherwise than the rows declare."""
    return {name: value for name, value in env.items() if not _DROPPED.fullmatch(name)}


def format_variable_flags(env: Mapping[str, str]) -> str:
    """NAME=value of what else changes numbers, for the flags of a row; "" for nothing."""
    return " ".join(f"{k}={'_'.join(v.split())}" for k, v in sorted(env.items()) if _NAMED.fullmatch(k))


#: How many bytes a kernel's process may take.
MEMORY = "FARM_MEMORY"
#: How many seconds a case may take.
DEADLINE = "FARM_DEADLINE"
#: How many threads a runtime that takes a number of them is given, where that is not one.
THREADS = "FARM_THREADS"


def count_compute_threads() -> int:
    """How many threads a runtime of this process computes with."""
    return int(os.environ.get(THREADS, "1"))


def make_thread_variables(number: int) -> dict[str, str]:
    """Variables of a process whose runtimes compute with so many threads."""
    return {THREADS: str(number)} | {f"{name}_NUM_THREADS": str(number) for name in ("OMP", "MKL", "OPENBLAS")}


#: Of this process, before a runtime adds its own.
HERE = format_variable_flags(os.environ)
