"""Backends whose numbers are those of a release of the package `farm-fake-runtime`: a regression between two versions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
from planted import Planted

from tasks.backends.onnxruntime import OnnxRuntime
from tasks.backends.shared.onnx_form import make_probe_form
from tasks.model import Form, Program, RuntimeInfo


class Released(Planted):
    """Adds one and what the release says."""

    packages = ("farm-fake-runtime",)

    def probe(self) -> RuntimeInfo:
        import farm_fake_runtime

        return RuntimeInfo(farm_fake_runtime.version, "none")

    def build(self, form: Form) -> Program:
        import farm_fake_runtime

        def run() -> list[Any]:
            return [form.arrays[0] + np.float32(1 + farm_fake_runtime.fault)]

        return Program(run, placement="planted")


#: The operator that a release of `Nightly` may compute wrongly.
STRUCK = b"Softmax"


class Nightly(OnnxRuntime):
    """ONNX Runtime as a vendor's own build of it, by release: where a graph has `STRUCK`, outputs are off by what the
    release says.

    Option fails: how often a run raises, by chance, from 0 to 1.
    """

    takes = ("fails",)

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        self.fails = float(options.get("fails", 0))
        super().__init__(name, "cpu", {})
        self.vendor, self.packages = "Planted", ("farm-fake-runtime", "onnxruntime")

    def probe(self) -> RuntimeInfo:
        import farm_fake_runtime

        found = super().probe()
        return replace(found, runtime_version=f"{farm_fake_runtime.version} on onnxruntime {found.runtime_version}")

    def build(self, form: Form) -> Program:
        import farm_fake_runtime

        program = super().build(form)
        given = program.run
        fault = farm_fake_runtime.fault if STRUCK in (form.model or b"") else 0

        def run() -> list[Any]:
            if form.op != make_probe_form().op and random.SystemRandom().random() < self.fails:
                raise RuntimeError("planted: the board does not answer")
            return [y * y.dtype.type(1 + fault) if fault else y for y in map(np.asarray, given())]

        program.run = run
        return program
