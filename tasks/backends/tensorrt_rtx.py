"""TensorRT for RTX: engines of portable code, which are built on any machine and compiled for the GPU when they are loaded."""

from __future__ import annotations

import importlib
from typing import Any

from tasks import checks
from tasks.backends.base import smoke_test
from tasks.backends.shared.onnx_form import make_probe_form
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.backends.shared.tensorrt_run import NARROWING, build_engine, build_model
from tasks.backends.tensorrt import TensorRt, TensorRtError, _list_tensorrt_outputs
from tasks.model import Form, Program, RuntimeInfo
from tasks.packages import ONNX

_TURING = "7.5"


class TensorRtRtx(TensorRt):
    """TensorRT-RTX on a GPU ("cuda"), or ahead of time ("aot"): engines are built without a GPU and not run.

    options: those of TensorRT. It has strongly typed networks alone.
    """

    alone = ""  # it times none
    packages = ("tensorrt-rtx==1.7.1.116", ONNX)
    module, title = "tensorrt_rtx", "TensorRT-RTX"
    devices = ("cuda", "aot")

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._ahead = device == "aot"
        if self._ahead:
            self.device_vendor, self.resource, self.checks = "", "CPU", (checks.Build.name,)

    def probe(self) -> RuntimeInfo:
        """As TensorRT's; ahead of time, build a model of one Add. Raises Unavailable."""
        if not self._ahead:
            return super().probe()
        trt = self._import()
        smoke_test(self.title, lambda: [2.0] * bool(self.build(make_probe_form())), "an engine of one Add")
        return self._info(trt, "no device (builds engines for compute capabilities 8.0, 8.6, 8.9, 12.0 and later)")

    def build(self, form: Form) -> Program:
        """As TensorRT's; ahead of time the engine is built and forgotten."""
        if not self._ahead:
            return super().build(form)
        trt = importlib.import_module(self.module)
        inputs = self._inputs(form)
        _list_tensorrt_outputs(form, self.title)
        size = len(self._engine(trt, form, inputs, ()))
        return Program(_refuse_rtx_run, f"{self.title}, ahead of time", None, f"{self._flags()} engine={size}B")

    def recipe(self, form: Form) -> ProgramRecipe:
        if not self._ahead:
            return super().recipe(form)
        return ProgramRecipe(build_model, self._engine_settings(form), (*NARROWING, build_engine))

    def _engine_settings(self, form: Form) -> dict[str, Any]:
        return {**super()._engine_settings(form), "workspace": None}  # it has no limit of its own

    def _configure(self, trt: Any, config: Any) -> None:
        # Portable engines are for 8.0 and later; one for Turing has to be asked for (TensorRT-RTX's page on CPU-only
        # engines).
        if self._gpu is not None and self._gpu.capability == _TURING:
            config.num_compute_capabilities = 1
            if not config.set_compute_capability(trt.ComputeCapability.SM75, 0):
                raise TensorRtError(f"{self.title} takes no compute capability {_TURING} to build for")
        if self._level is not None:
            config.builder_optimization_level = self._level


def _refuse_rtx_run() -> list[Any]:
    raise RuntimeError("an engine built ahead of time is not run")
