"""What backends need beside Python packages: how it is found on this machine, how a runtime is led to it, what installs it."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tasks.backends.shared.artefacts import FOLDER
from tasks.model import Unavailable

#: Installers of systems, by the program that shows which one is here: what is typed before the names of packages.
INSTALLERS = {"apt-get": "apt install", "dnf": "dnf install", "pacman": "pacman -S"}
#: Folder whose libraries a child of another environment may borrow: those that the farm's own torch brings along.
LENT = "FARM_LENT"


@dataclass(frozen=True)
class Need:
    """Something of the machine without which a backend cannot run.

    what: its name, as after "no"; find: where it is, "" for nowhere (it may load a library, and changes nothing else);
    packages: what installs it, by the key of `INSTALLERS` or, before that, the system's ID (os-release(5)); use: lead
    the runtime of this process to what was found.
    """

    what: str
    find: Callable[[], str]
    packages: Mapping[str, str] = field(default_factory=dict)
    use: Callable[[str], None] = lambda where: None


class Missing(Unavailable):
    """Needs that this machine does not have; installs: (command, package) of those that its system has packages of.

    why: the runtime's own words, where what was found was not good enough.
    """

    def __init__(self, needs: Sequence[Need], why: str = "") -> None:
        installer = next((x for x in INSTALLERS if shutil.which(x)), "")
        command = ("" if os.geteuid() == 0 else "sudo ") + INSTALLERS.get(installer, "")
        packages = [x.packages.get(_name_system_library()) or x.packages.get(installer) for x in needs if installer]
        self.installs = tuple((command, package) for package in packages if package)
        how = write_install_line(self.installs)
        text = why or f"no {', no '.join(x.what for x in needs)} on this machine"
        super().__init__(f"{text.rstrip('.')}: {how}" if how else text)


def secure_backend_needs(needs: Iterable[Need]) -> dict[str, str]:
    """Find every need and lead the runtime there; where each is, by name. Raises Missing, which names all that are
    not."""
    missing, found = [], {}
    for need in needs if sys.platform == "linux" else ():
        if where := need.find():
            found[need.what] = where
            need.use(where)
        else:
            missing.append(need)
    if missing:
        raise Missing(missing)
    return found


def _name_system_library() -> str:
    with contextlib.suppress(OSError):
        return platform.freedesktop_os_release().get("ID", "")
    return ""


def write_install_line(installs: Iterable[Sequence[str]]) -> str:
    """The one line that installs all (command, package); "" for none."""
    by_command: dict[str, dict[str, None]] = {}
    for command, package in installs:
        by_command.setdefault(command, {})[package] = None
    return " && ".join(f"{command} {' '.join(packages)}" for command, packages in by_command.items())


# --- where things are -------------------------------------------------------------------------------------------

#: Browsers and what is built of them bring a Vulkan loader and SwiftShader, Vulkan on the CPU.
_BROWSERS = (
    "/usr/lib*/chromium*",
    "/opt/google/chrome*",
    "/opt/microsoft/msedge*",
    "/snap/chromium/current/usr/lib/chromium-browser",
    "/usr/share/code*",
    "~/.cache/ms-playwright/chromium*/chrome-linux*",
    "~/.cache/puppeteer/chrome*/*/chrome-*",
)
#: Where Vulkan's loader looks for drivers, and its variables for others.
_VULKAN_DRIVERS = tuple(
    f"{x}/vulkan/icd.d/*.json" for x in ("/etc", "/usr/share", "/usr/local/share", "/usr/local/etc", "~/.local/share")
)
_VULKAN_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES")
_OPENCL_DRIVERS = ("/etc/OpenCL/vendors/*.icd",)
_OPENCL_VARIABLES = ("OCL_ICD_FILENAMES", "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
#: Intel's OpenCL runtime for CPUs as its wheels lay it down, and what it is linked against, in the order of loading.
_INTEL_OPENCL = "libintelocl.so"
_INTEL_FIRST = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libtbb.so.12")


def _find_library_files(patterns: Iterable[str]) -> list[str]:
    return [x for pattern in patterns for x in sorted(glob.glob(os.path.expanduser(pattern)))]


def _get_first_set(variables: Iterable[str]) -> str:
    """What the first variable that is set says."""
    return next((os.environ[x] for x in variables if os.environ.get(x)), "")


def make_library_finder(name: str, elsewhere: Callable[[], Iterable[str]] = tuple) -> Callable[[], str]:
    """A `Need.find` of a shared library: as the loader finds it, else the first of the paths ``elsewhere`` that can be
    loaded. Once loaded by this process, whoever asks for its name gets it."""

    def find() -> str:
        for path in (name, *elsewhere()):
            try:
                ctypes.CDLL(path)
            except OSError:
                continue
            return path if os.path.isabs(path) else _find_loaded_library(name) or name
        return ""

    return find


def _find_loaded_library(name: str) -> str:
    """The file of a library that this process has loaded."""
    stem = name.partition(".so")[0] + ".so"
    with open("/proc/self/maps") as maps:
        paths = (line.split(maxsplit=5)[5].strip() for line in maps if "/" in line)
        return next((x for x in paths if os.path.basename(x).startswith(stem)), "")


def find_software_vulkan() -> list[str]:
    """SwiftShader's driver files beside browsers."""
    return _find_library_files(f"{x}/vk_swiftshader_icd.json" for x in _BROWSERS)


