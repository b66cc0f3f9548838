"""Intel's Gaudi accelerators."""

from __future__ import annotations

from tasks.devices.base import PLUGIN_ALONE, Device, DeviceDriver, DeviceToolkit, TorchDevice, VendorCommand
from tasks.packages import TORCH_CATALOG, make_index_option

HPU = Device(
    "gaudi",
    "Intel Gaudi",
    "HPU",
    ("HABANA_VISIBLE_MODULES",),
    ("/dev/accel/accel*", "/dev/hl[0-9]*"),
    (("1da3", "12"),),
    (),
    (VendorCommand(("hl-smi", "-Q", "name", "-f", "csv,noheader"), r"^(?P<model>\S.*)$"),),
    config="configs/gaudi.yaml",
    before="the SynapseAI driver of the same release as the plugin",
    container="--runtime=habana -e HABANA_VISIBLE_DEVICES=all",
    exclusive=True,
    driver=DeviceDriver("/sys/module/habanalabs/version", module="habanalabs"),
    # The graph compiler is a package of the system; another system than Debian's kin keeps no text of its packages.
    toolkit=DeviceToolkit(
        "SynapseAI", ("/var/lib/dpkg",), "status", r"(?m)^Package: habanalabs-graph\n(?:.+\n)*?Version: (\S+)"
    ),
    libraries=(
        r"lib(?:Synapse|hl-thunk|hcl)\.so",
        "part of SynapseAI: install habanalabs-graph of the plug-in's release",
    ),
    torch={
        "hpu": TorchDevice(
            plugin="habana_frameworks.torch.core",
            distribution="habana_torch_plugin",
            toolkit=True,
            packages=(
                make_index_option("https://vault.habana.ai/artifactory/api/pypi/gaudi-python/simple"),
                "habana-torch-plugin==1.23.*",
                *TORCH_CATALOG,
            ),
            # Eager: an error is raised where it happens. Without the second, int64 is computed in int32.
            variables=(PLUGIN_ALONE, ("PT_HPU_LAZY_MODE", "0"), ("PT_ENABLE_INT64_SUPPORT", "1")),
            unsupported=r"not (?:yet )?supported on HPU|[Uu]nsupported (?:data ?type|dtype|op)",
            sticky=r"Device acquire failed|DEVICE_CRITICAL|DEVICE_RESET|[Dd]evice (?:was )?(?:lost|reset)|syn(?:Stream|Event|Device)Synchronize",
            out_of_memory=r"Allocation failed for size|OUT_OF_DEVICE_MEMORY|[Oo]ut of (?:device )?memory",
        )
    },
    called=("habana",),
)
DEVICES = (HPU,)
