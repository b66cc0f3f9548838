"""torch's device types in this process: waiting, memory, and the words of their errors."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from tasks.devices import TORCH, TorchDevice
from tasks.devices.base import PLUGIN_ALONE

#: What torch itself says on any device, as a RuntimeError, of a dtype that a kernel was not written for (AT_DISPATCH:
#: '"histc" not implemented for 'BFloat16''; older kernels: "HalfTensor is not supported").
_NO_KERNEL = re.compile(r"not implemented for '|is not implemented|^\w+Tensor is not supported$")
#: What it says where the one kernel of attention that is allowed does not take a call. CUDA's "Invalid backend" is the
#: end of its list of kernels (ATen/native/transformers/cuda/sdp_utils.cpp, select_sdp_backend).
_NO_ATTENTION = re.compile(r"No viable backend for scaled_dot_product_attention|No available kernel|^Invalid backend$")
#: What plugins call the number of pieces of memory that their allocator has handed out: torch's own, Habana's.
_ALLOCATIONS = ("allocation.all.allocated", "NumAllocs")
#: How plugins say that a kernel of the CPU did the work: torch's own words for MPS, XPU's, Ascend's.
FELL_BACK = re.compile(
    r"fall(?:s|en|ing)?[ -]?back (?:to (?:run )?(?:on )?(?:the )?CPU|from \w+ to CPU)|run on the CPU", re.IGNORECASE
)


def says_torch_unsupported(name: str, error_type: str, text: str, attention: bool = False) -> bool:
    """Whether an error that torch raised on a device type says that there is no kernel for a case.

    error_type: its class's name, "NotImplementedError" or "RuntimeError" for one derived from these. attention: whether
    torch was told to take one kernel of attention alone.
    """
    return (
        error_type == "NotImplementedError"
        or (error_type == "RuntimeError" and _NO_KERNEL.search(text) is not None)
        or (attention and _NO_ATTENTION.search(text) is not None)
        or (bool(known := find_torch_device(name).unsupported) and re.search(known, text) is not None)
    )


#: What torch says of a call that it took on and could not finish.
FAILED = re.compile(
    r"INTERNAL ASSERT|CUDA error|HIP error|_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)|UR_RESULT_ERROR_"
)


def find_torch_device(name: str) -> TorchDevice:
    """What is known of a device type; a PrivateUse1 device of another plugin needs nothing but torch."""
    return TORCH.get(name) or TorchDevice(variables=(PLUGIN_ALONE,))


def measure_torch_memory(target: str) -> int:
    """Bytes of memory of the device that torch calls ``target``; 0 where torch does not tell."""
    import torch

    module: Any = getattr(torch, target, None)
    with contextlib.suppress(Exception):  # each plugin fails in its own way
        if target == "mps":
            return int(module.recommended_max_memory())
        return int(module.get_device_properties(0).total_memory)
    return 0


def name_torch_device_here() -> str:
    """The device type, as a backend names it, that torch has in this process, with the plugins that are imported: the
    first of `tasks.devices.TORCH`, or what torch itself takes for its accelerator; "cpu" where there is none."""
    import torch

    for name, known in TORCH.items():
        if known.platform:  # PJRT: torch_xla may run on the CPU
            runtime = sys.modules.get("torch_xla.runtime")
            found = runtime is not None and str(runtime.device_type()).upper() == known.platform
        else:
            module = getattr(torch, known.target or name, None)
            found = name != "cpu" and bool(getattr(module, "is_available", bool)())
            if (known.target or name) == "cuda":
                found = found and bool(torch.version.hip) == (name == "rocm")
        if found:
            return name
    other = torch.accelerator.current_accelerator(check_available=True)
    return other.type if other else "cpu"


def synchronize_torch_device(target: str) -> None:
    """Return when the device that torch calls ``target`` has done all that was asked of it. Raises what went wrong
    there."""
    import torch

    if target == "xla":  # lazy: nothing is computed before this
        sync: Callable[..., None] = importlib.import_module("torch_xla").sync
        sync(wait=True)
    elif target != "cpu" and hasattr(module := getattr(torch, target, None), "synchronize"):
        module.synchronize()  # type: ignore[union-attr]


def count_torch_allocations(target: str) -> int | None:
    """How often torch has handed out memory of the device that it calls ``target`` in this process; None where nobody
    counts."""
    import torch

    stats: dict[str, Any] = getattr(getattr(torch, target, None), "memory_stats", dict)()
    return next((int(stats[name]) for name in _ALLOCATIONS if name in stats), None)
