"""What backends need of the machine: found in wheels, beside browsers, in the system; led to; or told how to be had."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.backends import BackendSpec, list_backends, needs
from tasks.backends.needs import INSTALLERS, Missing, Need, secure_backend_needs, write_install_line

NOWHERE = Need("tool", str, {"apt-get": "tool-deb", "dnf": "tool-rpm"})
HERE = Need("thing", lambda: "/here")


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """None are set, and those that a test sets are undone."""
    for name in (*needs._VULKAN_VARIABLES, *needs._OPENCL_VARIABLES, "CC", "CXX", "OPENCL_PATH", needs.LENT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def installers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path on which only the installers that a test puts there are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(needs, "_name_system_library", lambda: "plain")
    return folder


def program(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_all_that_is_missing_is_said_at_once_with_one_line_that_installs_it(
    installers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(installers / "apt-get")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    other = Need("driver", str, {"apt-get": "driver-deb", "plain": "driver-plain"})
    with pytest.raises(Missing) as end:
        secure_backend_needs([NOWHERE, HERE, other])
    assert str(end.value) == "no tool, no driver on this machine: sudo apt install tool-deb driver-plain"
    assert end.value.installs == (("sudo apt install", "tool-deb"), ("sudo apt install", "driver-plain"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert str(Missing([NOWHERE], "too old.")) == "too old: apt install tool-deb"


def test_without_an_installer_that_is_known_only_the_need_is_named(installers: Path) -> None:
    assert str(Missing([NOWHERE])) == "no tool on this machine" and Missing([NOWHERE]).installs == ()


def test_what_is_found_is_led_to_and_told() -> None:
    led: list[str] = []
    assert secure_backend_needs([Need("thing", lambda: "/here", use=led.append)]) == {"thing": "/here"} and led == [
        "/here"
    ]


def test_packages_are_installed_once_and_by_one_line_per_installer() -> None:
    pairs = [["apt install", "a"], ["apt install", "b"], ["apt install", "a"], ["dnf install", "c"]]
    assert write_install_line(pairs) == "apt install a b && dnf install c"


def test_every_need_of_a_built_in_backend_says_how_it_is_had() -> None:
    specs = [
        BackendSpec(f"{r}-{d}", r, d) for r, p in list_backends().items() if not p.package for d in p.load().devices
    ]
    wanted = {need.what: need for spec in specs for need in spec.create().needs}
    assert wanted.keys() >= {"Vulkan driver", "C compiler (clang)", "OpenCL driver", "C++ compiler (g++)"}
    assert all({"apt-get", "dnf"} <= need.packages.keys() for need in wanted.values())
    assert {x for need in wanted.values() for x in need.packages} <= {*INSTALLERS, "debian"}


def test_a_library_is_taken_from_elsewhere_where_the_loader_has_none(tmp_path: Path) -> None:
    """And whoever asks for its name afterwards gets it: how a runtime finds the loader beside a browser."""
    source = tmp_path / "x.c"
    source.write_text("int planted(void) { return 7; }\n")
    library = tmp_path / "libfarmplanted.so.1"
    subprocess.run(["g++", "-x", "c", "-shared", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    find = needs.make_library_finder(library.name, lambda: [str(broken), str(library)])
    assert find() == str(library)
    assert ctypes.CDLL(library.name).planted() == 7
    assert (
        needs.make_library_finder("libm.so.6")().endswith("libm.so.6")
        and needs.make_library_finder("libnosuch.so.3")() == ""
    )


def test_vulkan_is_found_beside_a_browser_and_offered_unless_drivers_were_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, installed = tmp_path / "chromium", tmp_path / "icd.d" / "lvp.json"
    browser.mkdir()
    monkeypatch.setattr(needs, "_BROWSERS", (str(browser),))
    monkeypatch.setattr(needs, "_VULKAN_DRIVERS", (str(installed),))
    with pytest.raises(Missing, match="no Vulkan driver"):
        secure_backend_needs(needs.VULKAN[1:])
    driver = browser / "vk_swiftshader_icd.json"
    driver.touch()
    monkeypatch.setenv("VK_DRIVER_FILES", "mine.json")
    assert (
        secure_backend_needs(needs.VULKAN[1:]) == {"Vulkan driver": "mine.json"}
        and "VK_ADD_DRIVER_FILES" not in os.environ
    )
    monkeypatch.delenv("VK_DRIVER_FILES")
    assert secure_backend_needs(needs.VULKAN[1:]) == {"Vulkan driver": str(driver)}
    assert os.environ.pop("VK_ADD_DRIVER_FILES") == str(driver)
    installed.parent.mkdir()
    installed.touch()  # which comes first, and is all that IREE is given; Dawn may find it too old
    assert (
        secure_backend_needs(needs.VULKAN[1:]) == {"Vulkan driver": str(installed)}
        and "VK_ADD_DRIVER_FILES" not in os.environ
    )
    secure_backend_needs(needs.VULKAN_FOR_WEBGPU[1:])
    assert os.environ["VK_ADD_DRIVER_FILES"] == str(driver)


def test_a_clang_comes_from_cc_then_the_wheel_then_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bins = tmp_path / "bin"
    newest = program(bins / "clang-19")
    program(bins / "clang")
    program(bins / "clang-14")
    monkeypatch.setenv("PATH", str(bins), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.delitem(sys.modules, "ziglang")
    assert needs.C_COMPILER.find() == str(newest)
    zig = program(tmp_path / "site" / "ziglang" / "zig", 'echo "$@"\n')
    (zig.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    assert secure_backend_needs([needs.C_COMPILER]) == {"C compiler (clang)": str(zig)}
    said = subprocess.run([os.environ["CC"], "-c", "a b"], capture_output=True, text=True, check=True)
    assert said.stdout == "clang -c a b\n"
    monkeypatch.setenv("CC", str(program(bins / "gcc", "echo gcc 12\n")))
    assert needs.C_COMPILER.find() == str(zig)
    monkeypatch.setenv("CC", str(program(bins / "mine", "echo my clang 21\n")))
    assert needs.C_COMPILER.find() == str(bins / "mine")


def test_kernels_are_kept_by_the_compiler_that_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad object must not outlive the compiler that was mended in its place."""
    from tasks.backends.tinygrad import _place_tinygrad_caches

    monkeypatch.setenv("FARM_ARTEFACTS", str(tmp_path))
    compiler = program(tmp_path / "clang", "exit 1\n")
    broken = _place_tinygrad_caches({"C compiler (clang)": str(compiler)})
    assert _place_tinygrad_caches({"C compiler (clang)": str(compiler)}) == broken
    program(compiler, "exec clang-19\n")
    assert _place_tinygrad_caches({"C compiler (clang)": str(compiler)})["CACHEDB"] != broken["CACHEDB"]
