"""Kernels that torch is told to take, of attention and of convolutions; and whether it took them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.backends.shared.torch_switches import settable
from tasks.model import Program, Unavailable

#: Option "sdpa" → (torch.backends.cuda's switch of it, which CPUs heed too; what the kernel's name says). "math" is the composite.
SDPA = {
    "flash": ("flash", "_scaled_dot_product_flash_attention"),
    "efficient": ("mem_efficient", "_scaled_dot_product_efficient_attention"),
    "cudnn": ("cudnn", "_scaled_dot_product_cudnn_attention"),
    "math": ("math", ""),
}
#: Option "convolution", by device → what torch's choice of a convolution must be called.
CONVOLUTION = {
    "cpu": {"onednn": r"Mkldnn", "native": r"Slow|Winograd|Overrideable|Empty|Xnn"},
    "cuda": {
        "heuristic": r"Cudnn|Miopen",
        "benchmark": r"Cudnn|Miopen",
        "deterministic": r"Cudnn|Miopen",
        "native": r"(?!Cudnn|Miopen)",
    },
}


@dataclass(frozen=True)
class Modes:
    """What is asked for, "" for nothing. device: of CONVOLUTION."""

    sdpa: str = ""
    convolution: str = ""
    device: str = "cpu"

    @property
    def flags(self) -> str:
        said = {"sdpa": self.sdpa, "convolution": self.convolution}
        return " ".join(f"{name}={value}" for name, value in said.items() if value)

    def set(self) -> None:
        """Tell torch, for this whole process. Raises Unavailable where it does not take the setting."""
        import torch

        if self.sdpa:
            for name, (switch, _) in SDPA.items():
                getattr(torch.backends.cuda, f"enable_{switch}_sdp")(name == self.sdpa)
                if getattr(torch.backends.cuda, f"{switch}_sdp_enabled")() != (name == self.sdpa):
                    raise Unavailable(f"torch {torch.__version__} does not take the setting sdpa {self.sdpa}")
        if self.convolution and self.device == "cpu":
            with settable():
                torch.backends.mkldnn.enabled = self.convolution == "onednn"  # type: ignore[assignment]
        elif self.convolution:
            with settable():
                torch.backends.cudnn.enabled = self.convolution != "native"
                torch.backends.cudnn.benchmark = self.convolution == "benchmark"
                torch.backends.cudnn.deterministic = self.convolution == "deterministic"

    @contextlib.contextmanager
    def watched(self, program: Program) -> Iterator[None]:
        """Around a call: a `fallback` of ``program`` says what was taken in place of what was asked for."""
        if not (self.sdpa or self.convolution):
            yield
            return
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        kernels: list[str] = []
        chosen: list[str] = []
        asked: list[str] = []

        class Calls(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                asked.append(getattr(func, "__name__", ""))
                return func(*args, **(kwargs or {}))

        class Kernels(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kernels.append(func.name())
                if func.name() == "aten::convolution":
                    chosen.append(_choice(args))
                return func(*args, **(kwargs or {}))

        with Calls(), Kernels():
            yield
        told = []
        if self.sdpa and "scaled_dot_product_attention" in asked:
            ran = {name for name, (_, words) in SDPA.items() if words and any(words in x for x in kernels)} or {"math"}
            if ran != {self.sdpa}:
                told.append(f"asked for sdpa {self.sdpa}, it ran {', '.join(sorted(ran))}")
        if self.convolution and chosen:
            wanted = CONVOLUTION[self.device][self.convolution]
            if other := [x for x in chosen if not re.match(wanted, x)]:
                told.append(f"asked for convolution {self.convolution}, it took {', '.join(dict.fromkeys(other))}")
            program.flags += f" took={','.join(dict.fromkeys(chosen))}" if "took=" not in program.flags else ""
        if told:
            program.fallback = "; ".join(told)


def _choice(args: Any) -> str:
    """torch's name of what it takes for a convolution: "Mkldnn", "Slow2d", "Cudnn"."""
    import torch

    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    choose: Any = torch._C._select_conv_backend
    found = choose(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if int(found) == int(torch._C._ConvBackend.Mkldnn) + 1:  # the one that torch 2.13 has no name for in Python
        return "MkldnnTranspose"
    return str(found).rpartition(".")[2]