def _find_vulkan_driver() -> str:
    return _get_first_set(_VULKAN_VARIABLES) or next(
        iter([*_find_library_files(_VULKAN_DRIVERS), *find_software_vulkan()]), ""
    )


def _use_vulkan(where: str) -> None:
    if where in find_software_vulkan():
        _add_software_vulkan(where)


def _add_software_vulkan(_: str) -> None:
    """Let the loader find SwiftShader beside the drivers installed, unless drivers were chosen by hand."""
    found = find_software_vulkan()
    if found and not _get_first_set(_VULKAN_VARIABLES):
        os.environ["VK_ADD_DRIVER_FILES"] = os.pathsep.join(found)


def _find_opencl_driver() -> str:
    return _get_first_set(_OPENCL_VARIABLES) or next(
        iter(_find_library_files((*_OPENCL_DRIVERS, _find_library_of_wheel(_INTEL_OPENCL)))), ""
    )


def _use_opencl(where: str) -> None:
    if where == _find_library_of_wheel(_INTEL_OPENCL):
        for name in _INTEL_FIRST:  # no loader looks for them where they are
            ctypes.CDLL(_find_library_of_wheel(name), mode=ctypes.RTLD_GLOBAL)
        os.environ["OCL_ICD_FILENAMES"] = where


def _find_library_of_wheel(name: str) -> str:
    """Where a wheel that lays libraries down beside Python's own folder has put one."""
    return os.path.join(sys.prefix, "lib", name)


def _find_clang() -> str:
    """$CC if it is a clang; the one of the package ziglang; the newest on the path ("clang" may be one before 17,
    which has no __bf16 to compute with)."""
    if "clang" in read_compiler_version(os.environ.get("CC", "")):
        return os.environ["CC"]
    if found := _find_zig():
        return found
    return next(filter(None, map(shutil.which, (*(f"clang-{n}" for n in range(40, 10, -1)), "clang"))), "")


def _find_zig() -> str:
    spec = importlib.util.find_spec("ziglang")
    path = Path(spec.origin).parent / "zig" if spec and spec.origin else None
    return str(path) if path and path.exists() else ""


def _name_compiler_as_cc(where: str) -> None:
    """Name the compiler in $CC; zig, which is clang when it is told so, through a script of two lines."""
    if where == _find_zig():
        # The same for every process: what a compiler makes is kept by its name.
        folder = Path(os.environ.get(FOLDER, tempfile.gettempdir())) / f"farm-clang-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise Unavailable(f"{folder} is not this user's own")
        script = folder / hashlib.sha256(where.encode()).hexdigest()[:12] / "clang"
        script.parent.mkdir(exist_ok=True)
        aside = script.with_name(f".clang.{os.getpid()}")
        aside.write_text(f'#!/bin/sh\nexec "{where}" clang "$@"\n')
        aside.chmod(0o700)
        aside.replace(script)
        where = str(script)
    os.environ["CC"] = where


