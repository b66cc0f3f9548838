"""What a passport says in place of exceptions that are written by hand: products of matrix units in TF32, float8 and float16, judged with no declaration of what the device is known to lose: python -m
tests.devices.exceptions

Each line is an op of a unit: how its samples are judged with what its backend declares (adders, the precision of its
factors), without, and without but with its passport. Of a Hopper's float8 the outputs are those of the recorded H200 to
the byte (`python -m tests.devices.products`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasks.arrays.contiguous import call_with_packed_arrays, pack_strided_arrays
from tasks.backends import BackendSpec
from tasks.backends.shared.network import complete_torch_form
from tasks.judge import policy_files
from tasks.judging import judge_outputs
from tasks.model import Flushes, Group
from tasks.passport import SumReading
from tasks.passport.explain_sum import read_located_sum
from tasks.passport.locate_sum import NEAR_EXACT, locate_sum_terms
from tasks.passport.own_arithmetic import OwnArithmetic
from tasks.prepare.cases import PreparedSample, prepare_group

#: Backends and what is asked of each: op, variant, dtype.
ASKED = [
    *(("emulated-hopper", "gemm:scaled_mm", "float32", x) for x in ("float8_e4m3fn", "float8_e5m2")),
    *(("emulated-ada", "gemm:scaled_mm", "float32", x) for x in ("float8_e4m3fn", "float8_e5m2")),
    *((f"emulated-{x}", "gemm:mm", "nn", "float32") for x in ("ampere", "ada", "hopper", "blackwell")),
    *((f"emulated-{x}", "gemm:mm", "nn", "float16") for x in ("volta", "ampere", "cdna2")),
]
#: Samples that are prepared of each op, and those of few products that are judged: to read an order takes hundreds of
#: calls of a unit, which is computed.
PREPARED, SAMPLES, FEW = 36, 3, 2**15


@dataclass(frozen=True)
class Judged:
    """How many samples of an op have each status: as declared, with nothing declared, and with nothing but a passport;
    kinds: of the last."""

    declared: Counter[str]
    nothing: Counter[str]
    passport: Counter[str]
    kinds: Counter[str]


def judge_without_exceptions(name: str, op: str, variant: str, dtype: str, samples: int = SAMPLES) -> Judged:
    """The samples of an op on a backend, with the reading of the first that can be read as its passport."""
    backend, policy = BackendSpec.parse(name).create(), policy_files.load_policy("error_units")
    info = backend.start()
    plain = replace(info, accumulators=(), compute_precision="", of_products=False)
    found = Judged(Counter(), Counter(), Counter(), Counter())
    readings: tuple[SumReading, ...] = ()
    with tempfile.TemporaryDirectory() as folder:
        some = prepare_group(Group(op, variant, dtype, PREPARED), Path(folder))[1].samples
        few = [x for x in some if _count_products(x) <= FEW]
        for sample in sorted(few, key=_count_products)[-samples:]:
            form = complete_torch_form(sample.form("torch"))
            program = backend.build(form)
            outputs = [np.asarray(x) for x in program.run()]
            if not readings:
                arrays = pack_strided_arrays(form, form.arrays)
                where = locate_sum_terms(arrays, sample.expected()[0].reference, NEAR_EXACT)
                assert where is not None and program.again is not None
                ask = call_with_packed_arrays(form, program.again)
                reading = read_located_sum(ask, arrays, where, 0)
                readings = (reading,) if reading.known else ()
            own = (
                OwnArithmetic(readings, call_with_packed_arrays(form, program.again), (), readings)
                if readings
                else None
            )
            for counter, one, known in (
                (found.declared, info, None),
                (found.nothing, plain, None),
                (found.passport, plain, own),
            ):
                judged = judge_outputs(
                    sample, [outputs], policy, one, form, measure_flushes=lambda dtypes: Flushes(), own=known
                )
                counter[judged.status.value] += 1
                if known is not None:
                    found.kinds[judged.kind] += 1
    return found


def _count_products(sample: PreparedSample) -> int:
    """Of a product of matrices."""
    a, b = sample.tensors()
    return int(a.shape[0] * a.shape[1] * b.shape[1])


def main() -> None:
    for one in ASKED:
        found = judge_without_exceptions(*one)
        said = [
            " ".join(f"{n} {x}" for x, n in sorted(c.items())) for c in (found.declared, found.nothing, found.passport)
        ]
        print(
            f"{' '.join(one):<58} declared: {said[0]:<24} nothing: {said[1]:<24} passport: {said[2]}  ({dict(found.kinds)})",
            flush=True,
        )


if __name__ == "__main__":
    main()
