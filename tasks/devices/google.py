"""Google's TPUs."""

from __future__ import annotations

from tasks.devices.base import PLUGIN_ALONE, Device, TorchDevice
from tasks.packages import TORCH_CATALOG, pin_torch_build

TPU = Device(
    "google",
    "Google",
    "TPU",
    ("TPU_VISIBLE_CHIPS",),
    ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
    (("1ae0", "12"),),
    exclusive=True,
    torch={
        "xla": TorchDevice(
            plugin="torch_xla",
            distribution="torch_xla",
            platform="TPU",
            option="bf16_matmul",
            coarse="bfloat16",
            packages=(*pin_torch_build("cpu", "2.9.0"), "torch_xla[tpu]==2.9.0", *TORCH_CATALOG),
            variables=(PLUGIN_ALONE,),
            unsupported=r"UNIMPLEMENTED|not implemented on|lowering .*not (?:supported|implemented)",
            sticky=r"UNAVAILABLE|DATA_LOSS|ABORTED|TPU (?:driver|chip|core).*(?:lost|failed)|INTERNAL: .*(?:[Cc]ore halted|hardware)",
            out_of_memory=r"RESOURCE_EXHAUSTED",
        )
    },
    called=("tpu",),
)
DEVICES = (TPU,)