def read_compiler_version(compiler: str) -> str:
    """The first line that a compiler says of itself; "" if it cannot be started."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0]


def _find_cxx_compiler() -> str:
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "clang++", "g++"))), "")


def _find_cc_compiler() -> str:
    """What Triton takes: $CC, whatever it says, gcc or clang."""
    return os.environ.get("CC", "") or next(filter(None, map(shutil.which, ("gcc", "clang"))), "")


def _find_python_headers() -> str:
    path = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    return path if os.path.exists(path) else ""


def write_vulkan_lines(needs: Iterable[Need]) -> tuple[str, ...]:
    """The lines with which a run.py finds what of Vulkan was found here where no loader looks for it; none for other
    needs."""
    if VULKAN_LOADER not in needs:
        return ()
    loader = secure_backend_needs(needs).get(VULKAN_LOADER.what, "")
    lines = [f"ctypes.CDLL({loader!r})"] if os.path.isabs(loader) else []
    given = {k: os.environ[k] for k in _VULKAN_VARIABLES if k in os.environ}
    lines += [f"os.environ.update({given!r})"] if given else []
    return ("import ctypes, os", *lines) if lines else ()


# --- the table --------------------------------------------------------------------------------------------------

C_COMPILER = Need(
    "C compiler (clang)", _find_clang, {"apt-get": "clang", "dnf": "clang", "pacman": "clang"}, _name_compiler_as_cc
)
CXX_COMPILER = Need("C++ compiler (g++)", _find_cxx_compiler, {"apt-get": "g++", "dnf": "gcc-c++", "pacman": "gcc"})
#: What Triton builds the part with that launches its kernels.
ANY_C_COMPILER = Need("C compiler (gcc)", _find_cc_compiler, {"apt-get": "gcc", "dnf": "gcc", "pacman": "gcc"})
PYTHON_HEADERS = Need(
    "Python header (Python.h)", _find_python_headers, {"apt-get": "python3-dev", "dnf": "python3-devel"}
)
GNU_OPENMP = Need(
    "OpenMP library (libgomp.so.1)",
    make_library_finder(
        "libgomp.so.1", lambda: _find_library_files([os.path.join(os.environ.get(LENT, "/nowhere"), "libgomp.so.1")])
    ),
    {"apt-get": "libgomp1", "dnf": "libgomp", "pacman": "gcc-libs"},
)
VULKAN_LOADER = Need(
    "Vulkan loader (libvulkan.so.1)",
    make_library_finder("libvulkan.so.1", lambda: _find_library_files(f"{x}/libvulkan.so.1" for x in _BROWSERS)),
    {"apt-get": "libvulkan1", "dnf": "vulkan-loader", "pacman": "vulkan-icd-loader"},
)
VULKAN_DRIVER = Need(
    "Vulkan driver",
    _find_vulkan_driver,
    {"apt-get": "mesa-vulkan-drivers", "dnf": "mesa-vulkan-drivers", "pacman": "vulkan-swrast"},
    _use_vulkan,
)
OPENCL_DRIVER = Need(
    "OpenCL driver", _find_opencl_driver, {"apt-get": "pocl-opencl-icd", "dnf": "pocl", "pacman": "pocl"}, _use_opencl
)
OPENCL_LOADER = Need(
    "OpenCL loader (libOpenCL.so.1)",
    make_library_finder(
        "libOpenCL.so.1",
        lambda: _find_library_files([os.environ.get("OPENCL_PATH", ""), _find_library_of_wheel("libOpenCL.so.1")]),
    ),
    {"apt-get": "ocl-icd-libopencl1", "dnf": "ocl-icd", "pacman": "ocl-icd"},
    lambda where: os.environ.update(OPENCL_PATH=where),
)
VULKAN = (VULKAN_LOADER, VULKAN_DRIVER)
#: Dawn refuses drivers that are too old, as Debian 12's are; SwiftShader is offered as well.
VULKAN_FOR_WEBGPU = (
    VULKAN_LOADER,
    replace(VULKAN_DRIVER, use=_add_software_vulkan, packages={**VULKAN_DRIVER.packages, "debian": "chromium"}),
)
#: The driver first: the loader of a wheel is linked against what its driver brings.
OPENCL = (OPENCL_DRIVER, OPENCL_LOADER)
