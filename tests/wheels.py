"""Releases of a package that no index has: wheels in a folder, which pip is to look in."""

from __future__ import annotations

import zipfile
from pathlib import Path

#: The package whose releases backends of the planted plugin look at.
NAME = "farm-fake-runtime"


def release(folder: Path, version: str, fault: float, needs: str = "") -> None:
    """Write a release that says its version and its fault; needs: a requirement of it."""
    module = NAME.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", f"version, fault = {version!r}, {fault}\n")
        told = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n" + f"Requires-Dist: {needs}\n" * bool(needs)
        wheel.writestr(f"{info}/METADATA", told)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
