"""Where the packages of backends come from beside PyPI, where installed ones lie, and libraries in them that no loader looks for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

#: Packages whose functions stand in one another's modules, and that are often not installed but built where they lie.
_BUILT = ("numpy", "torch")


@functools.cache
def list_library_folders() -> tuple[Path, ...]:
    """Folders of code that is Python's or an installed package's, as this process finds them when it first asks: those
    of its own environment, of one that it sees beside it (a system's, a user's), and packages that are built in
    place."""
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    seen = {x for x in sys.path if os.path.basename(x) in ("site-packages", "dist-packages")}
    built = set[str]()
    for name in _BUILT:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
            built |= set(spec.submodule_search_locations or ()) if spec is not None else set()
    return tuple(sorted({Path(x) for x in own | seen | built} | {Path(x).resolve() for x in own | seen | built}))


#: What names, among the packages of an environment, a further index for it alone, as pip and uv both take it.
INDEX = "--extra-index-url="


def make_index_option(url: str) -> str:
    return INDEX + url


#: In the environment of a runtime that takes ONNX: why a graph's result is wrong is looked for in graphs that say
#: something else (`tasks.diagnose.ignored_attributes`), where the result is.
ONNX = "onnx==1.23.2"
#: What the torch catalog needs beside torch, which asks for setuptools itself in newer releases and newer Pythons
#: alone.
TORCH_CATALOG = ("expecttest", "scipy", "setuptools")
#: TensorRT's wheels on PyPI fetch the real ones from here.
NVIDIA = make_index_option("https://pypi.nvidia.com")


#: Below it, builds of torch for kinds of devices have an index each (https://pytorch.org/get-started/locally/).
TORCH_BUILDS = "https://download.pytorch.org/whl/"


def pin_torch_build(build: str, release: str = "2.13.0") -> tuple[str, str]:
    """torch for one kind of device: its index and the requirement."""
    return make_index_option(TORCH_BUILDS + build), f"torch=={release}+{build}"


def pin_package(name: str, version: str) -> tuple[str, ...]:
    """What brings a package in a version that is installed somewhere: torch for a kind of device from its own index,
    all else without a build's own suffix (PyPI has no "+cpu")."""
    release, _, build = version.partition("+")
    if name == "torch" and re.fullmatch(r"cu\d+|rocm[\d.]+|xpu", build):
        return pin_torch_build(build, release)
    return (f"{name}=={release}",)


def list_cuda_13_packages(*parts: str) -> tuple[str, ...]:
    """Parts of CUDA 13.0 and cuDNN, pinned to what torch 2.13's wheel for it names: the release that the oldest driver
    of the farm's offers.

    Left open, they are the newest on the day of the build: other kernels than yesterday's, and code (PTX) that such a
    driver does not compile (CUDA's minor version compatibility holds for machine code alone).
    """
    return (
        f"cuda-toolkit[{','.join(parts)}]==13.0.3.0",
        "nvidia-nvjitlink==13.0.*",  # which the toolkit leaves open
        "nvidia-cudnn-cu13==9.20.0.48",
    )


def load_package_libraries(package: str, names: Sequence[str]) -> list[str]:
    """Load the libraries of a package, by globs in that order, for those that are linked to them; paths of those
    loaded.

    What is not there is left to the runtime, whose own message says more.
    """
    loaded = []
    for path in (found for name in names for found in list_package_files(package, name)):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            loaded.append(str(path))
    return loaded


def list_package_files(package: str, name: str) -> list[Path]:
    """What of an installed package's folders matches a glob; nothing where there is no such package."""
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(package)
    return [
        p
        for folder in ((spec.submodule_search_locations if spec else None) or [])
        for p in sorted(Path(folder).glob(name))
    ]
