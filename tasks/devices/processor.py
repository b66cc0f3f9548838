"""The processor of this machine: its name and its features, as the kernel says them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
from pathlib import Path


@functools.cache
def describe_processor() -> str:
    """The processor's name and features: code for "this machine" runs, and computes the same, on no other. A hypervisor
    may give several generations one name."""
    features = read_processor_entry("flags") or read_processor_entry("Features")
    return f"{platform.machine()} {read_processor_name()} {hashlib.sha256(features.encode()).hexdigest()[:12]}"


def read_processor_name() -> str:
    """The processor's name for people."""
    return read_processor_entry("model name") or platform.processor() or platform.machine()


def read_processor_entry(name: str) -> str:
    """The first processor's entry of a name in /proc/cpuinfo; "" if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""
