"""PaddlePaddle: the paddle form in its dynamic graph, one kernel after another."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.needs import GNU_OPENMP
from tasks.backends.shared.function_form import describe_framework_call, invoke_counterpart, list_function_inputs
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.devices import cuda_driver
from tasks.model import Form, Program, RuntimeInfo, Unsupported, get_numpy_dtype
from tasks.packages import make_index_option
from tasks.variables import count_compute_threads

#: device → (its node label, what pip is asked for, Paddle's name of the device).
_DEVICES = {
    "cpu": ("", ("paddlepaddle==3.3.1", "setuptools"), "cpu"),
    # Since 3.0 its GPU builds are on no index but its own, one for each CUDA.
    "cuda": (
        "nvidia",
        (
            make_index_option("https://www.paddlepaddle.org.cn/packages/stable/cu129/"),
            "paddlepaddle-gpu==3.3.1",
            "setuptools",
        ),
        "gpu:0",
    ),
}

#: No kernel for the dtype, a type or rank that the Python function refuses.
_UNSUPPORTED = re.compile(
    r"is not registered|does not support|only supports?\b|not supported|[Uu]nsupported|[Uu]nimplemented|[Nn]ot implemented"
    r"|data type of .{0,60} must be|dtype .{0,40}must be (one of )?|The type of .{0,60} must be|must be (double|Tensor), but got"
    r"|Invalid equation|must be greater than or equal to 0|should be (larger|greater) than (0|zero)|should be between"
)
_OUT_OF_MEMORY = re.compile(r"ResourceExhausted|[Oo]ut of memory")
_STICKY = re.compile(cuda_driver.STICKY.pattern + r"|CUDA error\((700|716|719)\)", re.IGNORECASE)


class Paddle(Backend):
    """PaddlePaddle's dynamic graph on one device ("cpu", "cuda"). It takes no options."""

    takes_threads = True
    vendor = "Baidu"
    forms = ("paddle",)
    takes = ()
    needs = (GNU_OPENMP,)
    devices, closed = tuple(_DEVICES), True
    unsupported, out_of_memory, sticky = _UNSUPPORTED, _OUT_OF_MEMORY, _STICKY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.device_vendor, self.packages, self._target = _DEVICES[device]

    def probe(self) -> RuntimeInfo:
        """Choose the device and sum on it. Raises Unavailable with Paddle's own words."""
        os.environ.setdefault("GLOG_minloglevel", "3")
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # float32 is computed in float32
        with importing("paddle"):
            import paddle

        def compute() -> float:
            paddle.set_device(self._target)
            return float(paddle.ones([2]).sum())

        who = f"paddle {paddle.__version__} on {self.device}"
        smoke_test(who, compute, "a sum", words=lambda error: str(error).strip().splitlines()[-1])
        paddle.set_grad_enabled(False)
        paddle.core.set_num_threads(count_compute_threads())
        return RuntimeInfo(f"paddle {paddle.__version__}", str(paddle.get_device()))

    def build(self, form: Form) -> Program:
        """Put the arrays on the device: the dynamic graph has nothing to compile."""
        program = Program(lambda: [], self._target, flags=f"graph=dynamic {describe_framework_call(form)}")

        def run(given: list[Any]) -> list[np.ndarray]:
            # A function that writes to its inputs must not spoil the next run.
            try:
                out = invoke_counterpart(form, [x.clone() for x in given], str)
            except Exception as error:
                if _UNSUPPORTED.search(str(error)):
                    raise Unsupported(_summarise_paddle_error(str(error))) from error
                raise
            where = sorted({str(x.place) for x in out if hasattr(x, "place")})
            program.placement = ",".join(where)
            kind = "cpu" if self.device == "cpu" else "gpu"
            if any(kind not in x.lower() for x in where):
                program.fallback = f"the result lives on {program.placement}, not on {self.device}"
            return [_copy_paddle_tensor(x) for x in out]

        def bind_inputs(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
            return functools.partial(
                run, [_make_paddle_tensor(x) for x in list_function_inputs(form.with_arrays(arrays))]
            )

        program.run, program.given = bind_inputs(form.arrays), bind_inputs
        return program

    def recipe(self, form: Form) -> ProgramRecipe:
        return ProgramRecipe(run_program, {"device": self._target, "threads": 1})


def _summarise_paddle_error(text: str) -> str:
    """What an error says behind the C++ frames that it lists first."""
    return " ".join(text.rpartition("Error Message Summary:")[2].strip("- \n").split())


def _make_paddle_tensor(array: np.ndarray) -> Any:
    """A tensor of the array's dtype; Paddle takes bfloat16 as its bits."""
    import paddle

    if array.dtype.name == "bfloat16":
        return paddle.to_tensor(array.view(np.uint16), dtype="bfloat16")
    if array.dtype.name in ("uint16", "uint32", "uint64"):
        raise Unsupported(f"Paddle has no {array.dtype.name}")
    return paddle.to_tensor(array)


def _copy_paddle_tensor(x: Any) -> np.ndarray:
    """The values in their true dtype: NumPy gets bfloat16 as uint16."""
    if not hasattr(x, "numpy"):
        return np.asarray(x)
    found = np.array(x.numpy())
    return found.view(get_numpy_dtype("bfloat16")) if str(x.dtype).endswith("bfloat16") else found


def run_program(module: Any, inputs: list, device: str, threads: int) -> list:
    """Outputs of a function on Paddle, which takes and gives bfloat16 as its bits."""
    import paddle

    paddle.core.set_num_threads(threads)
    paddle.set_device(device)
    given, got = [], []
    for x in inputs:
        bits = x.view(np.uint16) if x.dtype.name == "bfloat16" else x
        given.append(paddle.to_tensor(bits, dtype=x.dtype.name))
    found = module.program(*given)
    for x in found if isinstance(found, (tuple, list)) else [found]:
        got.append(x.numpy().view("bfloat16") if "bfloat16" in str(x.dtype) else x.numpy())
    return got
