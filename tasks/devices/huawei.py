"""Huawei's Ascend accelerators."""

from __future__ import annotations

import platform

from tasks.devices.base import PLUGIN_ALONE, Device, DeviceDriver, DeviceToolkit, TorchDevice, VendorCommand
from tasks.packages import TORCH_CATALOG

ASCEND = Device(
    "huawei",
    "Huawei",
    "NPU",
    ("ASCEND_RT_VISIBLE_DEVICES",),
    ("/dev/davinci[0-9]*",),
    (("19e5", "12"),),
    (),
    (VendorCommand(("npu-smi", "info", "-m"), r"^\s*\d+\s+\d+\s+\d+\s+(?P<model>Ascend\S*.*?)\s*$"),),
    before="the vendor's driver, `set_env.sh` of CANN, and `torch_npu`",
    container="--device=/dev/davinci0 --device=/dev/davinci_manager --device=/dev/devmm_svm --device=/dev/hisi_hdc "
    "-v /usr/local/Ascend/driver:/usr/local/Ascend/driver",
    numbered=True,
    # As torch_npu's get_cann_version("DRIVER") reads it; a container has it where it was given it.
    driver=DeviceDriver("/usr/local/Ascend/driver/version.info", r"(?m)^Version=(\S+)"),
    # set_env.sh of CANN sets both variables; its installation guide reads the version there.
    toolkit=DeviceToolkit(
        "CANN",
        ("$ASCEND_TOOLKIT_HOME", "$ASCEND_HOME_PATH"),
        f"{platform.machine()}-linux/ascend_toolkit_install.info",
        r"(?m)^version=(\S+)",
    ),
    libraries=(r"lib(?:ascend\w*|hccl|ge_\w+|opapi|acl_\w+)\.so", "part of CANN: source its set_env.sh first"),
    torch={
        # 507xxx are CANN's errors of the device itself (aicore exception, timeout, lost); 161002 a parameter it does
        # not take.
        "npu": TorchDevice(
            plugin="torch_npu",
            distribution="torch_npu",
            toolkit=True,
            option="hf32",
            coarse="tfloat32",
            packages=("torch==2.13.0", "torch-npu==2.13.0", "pyyaml", *TORCH_CATALOG),
            variables=(PLUGIN_ALONE, ("TORCH_NPU_FALLBACK_CPU_DISABLE", "1")),
            unsupported=r"not implemented for DT_|dtype support list|not (?:currently )?supported on the NPU",
            sticky=r"error code(?: is|:)? ?507\d{3}|aicore exception|vector core execution is abnormal|FORCE STOP",
            out_of_memory=r"NPU out of memory|error code(?: is|:)? ?207001",
        )
    },
    called=("ascend",),
)
DEVICES = (ASCEND,)
