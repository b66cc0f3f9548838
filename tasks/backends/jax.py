"""JAX: the jax form, compiled by XLA for the device, or eager (one compiled primitive after another)."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.backends.base import FRACTION, Backend, importing, smoke_test
from tasks.backends.shared.function_form import describe_framework_call, invoke_counterpart, list_function_inputs
from tasks.backends.shared.recipe import ProgramRecipe
from tasks.devices import cuda_driver
from tasks.model import Form, Program, RuntimeInfo, Unsupported, errors
from tasks.packages import list_cuda_13_packages

_OPTIONS = ("jit", "precision")

#: Option precision, a value of jax_default_matmul_precision → compute_precision. JAX's own default, "bfloat16" on a TPU
#: and TF32 on recent NVIDIA GPUs, is "as fast as the device can".
_PRECISION = {"float32": "", "tensorfloat32": "tfloat32", "bfloat16": "bfloat16"}

#: CUDA's parts that jax[cuda13] names.
_CUDA = ("cublas", "crt", "cudart", "cufft", "cupti", "cusolver", "cusparse", "nvcc", "nvrtc", "nvvm")
#: device → (its node label, what pip is asked for).
_DEVICES = {
    "cpu": ("", ("jax==0.10.2",)),
    "cuda": ("nvidia", ("jax[cuda13]==0.10.2", *list_cuda_13_packages(*_CUDA))),
    "rocm": ("amd", ("jax[rocm7-local]==0.10.2",)),
    "tpu": ("google", ("jax[tpu]==0.10.2",)),
}

#: Shapes that depend on values have no compiled program; some kernels (LAPACK's, FFTs) lack the 16-bit types. A scalar
#: has no axis in NumPy's conventions, in torch's it has axis 0.
_UNSUPPORTED = re.compile(
    r"Unsupported dtype|does not accept dtype|[Uu]nsupported element type|not supported by|does not support|UNIMPLEMENTED(?!: DNN library)|[Nn]ot implemented|is not supported|boolean indices must be concrete|out of bounds for array of dimension 0"
)
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory")
_STICKY = re.compile(cuda_driver.STICKY.pattern + r"|hipError(Illegal|Launch(?!OutOf))", re.IGNORECASE)


class Jax(Backend):
    """JAX on one platform ("cpu", "cuda", "rocm", "tpu").

    options: ``jit`` (true; false runs op by op) and ``precision`` of matrix products ("float32" by default, else
    "tensorfloat32" or "bfloat16", which the row then declares). 64-bit types are on: JAX without them has none.
    """

    vendor = "Google"
    forms = ("jax",)
    takes = _OPTIONS
    devices, closed = tuple(_DEVICES), True
    unsupported, out_of_memory, sticky = _UNSUPPORTED, _OUT_OF_MEMORY, _STICKY

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.device_vendor, self.packages = _DEVICES[device]
        self.oldest = "0.4.30" if device == "cpu" else ""
        self.toolkit = "amd" * (device == "rocm")  # its wheels are for a ROCm that is installed
        self.jit = self.switch("jit", True)
        self.compiler_options: dict[str, Any] | None = None
        # There "bfloat16" is JAX's word for as fast as the device can, which is TF32.
        gpu = device in ("cuda", "rocm")
        known = {k: v for k, v in _PRECISION.items() if not (gpu and k == "bfloat16")}
        self.precision = self.choice("precision", known, "float32")

    def probe(self) -> RuntimeInfo:
        """Find the platform and compile a sum for it. Raises Unavailable with JAX's own words."""
        os.environ["JAX_PLATFORMS"] = self.device
        if self.device == "cpu":
            os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
        else:
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several cells share a device
            if FRACTION in os.environ:
                os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", os.environ[FRACTION])
        with importing("jax"):
            import jax
            import jaxlib
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_default_matmul_precision", self.precision)
        smoke_test(
            f"jax {jax.__version__} on {self.device}", lambda: jax.jit(jax.numpy.sum)(np.ones(2, np.float32)), "a sum"
        )
        found = jax.devices()[0]
        declared = _PRECISION[self.precision]
        return RuntimeInfo(
            f"jax {jax.__version__}, jaxlib {jaxlib.__version__}",
            found.device_kind,
            compute_precision=declared,
            of_products=bool(declared),
        )

    def permits(self, precision: str) -> bool:
        """A level "roughly describes" the precision of products, and a platform without coarser ones, a CPU, ignores it
        (jax.default_matmul_precision)."""
        return True

    def any_size(self) -> Backend:
        """Itself, op by op. Raises Unsupported of what is compiled."""
        if self.jit:
            raise Unsupported("a program that JAX has compiled takes the sizes of its arguments alone")
        return self

    def levels(self) -> Mapping[str, Backend]:
        """Op by op; compiled with LLVM's optimisations off; compiled as asked."""
        if not self.jit:
            return {}
        unoptimised = {"xla_backend_optimization_level": 0}
        return {"op by op": self.but(jit=False), "disable": self.but(compiler_options=unoptimised), "all": self}

    def build(self, form: Form) -> Program:
        """Trace and compile the form's counterpart for its arrays' shapes and dtypes."""
        import jax

        arrays = list_function_inputs(form)

        def call(*tensors: Any) -> list[Any]:
            return invoke_counterpart(form, tensors, _get_jax_dtype)

        flags = f"jit={'on' if self.jit else 'off'} x64=on precision={self.precision} {describe_framework_call(form)}"
        function: Any = call
        if self.jit:
            try:
                function = jax.jit(call).lower(*arrays).compile(self.compiler_options)
            except jax.errors.ConcretizationTypeError as error:
                raise Unsupported(f"not under jit: {errors.find_error_text(error)}") from error
        given = [jax.device_put(x) for x in arrays]
        program = Program(lambda: [], self.device, flags=flags)

        def run(given: list[Any] = given) -> list[np.ndarray]:
            out = function(*given)
            self._describe_placement(out, program)
            return [np.array(x) for x in out]

        program.run = run
        program.given = lambda arrays: functools.partial(
            run, [jax.device_put(x) for x in list_function_inputs(form.with_arrays(arrays))]
        )
        program.threads = True
        return program

    def recipe(self, form: Form) -> ProgramRecipe:
        variables = {"JAX_PLATFORMS": self.device}
        if self.device == "cpu":
            variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        return ProgramRecipe(run_program, {"compiled": self.jit, "precision": self.precision}, variables=variables)

    def _describe_placement(self, out: list[Any], program: Program) -> None:
        """Where the results live, in JAX's own words."""
        where = sorted({str(d) for x in out if hasattr(x, "devices") for d in x.devices()})
        platforms = {d.platform for x in out if hasattr(x, "devices") for d in x.devices()}
        program.placement = ",".join(where) or "host"
        asked = "gpu" if self.device in ("cuda", "rocm") else self.device
        if platforms - {asked}:
            program.fallback = f"the result lives on {program.placement}, not on {self.device}"


def _get_jax_dtype(name: str) -> Any:
    import jax.numpy as jnp

    return getattr(jnp, "bool_" if name == "bool" else name)


def run_program(module: Any, inputs: list, compiled: bool, precision: str) -> list:
    """Outputs of a function on JAX."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", precision)
    call = jax.jit(module.program) if compiled else module.program
    return [np.array(x) for x in jax.tree.leaves(call(*map(jax.numpy.asarray, inputs)))]
