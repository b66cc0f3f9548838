"""Kernels that torch is told to take, of attention and of convolutions; and whether it took them."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.backends.shared.torch_switches import allow_setting_flags
from tasks.model import Program, Unavailable, Unsupported

#: Option "sdpa" → (torch.backends.cuda's switch of it, which CPUs heed too; what the kernel's name says). "math" is the
#: composite.
SDPA = {
    "flash": ("flash", "_scaled_dot_product_flash_attention"),
    "efficient": ("mem_efficient", "_scaled_dot_product_efficient_attention"),
    "cudnn": ("cudnn", "_scaled_dot_product_cudnn_attention"),
    "math": ("math", ""),
}
#: Option "sdpa" → torch.backends.cuda's question whether CUDA has that kernel for a call.
_ASKED = {
    "flash": "can_use_flash_attention",
    "efficient": "can_use_efficient_attention",
    "cudnn": "can_use_cudnn_attention",
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
class TorchModes:
    """What is asked for, one of both at least; "" for nothing. device: of CONVOLUTION."""

    sdpa: str = ""
    convolution: str = ""
    device: str = "cpu"

    @functools.cached_property
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
            with allow_setting_flags():
                torch.backends.mkldnn.enabled = self.convolution == "onednn"  # type: ignore[assignment]
        elif self.convolution:
            with allow_setting_flags():
                torch.backends.cudnn.enabled = self.convolution != "native"
                torch.backends.cudnn.benchmark = self.convolution == "benchmark"
                torch.backends.cudnn.deterministic = self.convolution == "deterministic"

    @contextlib.contextmanager
    def watch_fallbacks(self, program: Program) -> Iterator[None]:
        """Around a call: a `fallback` of ``program`` says what was taken in place of what was asked for. A call of
        attention for which torch has no such kernel raises Unsupported before it is made."""
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        modes, kernels = self, list[str]()
        chosen: list[str] = []
        asked: list[str] = []

        class Calls(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                asked.append(getattr(func, "__name__", ""))
                if modes.sdpa and asked[-1] == "scaled_dot_product_attention":
                    if said := explain_attention_refusal(modes.sdpa, *args, **(kwargs or {})):
                        raise Unsupported(said)
                return func(*args, **(kwargs or {}))

        class Kernels(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kernels.append(func.name())
                if func.name() == "aten::convolution":
                    chosen.append(_name_convolution_choice(args))
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


def explain_attention_refusal(
    mode: str,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    """Why torch has no kernel of a mode ("flash") for a call of attention on the device of its tensors, in its own
    words; "" where it has one, or cannot be asked. The arguments are scaled_dot_product_attention's; the other kernels
    are turned off (`Modes.set`)."""
    import torch

    if mode not in _ASKED:
        return ""
    reason = ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if _is_asked_by_name(query):
            given = torch.backends.cuda.SDPAParams(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
            able = bool(getattr(torch.backends.cuda, _ASKED[mode])(given, debug=True))
        else:
            more = {"scale": scale, "enable_gqa": enable_gqa}
            try:
                able = torch._fused_sdp_choice(query, key, value, attn_mask, dropout_p, is_causal, **more) >= 0
            except NotImplementedError:  # the device is not asked, and says so itself
                able = True
            except RuntimeError as error:
                able, reason = False, str(error)
    if able:
        return ""
    told = (re.sub(r" \(Triggered internally at .*", "", str(x.message)).strip() for x in said)
    reasons = [x for x in dict.fromkeys(told) if not x.endswith("because:")]
    return f"torch has no {mode} attention for this call: {'; '.join(reasons) or reason or 'it does not say why'}"


def _is_asked_by_name(query: Any) -> bool:
    """Whether each kernel has a question of its own on the device; elsewhere torch tells which it would choose."""
    return bool(query.device.type == "cuda")


def _name_convolution_choice(args: Any) -> str:
    """torch's name of what it takes for a convolution: "Mkldnn", "Slow2d", "Cudnn"."""
    import torch

    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    choose: Any = torch._C._select_conv_backend
    found = choose(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    if int(found) == int(torch._C._ConvBackend.Mkldnn) + 1:  # the one that torch 2.13 has no name for in Python
        return "MkldnnTranspose"
    return str(found).rpartition(".")[2]
