"""AWS's Neuron cores: Inferentia and Trainium."""

from __future__ import annotations

from tasks.devices.base import PLUGIN_ALONE, Device, DeviceDriver, TorchDevice, VendorCommand
from tasks.packages import TORCH_CATALOG, make_index_option

#: Ray counts cores of a chip; without the tool a chip counts as one.
NEURON = Device(
    "aws",
    "AWS Neuron",
    "neuron_cores",
    ("NEURON_RT_VISIBLE_CORES",),
    ("/dev/neuron[0-9]*",),
    (("1d0f", "12"),),
    (),
    (VendorCommand(("neuron-ls", "--json-output"), r'"nc_count":\s*(?P<count>\d+)'),),
    exclusive=True,
    driver=DeviceDriver("/sys/module/neuron/version"),
    torch={
        # The compiler casts float32 to bfloat16 for its matrix unit by itself: --auto-cast=matmult is its default, and
        # casts them all.
        "neuron": TorchDevice(
            target="xla",
            kernels="AWS",
            plugin="torch_neuronx",
            distribution="torch_neuronx",
            platform="NEURON",
            option="auto_cast",
            coarse="bfloat16",
            obeys=True,
            packages=(
                make_index_option("https://pip.repos.neuron.amazonaws.com"),
                "torch-neuronx==2.9.*",
                "neuronx-cc==2.*",
                *TORCH_CATALOG,
            ),
            variables=(PLUGIN_ALONE,),
            unsupported=r"UNIMPLEMENTED|NCC_E\w+|not supported|[Uu]nsupported",
            sticky=r"NRT_EXEC_\w*|NRT_(?:UNINITIALIZED|CLOSED|HW_ERROR|TIMEOUT)|nrt_execute|UNAVAILABLE",
            out_of_memory=r"RESOURCE_EXHAUSTED|NRT_RESOURCE|NCC_EVRF\w*memory",
        )
    },
)
DEVICES = (NEURON,)
