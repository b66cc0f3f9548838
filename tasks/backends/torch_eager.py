"""torch eager on any device torch knows: cpu, cuda (ROCm's too), xpu, mps and PrivateUse1 devices."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks import gradients, torch_tree
from tasks.backends.base import TF32_OPS, Backend
from tasks.model import PREPARED, Form, Program, RuntimeInfo, Unavailable
from tasks.tree import TensorSpec, decode, encode_tensor
from tasks.vendors import BY_LABEL, TORCH_DEVICES, resource_of


class TorchEager(Backend):
    forms = ("torch",)
    devices = tuple(TORCH_DEVICES)
    checks: tuple[str, ...] = PREPARED

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.vendor, self.device_vendor = TORCH_DEVICES.get(device, (device, device))
        self.resource = resource_of(self.device_vendor) if self.device_vendor in ("", *BY_LABEL) else "GPU"
        #: What torch calls the device: ROCm builds say cuda.
        self.target = "cuda" if device == "rocm" else device
        self.tf32 = bool(options.pop("tf32", False))
        if options:
            raise ValueError(f"backend {name}: unknown option {sorted(options)[0]!r}; it takes tf32")

    def probe(self) -> RuntimeInfo:
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"torch is not installed ({error})") from None
        torch.set_num_threads(1)
        precision, driver = "", ""
        if self.target == "cpu":
            device = torch.backends.cpu.get_cpu_capability()
        else:
            device = self._accelerator()
        if self.target == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
            precision = "tfloat32" if self.tf32 else ""
            driver = str(torch.version.hip or torch.version.cuda or "")
        return RuntimeInfo(f"torch {torch.__version__}", device, driver, precision, TF32_OPS if precision else ())

    def _accelerator(self) -> str:
        """Name of the device. Raises Unavailable with torch's own reason."""
        import torch

        if self.device == "rocm" and not torch.version.hip:
            raise Unavailable(f"torch {torch.__version__} is not a ROCm build")
        if self.device == "cuda" and torch.version.hip:
            raise Unavailable(f"torch {torch.__version__} is a ROCm build: its devices are torch-rocm")
        if self.target == "cuda" and not torch.backends.cuda.is_built():
            raise Unavailable(f"torch {torch.__version__} was built without CUDA")
        if self.target == "mps":
            if not torch.backends.mps.is_available():
                raise Unavailable(f"torch {torch.__version__} has no MPS device here")
            return "mps"
        module: Any = getattr(torch, self.target, None)
        if module is None or not hasattr(module, "is_available"):
            raise Unavailable(f"torch {torch.__version__} knows no device type {self.target!r} (is its plugin installed?)")
        if not module.is_available():
            try:
                torch.empty(1, device=self.target)
            except Exception as error:
                raise Unavailable(f"torch {torch.__version__}: {str(error).splitlines()[0]}") from None
            raise Unavailable(f"torch {torch.__version__} finds no {self.target} device")
        return str(module.get_device_name(0)) if hasattr(module, "get_device_name") else self.target

    @property
    def flags(self) -> str:
        return f"tf32={'on' if self.tf32 else 'off'}" if self.target == "cuda" else ""

    def arguments(self, form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Fresh arguments on the device: an op that writes to them harms nobody."""
        leaf = torch_tree.decoder(form.arrays.__getitem__, self.target)
        return decode(form.args, leaf), decode(form.kwargs, leaf)

    def cotangents(self, form: Form) -> list[Any]:
        """Fresh cotangents on the device, None for outputs that have none."""
        leaf = torch_tree.decoder(form.arrays.__getitem__, self.target)
        return [None if i < 0 else decode(encode_tensor(TensorSpec(i)), leaf) for i in form.cotangents]

    def build(self, form: Form) -> Program:
        import torch

        ready = [self.arguments(form)]
        call = form.call
        assert call is not None
        given = self.cotangents(form)
        program = Program(run=lambda: [], placement=self.target, flags=self.flags)

        def run() -> Sequence[Any]:
            # A kernel that writes to its inputs must not spoil its next run.
            args, kwargs = ready.pop() if ready else self.arguments(form)
            if form.check != "forward":
                out = gradients.backward(form.check, call, args, kwargs, form.wrt, given)
            else:
                with torch.no_grad():
                    out = list(torch_tree.leaves(call(*args, **kwargs)))
            if self.target != "cpu":
                self._placed(out, program)
            return [torch_tree.output(torch_tree.dense(x)) for x in out]

        program.run = run
        return program

    def _placed(self, out: Sequence[Any], program: Program) -> None:
        import torch

        where = {x.device.type for x in out if isinstance(x, torch.Tensor)}
        if where and self.target not in where:
            program.placement = ",".join(sorted(where))
            program.fallback = f"the result lives on {program.placement}, not on {self.target}"

    def is_unsupported(self, error: BaseException) -> bool:
        text = str(error)
        return isinstance(error, NotImplementedError) or (
            isinstance(error, RuntimeError) and ("not implemented for '" in text or "is not implemented" in text)
        )

    def is_out_of_memory(self, error: BaseException) -> bool:
        text = str(error)
        return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or (
            "can't allocate memory" in text or "not enough memory" in text
        )

    def is_sticky(self, error: BaseException) -> bool:
        text = str(error)
        return self.target != "cpu" and not self.is_out_of_memory(error) and (
            type(error).__name__ == "AcceleratorError" or "CUDA error" in text or "HIP error" in text
        )
