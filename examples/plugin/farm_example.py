"""A backend (NumPy), a catalog (two reductions) and a check (the same bytes every time); all it imports is `tasks`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.backends.base import Backend
from tasks.catalogs.base import Catalog, Entry, Sample
from tasks.checks import Check
from tasks.model import Form, Group, Leaf, Misbehaviour, OpClass, Program, RuntimeInfo, Unavailable, get_numpy_dtype

OPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda x: np.mean(x, axis=-1),
    "peak_to_peak": lambda x: np.ptp(x, axis=-1),
}


class Statistics(Catalog):
    """Means and ranges of rows; the form "example" is a function of one array."""

    name = "example"
    forms = ("example",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [Entry(f"{self.name}:{op}", "", ("float32", "float64")) for op in sorted(OPS)]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        for i in range(group.samples):
            x = np.random.default_rng([group.seed, i]).normal(1, 1, (4, 32 + i)).astype(get_numpy_dtype(group.dtype))
            exact = OPS[group.op_name](x.astype(np.float64))
            noise = np.full(exact.shape, 2.0**-23)
            yield Sample(
                i, (TensorSpec(0),), {}, [x], [Leaf(group.dtype, exact.shape, exact, noise)], OpClass.REDUCTION
            )

    def call(self, group: Group) -> Callable[..., Any]:
        return OPS[group.op_name]


class Repeatable(Check):
    """Ten runs give the same bytes."""

    def run(self, program: Program, form: Form) -> list[np.ndarray]:
        first, *others = ([np.array(x) for x in program.run()] for _ in range(10))
        if any(a.tobytes() != b.tobytes() for other in others for a, b in zip(first, other)):
            raise Misbehaviour("nondeterministic", "ten runs on the same inputs gave different bytes")
        return first


class NumpyBackend(Backend):
    vendor = "Example Inc."
    forms = ("example",)
    devices = ("cpu", "gpu")

    def probe(self) -> RuntimeInfo:
        if self.device != "cpu":
            raise Unavailable(f"there is no {self.device} edition of the example")
        return RuntimeInfo(f"numpy {np.__version__}", "cpu")

    def build(self, form: Form) -> Program:
        call = form.call
        assert call is not None
        drift = float(self.options.get("drift", 0))  # type: ignore[arg-type]  # a planted fault that grows with every run
        runs = iter(range(1000))
        return Program(lambda: [call(form.arrays[0]) + np.float32(drift * next(runs))], placement="numpy")
