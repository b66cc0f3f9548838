"""What is known of a backend once its process has answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.model.case import RuntimeInfo

_SILENT = RuntimeInfo("", "")


@dataclass(frozen=True)
class BackendInfo:
    """A backend's answer to hello: what its runtime says, what its class found out here, and what whoever asked
    adds."""

    #: What the runtime says of itself.
    runtime: RuntimeInfo = _SILENT
    #: Who ships the runtime.
    vendor: str = ""
    #: Whose device it runs on, as nodes are labelled; "" for the CPU.
    device_vendor: str = ""
    #: The Ray resource that counts its devices.
    resource: str = ""
    #: Why a job of it must have its device to itself; "" if it need not.
    alone: str = ""
    #: The device is an emulator or a simulator.
    emulated: bool = False
    #: Where each of its needs was found (`tasks.backends.needs`), by name.
    found: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: Dtypes in which its device gives the known answer (`tasks.canary`).
    canary: tuple[str, ...] = ()
    #: What it runs in, as the column of this name says it. This and what follows is added by whoever asked.
    environment: str = ""
    #: Seconds until its process had answered; 0 where that was not measured.
    start_s: float = 0.0
    #: Only one process at a time may open its device.
    exclusive: bool = False


#: Of a backend that was not asked.
UNASKED = BackendInfo()
