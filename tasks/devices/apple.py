"""The GPUs of Apple's processors."""

from __future__ import annotations

from tasks.devices.base import Device, TorchDevice, VendorCommand

GPU = Device(
    "apple",
    "Apple",
    "GPU",
    commands=(VendorCommand(("sysctl", "-n", "machdep.cpu.brand_string"), r"^(?P<model>Apple .*)$"),),
    platforms=("darwin",),
    torch={
        "mps": TorchDevice(
            variables=(("PYTORCH_ENABLE_MPS_FALLBACK", "0"),),
            unsupported=r"not currently (?:implemented|supported) (?:for|on) the MPS|MPS framework doesn't support|not supported on MPS",
            sticky=r"[Cc]ommand buffer (?:execution )?(?:failed|exited)|kIOGPUCommandBufferCallbackError|MTLCommandBufferError",
            out_of_memory=r"MPS backend out of memory|InsufficientMemory",
        )
    },
    called=("metal",),
)
DEVICES = (GPU,)
