"""A backend whose numbers are those of a release of the package `farm-fake-runtime`: a regression between two versions."""

from __future__ import annotations

from typing import Any

import numpy as np
from planted import Planted

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
