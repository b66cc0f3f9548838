"""zentorch."""
from tasks.backends.inductor import Inductor


class ZenTorch(Inductor):
    packages = ("zentorch==2.13.0.2", "torch==2.13.0", "deprecated", "safetensors", "expecttest", "scipy")
