"""Triton's compiler ahead of time: a user's Triton kernels, and inductor's, as machine code for GPUs that are not here."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tasks import checks
from tasks.arrays import torch_tree
from tasks.arrays.tree import decode_argument_tree
from tasks.backends.base import Backend, importing, smoke_test
from tasks.backends.shared import torch_switches
from tasks.model import Fallback, Form, Program, RuntimeInfo, errors
from tasks.packages import TORCH_CATALOG


@dataclass(frozen=True)
class TritonTarget:
    """A GPU as Triton and inductor see it: of its maker's data sheet, units (multiprocessors), threads of a warp, and
    bytes of shared memory that a block may have (CUDA's opt-in limit; AMD's LDS).

    arch: Triton's name of it; major: of a CUDA compute capability.
    """

    kind: str
    arch: int | str
    warp: int
    units: int
    shared: int
    major: int | None = None


#: H100, B200; MI300X, MI350X.
TARGETS = {
    "sm_90": TritonTarget("cuda", 90, 32, 132, 227 << 10, 9),
    "sm_100": TritonTarget("cuda", 100, 32, 148, 227 << 10, 10),
    "gfx942": TritonTarget("hip", "gfx942", 64, 304, 64 << 10),
    "gfx950": TritonTarget("hip", "gfx950", 64, 256, 160 << 10),
}


class Triton(Backend):
    """``triton-sm_90`` and others: what the case's Triton kernels, or those that torch.compile makes of it, are
    compiled to.

    Nothing is run: a kernel without machine code is known before a card is seen (check `build`).
    """

    vendor = "Triton"
    forms = ("torch",)
    takes = ()
    devices, closed = tuple(TARGETS), True
    checks = (checks.Build.name,)
    packages = ("torch==2.13.0", "triton==3.9.0", *TORCH_CATALOG)

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self._target = TARGETS[device]

    def probe(self) -> RuntimeInfo:
        """Compile a kernel of an addition. Raises Unavailable in Triton's words."""
        os.environ["TRITON_INTERPRET"] = "0"  # whatever imports Triton later
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9's default, and no word about it
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        with importing("triton"):
            import torch
            import triton

        torch.set_num_threads(1)
        triton.runtime.driver.set_active(_TritonDriver(self._target))

        def compute() -> Any:
            return [2.0 * bool(self._kernels(lambda: _compile_triton_call(torch.add)(torch.ones(2), torch.ones(2))))]

        smoke_test(f"triton {triton.__version__} for {self.device}", compute, "code of one addition")
        return RuntimeInfo(
            f"triton {triton.__version__}, torch {torch.__version__}",
            f"no device (compiles for {self.device})",
            build=torch_switches.read_torch_commit(),
        )

    def build(self, form: Form) -> Program:
        """Compile every kernel that the case launches; without any, those that inductor generates for it.

        Raises Fallback where there is none, and what the compiler raises where a kernel has no configuration that
        compiles.
        """
        import torch

        assert form.call is not None
        call: Callable[..., Any] = form.call

        def run(function: Callable[..., Any]) -> None:
            leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu")
            with torch.no_grad():
                function(*decode_argument_tree(form.args, leaf), **decode_argument_tree(form.kwargs, leaf))

        kernels = self._kernels(lambda: run(call))
        whose = "own" if kernels else "inductor"
        if not kernels:
            try:
                kernels = self._kernels(lambda: run(_compile_triton_call(call)))
            except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
                raise Fallback(f"graph break: {errors.find_error_text(error)}") from None
        if not kernels:
            raise Fallback("no kernel was generated: the graph calls ATen")
        code = sum(len(x.asm["cubin" if self._target.kind == "cuda" else "hsaco"]) for x in kernels)
        flags = f"kernels={whose} compiled={len(kernels)}"
        return Program(_refuse_triton_run, f"code for {self.device}, {code} B", None, flags)

    def _kernels(self, launch: Callable[[], Any]) -> list[Any]:
        """What was compiled when ``launch`` was called, by launches that compile and run nothing."""
        found: list[Any] = []
        with _compile_triton_launches(self._target, found):
            launch()
        return found


def _refuse_triton_run() -> Any:
    raise RuntimeError("code for another machine is not run")


def _compile_triton_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile of a call that makes Triton's kernels for the CPU, whose properties are the target's then."""
    import torch

    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(
        lambda *args, **kwargs: call(*args, **kwargs), fullgraph=True, dynamic=False
    )
    return made


@contextlib.contextmanager
def _compile_triton_launches(target: TritonTarget, found: list[Any]) -> Iterator[None]:
    """Triton's and inductor's launches compile for the target, add what they compiled to ``found``, and launch
    nothing."""
    import torch._inductor.config as config
    from torch._inductor.runtime import hints, triton_helpers, triton_heuristics
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launched = JITFunction.run
    properties = hints.DeviceProperties(
        type=target.kind,
        index=0,
        multi_processor_count=target.units,
        cc=target.arch,
        major=target.major,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        warp_size=target.warp,
    )

    def of_user(kernel: Any, *args: Any, **kwargs: Any) -> None:
        found.append(_fit_kernel_to_target(target, launched(kernel, *args, **{**kwargs, "warmup": True})))

    def of_each(tuned: Any, *args: Any, **kwargs: Any) -> None:
        _keep_triton_compilations(
            [functools.partial(tuned.fn.run, *args, **kwargs, **x.all_kwargs()) for x in tuned.configs]
        )

    def of_inductor(tuned: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(tuned, "farm_compiled"):
            tuned.farm_compiled = [functools.partial(tuned._precompile_config, x) for x in tuned.configs]
            found.extend(
                _keep_triton_compilations(
                    [
                        functools.partial(lambda make: _fit_kernel_to_target(target, make().kernel), x)
                        for x in tuned.farm_compiled
                    ]
                )
            )

    with contextlib.ExitStack() as all_of_them:
        for owner, name, other in (
            (JITFunction, "run", of_user),
            (Autotuner, "run", of_each),
            (triton_heuristics.CachingAutotuner, "precompile", of_inductor),
            (triton_heuristics.CachingAutotuner, "run", lambda tuned, *args, **kwargs: None),
            (hints.DeviceProperties, "create", lambda device: properties),
            (triton_helpers, "set_driver_to_cpu", lambda: None),
            (triton_helpers, "set_driver_to_gpu", lambda: None),
        ):
            all_of_them.enter_context(mock.patch.object(owner, name, other))
        all_of_them.enter_context(
            config.patch(cpu_backend="triton", fx_graph_cache=False, use_static_triton_launcher=False)
        )
        yield


def _fit_kernel_to_target(target: TritonTarget, kernel: Any) -> Any:
    """A compiled kernel that the target can launch; Triton itself asks for its shared memory only where it is loaded.
    Raises Triton's OutOfResources."""
    from triton.runtime.errors import OutOfResources

    if kernel.metadata.shared > target.shared:
        raise OutOfResources(kernel.metadata.shared, target.shared, "shared memory")
    return kernel


def _keep_triton_compilations(compilations: list[Callable[[], Any]]) -> list[Any]:
    """What those that succeed give: of a kernel's configurations an autotuner leaves out those that do not compile.
    Raises the last one's error where none does."""
    made, said = [], None
    for compile_ in compilations:
        try:
            made.append(compile_())
        except Exception as error:
            said = error
    if said is not None and not made:
        raise said
    return made


class _TritonDriver:
    """Triton's driver of a GPU that is not here."""

    def __init__(self, target: TritonTarget) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget(target.kind, target.arch, target.warp)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")
