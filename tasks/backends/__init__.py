"""Backends: one file per runtime: how it is probed, compiles and runs, makes its tensors and copies its outputs, sets its flags; what it needs of the machine (libraries, drivers) and what installs that; a backend's name is "<runtime>-<device>"."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.backends.base import Backend
from tasks.plugins import PluginError, PluginPart, list_plugin_parts

#: A Python version as the key `python` names one; what is none is an interpreter that is there.
PYTHON_VERSION = re.compile(r"3\.\d+(\.\d+)?")


def is_interpreter_path(python: str) -> bool:
    """Whether a backend's ``python`` is an interpreter that is there, and no version to build an environment of."""
    return bool(python) and not PYTHON_VERSION.fullmatch(python)


#: Runtime name → "module:class"; imported only when asked for.
BUILT_IN = {
    "torch": "tasks.backends.torch:TorchEager",
    "inductor": "tasks.backends.inductor:Inductor",
    "ort": "tasks.backends.onnxruntime:OnnxRuntime",
    "openvino": "tasks.backends.openvino:OpenVino",
    "rknn": "tasks.backends.rknn:Rknn",
    "ncnn": "tasks.backends.ncnn:Ncnn",
    "mnn": "tasks.backends.mnn:Mnn",
    "executorch": "tasks.backends.executorch:ExecuTorch",
    "zentorch": "tasks.backends.zentorch:ZenTorch",
    "jax": "tasks.backends.jax:Jax",
    "tvm": "tasks.backends.tvm:Tvm",
    "iree": "tasks.backends.iree:Iree",
    "tinygrad": "tasks.backends.tinygrad:Tinygrad",
    "tensorrt": "tasks.backends.tensorrt:TensorRt",
    "tensorrtrtx": "tasks.backends.tensorrt_rtx:TensorRtRtx",
    "tensorflow": "tasks.backends.tensorflow:TensorFlow",
    "litert": "tasks.backends.litert:LiteRt",
    "paddle": "tasks.backends.paddle:Paddle",
    "mlx": "tasks.backends.mlx:Mlx",
    "emulated": "tasks.backends.emulated:Emulated",
    "tosa": "tasks.backends.tosa:Tosa",
    "triton": "tasks.backends.triton:Triton",
    "gloo": "tasks.backends.collectives:Gloo",
    "nccl": "tasks.backends.collectives:Nccl",
    "ddp": "tasks.backends.training_ranks:Ddp",
    "fsdp": "tasks.backends.training_ranks:Fsdp",
    "tensor": "tasks.backends.training_ranks:TensorRanks",
    "sequence": "tasks.backends.training_ranks:SequenceParallel",
    "pipeline": "tasks.backends.training_ranks:PipelineRanks",
    "expert": "tasks.backends.training_ranks:ExpertRanks",
    "launched": "tasks.backends.training_launched:LaunchedTraining",
    "optax": "tasks.backends.training_jax:Optax",
    "rccl": "tasks.backends.collectives:Rccl",
    "endpoint": "tasks.backends.engines:Endpoint",
    "llamacpp": "tasks.backends.engines:LlamaCpp",
    "sglang": "tasks.backends.engines:Sglang",
    "tensorrtllm": "tasks.backends.engines:TensorRtLlm",
    "vllm": "tasks.backends.engines:Vllm",
    "engine": "tasks.backends.engines:OwnEngine",
    "genai": "tasks.backends.engines:OnnxRuntimeGenAi",
    "transformers": "tasks.backends.engines:Transformers",
    "tfxla": "tasks.backends.tensorflow:TensorFlowXla",
}


@dataclass(frozen=True)
class BackendSpec:
    """A backend as a config names it: plain data that travels to any process.

    name: unique in a run; runtime, device: parts of "<runtime>-<device>"; options: of the runtime; packages, python:
    of its environment, instead of those that its class asks for; launcher: a command in front of its interpreter.
    kernel: the file of a submission, whose function the ops of the catalog `user` call in this backend's process
    instead of a kernel of their own; digest: of its content.
    """

    name: str
    runtime: str
    device: str
    options: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    python: str = ""
    launcher: tuple[str, ...] = ()
    kernel: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        for name in ("packages", "launcher"):  # from JSON they come as lists
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def parse(
        cls,
        name: str,
        like: str = "",
        options: dict[str, Any] | None = None,
        packages: Sequence[str] = (),
        python: str = "",
        launcher: Sequence[str] = (),
    ) -> BackendSpec:
        """Spec of ``name`` (or of ``like`` under that name). Raises KeyError for an unknown runtime."""
        runtime, _, device = (like or name).partition("-")
        if runtime not in list_backends() or not device:
            raise KeyError(like or name)
        return cls(name, runtime, device, dict(options or {}), tuple(packages), python, tuple(launcher))

    @property
    def has_interpreter_as_it_is(self) -> bool:
        """Whether it runs in an interpreter that is there, into which the farm installs nothing."""
        return is_interpreter_path(self.python)

    def find_beside(self, runtime: str, device: str) -> BackendSpec:
        """Another runtime as its name alone says, where this one is."""
        return BackendSpec.parse(f"{runtime}-{device}")

    def create(self) -> Backend:
        """The backend object; its runtime is imported by `Backend.probe`.

        Raises ValueError for a bad option, PluginError if its own file cannot be imported.
        """
        backend: Backend = list_backends()[self.runtime].load()(self.name, self.device, dict(self.options))
        backend.spec = self
        return backend

    def create_if_there(self) -> Backend | None:
        """As `create`; None where its file cannot be imported, which its probe says."""
        with contextlib.suppress(PluginError):
            return self.create()
        return None


def list_backends() -> dict[str, PluginPart]:
    """Every runtime by name: built in, and from other packages' entry points of the group "farm.backends"."""
    return list_plugin_parts("backend", BUILT_IN)


def list_backend_names() -> list[str]:
    """Names of all backends, but for those of plugins that cannot be imported."""
    found = []
    for runtime, part in list_backends().items():
        with contextlib.suppress(PluginError):
            found += [f"{runtime}-{device}" for device in part.load().devices]
    return found
