"""What a passport says of the sums of one op: the readings of a backend's table, as they travel to where its results are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.model import RuntimeInfo
from tasks.passport.device_sum import ORDER_ALONE
from tasks.passport.sum_reading import SumReading

#: The catalog whose ops are what others are exported to.
ONNX = "onnx"


@dataclass(frozen=True)
class KnownSum:
    """A reading of a passport. op: the op's name without its catalog and modules ("linear"), as kernels are shared
    between catalogs; dtype: of its inputs."""

    op: str
    dtype: str
    reading: SumReading


@dataclass(frozen=True)
class Passport:
    """How a backend adds, read from outside. run_id: of the run that read it; the others say whose it is."""

    run_id: str
    runtime_version: str
    build: str
    driver_version: str
    device: str
    sums: tuple[KnownSum, ...] = ()

    def is_of(self, info: RuntimeInfo) -> bool:
        """Whether it is the passport of a runtime on this device: another version, build or driver may add
        otherwise."""
        own = (info.runtime_version, info.build, info.driver_version, info.device)
        return own == (self.runtime_version, self.build, self.driver_version, self.device)

    def find(self, op: str, dtype: str) -> tuple[SumReading, ...]:
        """The readings of an op in a dtype, if each of them gave its device's results to the bit; none where one did
        not: then nothing is known of the op. The order of some may be another one in other calls
        (`SumReading.keeps_order`). Of an operator of ONNX those of all ops, by the kind of sum."""
        found = [x.reading for x in self.sums if (x.op, x.dtype) == (shorten_op_name(op), dtype)]
        if not found and op.partition(":")[0] == ONNX:
            return self._find_alike(dtype)
        return tuple(found) if all(x.has_known_adder for x in found) else ()

    def find_parts(self, op: str, dtype: str) -> tuple[SumReading, ...]:
        """The readings of sums that an op makes on the way to its results in a dtype, whose order alone is read."""
        return tuple(
            x.reading for x in self.sums if (x.op, x.dtype, x.reading.code) == (shorten_op_name(op), dtype, ORDER_ALONE)
        )

    def list_readings(self, dtype: str) -> tuple[SumReading, ...]:
        """All readings in a dtype."""
        return tuple(x.reading for x in self.sums if x.dtype == dtype)

    def _find_alike(self, dtype: str) -> tuple[SumReading, ...]:
        """The readings of all ops in a dtype that are of the same kind of sum (`Reading.made_of`), if each of that kind
        gave its device's results to the bit: for an operator that ops of another catalog are exported to, and that has
        no readings of its own."""
        mine = [x.reading for x in self.sums if x.dtype == dtype and x.reading.made_of]
        unknown = {x.made_of for x in mine if not x.has_known_adder}
        return tuple(x for x in mine if x.made_of not in unknown)


def shorten_op_name(op: str) -> str:
    """An op's name without its catalog and modules."""
    return op.rpartition(":")[2].rpartition(".")[2]


def choose_passport(passports: Sequence[Passport], info: RuntimeInfo) -> Passport | None:
    """The one that is of a runtime on its device; None where none is."""
    return next((x for x in passports if x.is_of(info)), None)
