"""The roundtrip check: torch to ONNX to a runtime, beside torch itself in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from tasks.checks.base import Observation
from tasks.checks.derived import Derived
from tasks.model import Form, Program, Unavailable, Unsupported, flags

if TYPE_CHECKING:
    from tasks.backends.base import Backend
    from tasks.catalogs.base import Catalog, Entry

#: Number of a sample → the way its model has gone.
ONCE, AGAIN = 0, 1


@dataclass
class _Trip(Program):
    """A program with torch's own of the same sample, None where torch is not in the environment."""

    torch: Program | None = None


class RoundTrip(Derived):
    """Sample 0 is the model as it was exported; sample 1 was taken apart by torch.export, saved, loaded and exported
    again.

    An exported graph that is not the module in float64 is the exporter's fault. Steps: torch, then the runtime; the row
    has the largest difference of the two in column ``torch_diff``.
    """

    name = "roundtrip"
    about = (
        "torch to ONNX to the runtime, and exported again: the graph equals the module in float64, else the exporter is the "
        "culprit; column `torch_diff`: the largest difference from torch in the same process"
    )
    numbers = (ONCE, AGAIN)
    forms = ("onnx",)

    def graph(self, form: Form, culprit: str) -> Form | None:
        return form

    def unasked(self, entry: Entry, catalog: Catalog) -> str:
        return super().unasked(entry, catalog) or ("" if "torch" in catalog.forms else "no torch module to export")

    def build(self, backend: Backend, form: Form) -> Program:
        made = backend.build(form)
        torch: Program | None = None
        if form.kind != "torch":
            try:
                arm = backend.eager(form)
                torch = arm.program if arm.name.startswith("torch-") else None
            except (Unsupported, Unavailable, ModuleNotFoundError):
                pass
        own = {f.name: getattr(made, f.name) for f in fields(Program)}
        trip = _Trip(**own, torch=torch)
        if torch is None and form.kind != "torch":
            trip.flags = flags.join_row_flags(made.flags, torch="absent")
        return trip

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        assert isinstance(program, _Trip)
        if program.torch is None:
            yield Observation("runtime", program.run())
            return
        its = [np.array(x) for x in program.torch.run()]
        yield Observation("torch", its)
        found = [np.array(x) for x in program.run()]
        if [x.shape for x in its] == [x.shape for x in found]:
            program.columns["torch_diff"] = max(map(_measure_outputs_apart, its, found), default=None)
        yield Observation("runtime", found)


def _measure_outputs_apart(a: np.ndarray, b: np.ndarray) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0))
