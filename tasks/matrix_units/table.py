"""What each architecture's matrix unit takes, and how it adds: one row for each dtype, with who measured it.

A row is what one instruction does whose result is fed to the next. How a library cuts a product into instructions
(split sums, sums that are moved to other registers now and then) is not the unit's, and no row says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.matrix_units.adders import (
    ChainedAdder,
    ExactAdder,
    GroupedAdder,
    LateAdder,
    PairedAdder,
    TruncatingAdder,
    UnitAdder,
)
from tasks.nearest import suggest_nearest_names

#: Sources, by the names that rows give.
SOURCES: Mapping[str, str] = {
    "Fasi": "M. Fasi, N. Higham, M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ CS 7:e330, 2021",
    "FTTN": "X. Li, A. Li, B. Fang, K. Swirydowicz, I. Laguna, G. Gopalakrishnan, FTTN, CCGrid 2024, arXiv:2403.00232",
    "Khattak": "F. Khattak, M. Mikaitis, Accurate models of NVIDIA tensor cores, arXiv:2512.07004, and its models of AMD's units",
    "MMA-Sim": "P. Xie, Y. Wang, F. Yang, M. Yang, MMA-Sim, arXiv:2511.10909",
    "H200": "the recorded rows of an H200 (torch 2.11, cuBLAS 13.1): `python -m tests.devices.products`",
    "PTX": "NVIDIA, PTX ISA: mma, wgmma, tcgen05.mma with integers",
    "CDNA": "AMD, CDNA 1, 2 and 3 instruction set architectures: v_mfma_i32 with i8",
}


@dataclass(frozen=True)
class MatrixUnit:
    """A row: how an architecture's matrix unit multiplies matrices of a dtype.

    dtype: of the matrices' elements; adder: None of integers, whose sums are exact in 32 bits; instruction: the one
    that was probed; sources: of `SOURCES`; taken: the precision of the factors, where it is less than the dtype's;
    block: how many elements share a scale, 0 where none do; scale: the dtype of scales.
    """

    architecture: str
    dtype: str
    adder: UnitAdder | None
    instruction: str
    sources: tuple[str, ...]
    taken: str = ""
    block: int = 0
    scale: str = ""
    #: After how many summed elements a library that is asked for precision adds the accumulators to others in float32
    #: and begins anew; 0: never, or nobody has measured it.
    promoted: int = 0


@dataclass(frozen=True)
class Architecture:
    """vendor: who ships it; device: one that has it."""

    name: str
    vendor: str
    device: str


ARCHITECTURES: Mapping[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("volta", "NVIDIA", "V100"),
        Architecture("turing", "NVIDIA", "T4"),
        Architecture("ampere", "NVIDIA", "A100"),
        Architecture("ada", "NVIDIA", "L40S"),
        Architecture("hopper", "NVIDIA", "H100, H200"),
        Architecture("blackwell", "NVIDIA", "B200"),
        Architecture("cdna1", "AMD", "MI100"),
        Architecture("cdna2", "AMD", "MI210, MI250X"),
        Architecture("cdna3", "AMD", "MI300X"),
    )
}

_E4M3, _E5M2, _HALVES = "float8_e4m3fn", "float8_e5m2", ("float16", "bfloat16")
_FIRST, _NVIDIA, _AMD = ("Fasi", "FTTN", "Khattak", "MMA-Sim"), ("Khattak", "MMA-Sim"), ("FTTN", "Khattak", "MMA-Sim")


def _list_matrix_units() -> tuple[MatrixUnit, ...]:
    sixth = [MatrixUnit("blackwell", d, TruncatingAdder(16, 25, -133), "tcgen05.mma k16", _NVIDIA) for d in _HALVES]
    return (
        MatrixUnit("volta", "float16", TruncatingAdder(4, 23, -131), "mma.m8n8k4", _FIRST),
        MatrixUnit("turing", "float16", TruncatingAdder(8, 24, -132), "mma.m16n8k8", ("Fasi", "MMA-Sim")),
        MatrixUnit("turing", "int8", None, "mma.m8n8k16", ("PTX",)),
        *(MatrixUnit("ampere", d, TruncatingAdder(8, 24, -132), "mma.m16n8k16", _FIRST) for d in _HALVES),
        MatrixUnit("ampere", "float32", TruncatingAdder(4, 24, -132), "mma.m16n8k8", _FIRST, "tfloat32"),
        MatrixUnit("ampere", "int8", None, "mma.m16n8k32", ("PTX",)),
        *(MatrixUnit("ada", d, TruncatingAdder(8, 24, -132), "mma.m16n8k16", _NVIDIA) for d in _HALVES),
        MatrixUnit("ada", "float32", TruncatingAdder(4, 24, -132), "mma.m16n8k8", _NVIDIA, "tfloat32"),
        *(
            MatrixUnit("ada", d, TruncatingAdder(16, 13, -132, digits=13), "mma.m16n8k32", _NVIDIA)
            for d in (_E4M3, _E5M2)
        ),
        MatrixUnit("ada", "int8", None, "mma.m16n8k32", ("PTX",)),
        *(MatrixUnit("hopper", d, TruncatingAdder(16, 25, -133), "wgmma k16", ("FTTN", *_NVIDIA)) for d in _HALVES),
        MatrixUnit("hopper", "float32", TruncatingAdder(8, 25, -133), "wgmma k8", ("FTTN", *_NVIDIA), "tfloat32"),
        *(
            MatrixUnit(
                "hopper", d, TruncatingAdder(32, 13, -133, digits=13), "wgmma k32", (*_NVIDIA, "H200"), promoted=128
            )
            for d in (_E4M3, _E5M2)
        ),
        MatrixUnit("hopper", "int8", None, "wgmma k32", ("PTX",)),
        *sixth,
        MatrixUnit("blackwell", "float32", TruncatingAdder(8, 25, -133), "tcgen05.mma k8", _NVIDIA, "tfloat32"),
        *(
            MatrixUnit("blackwell", d, TruncatingAdder(32, 25, -133), "tcgen05.mma k32", _NVIDIA)
            for d in (_E4M3, _E5M2)
        ),
        MatrixUnit("blackwell", "int8", None, "tcgen05.mma k32", ("PTX",)),
        *(
            MatrixUnit(
                "blackwell", d, TruncatingAdder(32, 25, -133), "tcgen05.mma k32", ("MMA-Sim",), "", 32, "float8_e8m0fnu"
            )
            for d in (_E4M3, _E5M2, "float6_e3m2fn", "float6_e2m3fn")
        ),
        *(
            MatrixUnit(
                "blackwell",
                "float4_e2m1fn",
                GroupedAdder(64, 16, 35, -139),
                "tcgen05.mma k64",
                ("MMA-Sim",),
                "",
                size,
                scale,
            )
            for size, scale in ((32, "float8_e8m0fnu"), (16, "float8_e4m3fn"))
        ),
        MatrixUnit("cdna1", "float16", ExactAdder(4), "v_mfma_f32_32x32x8f16", _AMD),
        MatrixUnit("cdna1", "bfloat16", ExactAdder(2), "v_mfma_f32_32x32x4bf16", _AMD),
        MatrixUnit("cdna1", "float32", ChainedAdder(), "v_mfma_f32_32x32x2f32", ("MMA-Sim",)),
        MatrixUnit("cdna1", "int8", None, "v_mfma_i32_32x32x8i8", ("CDNA",)),
        *(MatrixUnit("cdna2", d, PairedAdder(4), "v_mfma_f32_32x32x8 (f16, bf16_1k)", _AMD) for d in _HALVES),
        MatrixUnit("cdna2", "float32", ChainedAdder(), "v_mfma_f32_32x32x2f32", ("MMA-Sim",)),
        MatrixUnit("cdna2", "int8", None, "v_mfma_i32_32x32x8i8", ("CDNA",)),
        *(MatrixUnit("cdna3", d, LateAdder(8), "v_mfma_f32_32x32x8 (f16, bf16)", _NVIDIA) for d in _HALVES),
        MatrixUnit("cdna3", "float32", ChainedAdder(), "v_mfma_f32_32x32x2_f32", ("MMA-Sim",)),
        *(
            MatrixUnit("cdna3", d, LateAdder(16, parted=True), "v_mfma_f32_16x16x32 (fp8, bf8)", _NVIDIA)
            for d in ("float8_e4m3fnuz", "float8_e5m2fnuz")
        ),
        MatrixUnit("cdna3", "int8", None, "v_mfma_i32_32x32x16_i8", ("CDNA",)),
    )


#: Every unit by (architecture, dtype, dtype of the scales).
UNITS: Mapping[tuple[str, str, str], MatrixUnit] = {(x.architecture, x.dtype, x.scale): x for x in _list_matrix_units()}


def find_matrix_unit(architecture: str, dtype: str, scale: str = "") -> MatrixUnit | None:
    """The row of an architecture for matrices of a dtype, with scales of another ("": without); None where its unit
    does not take them.

    Raises ValueError for an architecture that has no rows.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"no architecture {architecture!r}{suggest_nearest_names(architecture, ARCHITECTURES)}")
    return UNITS.get((architecture, dtype, scale))


def describe_unit_dtypes(architecture: str) -> str:
    """The dtypes that an architecture's unit takes, for people."""
    rows = [x for x in UNITS.values() if x.architecture == architecture]
    return ", ".join(f"{x.dtype} scaled by {x.scale}" if x.scale else x.dtype for x in rows)
