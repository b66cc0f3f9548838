"""MLX: the mlx form, one kernel after another, on Apple's GPUs or on any CPU."""

from __future__ import annotations

import os
import re
from importlib import metadata
from typing import Any

import numpy as np

from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.shared.function_form import describe_framework_call, invoke_counterpart, list_function_inputs
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.model import Form, Program, RuntimeInfo, get_numpy_dtype

#: device → (its node label, what pip is asked for, MLX's name of the device).
_DEVICES = {
    "cpu": ("", ("mlx==0.32.4", 'mlx-cpu==0.32.4; sys_platform == "linux"'), "cpu"),
    "metal": ("apple", ("mlx==0.32.4",), "gpu"),
}

_UNSUPPORTED = re.compile(r"[Nn]ot (yet )?(supported|implemented)|[Uu]nsupported|only supports?\b|does not support|NYI")
_OUT_OF_MEMORY = re.compile(r"[Oo]ut of memory|Unable to allocate|maximum allowed buffer size")


class Mlx(Backend):
    """MLX on one device ("cpu", "metal"), with TF32 off. It takes no options."""

    vendor = "Apple"
    forms = ("mlx",)
    inputs_once = True
    takes = ()
    devices, closed = tuple(_DEVICES), True
    unsupported, out_of_memory = _UNSUPPORTED, _OUT_OF_MEMORY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.device_vendor, self.packages, self._target = _DEVICES[device]

    def probe(self) -> RuntimeInfo:
        """Choose the device and sum on it. Raises Unavailable with MLX's own words."""
        os.environ["MLX_ENABLE_TF32"] = "0"  # float32 is computed in float32
        with importing("mlx"):
            import mlx.core as mx

        def compute() -> float:
            mx.set_default_device(mx.Device(getattr(mx, self._target)))
            return float(mx.sum(mx.ones(2)))

        version = metadata.version("mlx")
        smoke_test(f"mlx {version} on {self.device}", compute, "a sum")
        return RuntimeInfo(f"mlx {version}", str(mx.default_device()))

    def build(self, form: Form) -> Program:
        """Put the arrays on the device: a graph is made anew by each call, and evaluated there."""
        import mlx.core as mx

        given = [_make_mlx_array(x) for x in list_function_inputs(form)]

        def run() -> list[np.ndarray]:
            found = [
                x if isinstance(x, mx.array) else mx.array(x) for x in invoke_counterpart(form, given, _get_mlx_dtype)
            ]
            mx.eval(*found)
            return [_copy_mlx_array(x) for x in found]

        return Program(run, str(mx.default_device()), flags=f"graph=lazy {describe_framework_call(form)}")

    def recipe(self, form: Form) -> ProgramRecipe:
        return ProgramRecipe(run_program, {"device": self._target}, variables={"MLX_ENABLE_TF32": "0"})


def _get_mlx_dtype(name: str) -> Any:
    import mlx.core as mx

    return getattr(mx, "bool_" if name == "bool" else name)


def _make_mlx_array(array: np.ndarray) -> Any:
    """An array of its dtype on the device; NumPy's bfloat16 is given as its bits."""
    import mlx.core as mx

    if array.dtype.name == "bfloat16":
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array, dtype=_get_mlx_dtype(array.dtype.name))


def _copy_mlx_array(x: Any) -> np.ndarray:
    import mlx.core as mx

    return np.array(x.view(mx.uint16)).view(get_numpy_dtype("bfloat16")) if x.dtype == mx.bfloat16 else np.array(x)


def run_program(module: Any, inputs: list, device: str) -> list:
    """Outputs of a function on MLX, whose arrays of bfloat16 are given and taken as their bits."""
    import mlx.core as mx

    mx.set_default_device(getattr(mx, device))
    given, got = [], []
    for x in inputs:
        if x.dtype.name == "bfloat16":
            given.append(mx.array(x.view(np.uint16)).view(mx.bfloat16))
        else:
            given.append(mx.array(x, dtype=getattr(mx, "bool_" if x.dtype.name == "bool" else x.dtype.name)))
    found = module.program(*given)
    for x in found if isinstance(found, (tuple, list)) else [found]:
        bits = x.dtype == mx.bfloat16
        got.append(np.array(x.view(mx.uint16)).view("bfloat16") if bits else np.array(x))
    return got
