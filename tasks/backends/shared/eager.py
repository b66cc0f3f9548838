"""Eager torch beside another runtime in one process: what the check speedup times the other against."""

from __future__ import annotations

from tasks.backends.base import Arm, Backend
from tasks.backends.torch import TorchEager
from tasks.model import Form, Unavailable, Unsupported

#: Torch's names of devices that other runtimes call otherwise.
_DEVICES = {"gpu": "xpu", "tensorrt": "cuda", "tensorrt-rtx": "cuda", "migraphx": "rocm"}


def eager_torch(backend: Backend, form: Form) -> Arm:
    """Torch on the backend's device, on the sample's form for torch; the backend's lowest level where there is no such form or
    no torch in its environment. Raises Unsupported where there is neither."""
    name = f"torch-{_DEVICES.get(backend.device, backend.device) if backend.device_vendor else 'cpu'}"
    try:
        its = form.also("torch") if form.also else form
        torch = TorchEager(name, name.partition("-")[2], {})
        torch.start()
        return Arm(name, torch.build(its), its)
    except (Unsupported, Unavailable) as error:
        try:
            return Backend.eager(backend, form)
        except Unsupported as lacks:
            raise Unsupported(f"{lacks}; no eager torch either: {error}") from None
