"""Planted faults of whole models: a catalog of tiny ones, and a runtime that lies about them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.backends.onnxruntime import OnnxRuntime
from tasks.backends.shared.onnx_form import make_probe_form
from tasks.catalogs.base import Catalog, Entry, Sample
from tasks.model import LARGEST, Form, Group, Program, RuntimeInfo, round_to_dtype


@dataclass(frozen=True)
class Tiny:
    """A model of `tests.residual_model` as the catalog of models has its own."""

    licence: str = "MIT"
    outputs: dict[str, str] = field(default_factory=lambda: {"y": "logits"})

    def model(self, cache: Path) -> bytes:
        from tests import residual_model

        return bytes(residual_model.residual().SerializeToString(deterministic=True))

    def inputs(self, index: int, seed: int, cache: Path) -> dict[str, np.ndarray]:
        import onnx

        from tests import residual_model

        return residual_model.inputs(onnx.load_from_string(self.model(cache)), 100 * seed + index)

    def module(self, cache: Path) -> None:
        return None

    def files_in(self, cache: Path) -> dict[str, bytes]:
        return {}


class Residual(Catalog):
    """sound: a sound model; nan_floor: the same with a noise floor that is NaN in one place."""

    name = "residual"
    forms = ("onnx",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [Entry(f"residual:{name}", "", ("float32",)) for name in ("nan_floor", "sound")]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        from tasks.catalogs.models.network_samples import CatalogNetwork

        network = CatalogNetwork(Tiny(), Path())
        for index in range(group.samples):
            sample = network.sample(index, network.model.inputs(index, group.seed, Path()), draws)
            if group.op_name == "nan_floor":
                (leaf,) = sample.expected
                assert leaf.noise is not None
                leaf.noise[-1, 3] = np.nan
            yield sample


class Lying(OnnxRuntime):
    """ONNX Runtime on the CPU that returns something else, or computes in less than it says.

    Options: returns: "zeros", "other" (the outputs on other inputs), "bfloat16" (its outputs rounded); computes: the
    precision that products round their inputs to; declares: what it says, of_products: for products alone; halves:
    "rounded" or "saturated", inputs as float16 has them; weights, of a graph, are left as they are.
    """

    takes = ("returns", "computes", "declares", "of_products", "halves")
    vendor = "Planted"

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        self.returns, self.computes = options.get("returns", ""), options.get("computes", "")
        self.declares, self.halves = options.get("declares", ""), options.get("halves", "")
        super().__init__(name, "cpu", options)

    def probe(self) -> RuntimeInfo:
        of_products = bool(self.options.get("of_products"))
        return replace(super().probe(), compute_precision=self.declares, of_products=of_products)

    def _halved(self, x: Any) -> Any:
        if getattr(x, "dtype", None) != np.float32:
            return x
        most = LARGEST["float16"] if self.halves == "saturated" else np.inf
        with np.errstate(over="ignore"):
            return np.where(np.isfinite(x), np.clip(x, -most, most), x).astype(np.float16).astype(np.float32)

    def build(self, form: Form) -> Program:
        import onnx

        from tests import residual_model

        if form.op == make_probe_form().op:
            return super().build(form)  # of the smoke test
        if self.computes:
            model = residual_model.with_products_in(onnx.load_from_string(form.model or b""), self.computes)
            form = replace(form, model=model.SerializeToString())
        if self.halves:
            form = replace(form, arrays=[self._halved(x) for x in form.arrays])
        if self.returns == "other":
            form = replace(form, arrays=[x[::-1].copy() for x in form.arrays])
        program = super().build(form)
        given = program.run
        change = {
            "zeros": np.zeros_like,
            "bfloat16": lambda y: round_to_dtype(y.astype(np.float64), "bfloat16").astype(y.dtype),
        }.get(self.returns, lambda y: y)
        program.run = lambda: [change(np.asarray(y)) for y in given()]
        return program
