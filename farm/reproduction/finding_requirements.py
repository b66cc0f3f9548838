"""What a finding is run with, as pip requirements: the packages of its runtime, and what its program imports, as they are installed."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata

from farm.fleet.envs import OWN_PACKAGES
from farm.reproduction import pinned_versions
from farm.reproduction.find_case import StoredCase
from farm.reproduction.in_torch import OP_DB
from tasks.backends.torch import TorchEager
from tasks.catalogs import user_definitions
from tasks.catalogs.models.architectures import ARCHITECTURES
from tasks.catalogs.user import load_kernels
from tasks.devices import TorchDevice
from tasks.model import Group
from tasks.packages import TORCH_CATALOG, pin_package


def list_finding_requirements(case: StoredCase) -> list[str]:
    """Of a case, beside what every environment has: the runtime's packages as they are installed, onnx, and what a
    kernel of one's own, or a network, imports."""
    backend = case.spec.create()
    if case.environment and case.environment.existing:
        stored = str((case.stored or case.row)["runtime_version"] or "")
        own = [x for pin in pinned_versions.pin_stored_packages(stored, case.spec.runtime).values() for x in pin]
    elif case.environment:
        own = list(case.environment.packages)
    else:
        own = list(pin_module_requirements({case.spec.runtime, pinned_versions.MODULES.get(case.spec.runtime, "")}))
        known = backend.known if isinstance(backend, TorchEager) else TorchDevice()
        if known.distribution and pinned_versions.is_package_installed(
            known.distribution
        ):  # else it is none of a package's
            plugged = [x for x in known.packages if x not in TORCH_CATALOG]
            own += [x for x in pinned_versions.pin_installed_packages(plugged) if x not in own]
    own += [x for x in pin_module_requirements(_list_imported_packages(case.group)) if x not in own]
    if "onnx" in backend.forms and not any(x.startswith("onnx=") for x in own):
        record = case.environment.record(case.cache) if case.environment else None
        there = (record or {}).get("versions", {}).get("onnx")  # which the runtime itself may bound
        own.append(f"onnx=={there or metadata.version('onnx')}")
    return own


def describe_interpreter_of_case(case: StoredCase) -> str:
    """Which interpreter that is there a case ran in, as a sentence for a finding; "" of an environment that is built,
    or the farm's own."""
    return f" It ran in {case.environment.label}." if case.environment and case.environment.existing else ""


def _list_imported_packages(group: Group) -> Collection[str]:
    if user_definitions.find_home_backend(group.catalog):  # what it imports, the backend's environment has
        return ()
    if group.catalog == user_definitions.USER and (one := load_kernels.find_user_op(group.op_name)):
        return one.outside()
    network = ARCHITECTURES.get(group.op_name)
    return ("transformers",) if network and network.module else ()


def pin_module_requirements(modules: Iterable[str]) -> tuple[str, ...]:
    """Requirements that bring modules as they are installed here."""
    brings = _map_modules_to_packages()
    found = sorted({x for module in modules for x in brings.get(module, ())} - {*OWN_PACKAGES, "validation-farm"})
    return tuple(x for name in found for x in pin_package(name, metadata.version(name)))


def pin_import_requirements(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Requirements that bring what the files of a finding import, as it is installed here."""
    trees = [ast.parse(data) for name, data in files.items() if name.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for x in nodes if isinstance(x, ast.Import) for alias in x.names}
    names |= {x.module or "" for x in nodes if isinstance(x, ast.ImportFrom)}
    return pin_module_requirements({*(x.partition(".")[0] for x in names), *(TORCH_CATALOG if OP_DB in names else ())})


@functools.cache
def _map_modules_to_packages() -> Mapping[str, list[str]]:
    """Distributions by the modules that they bring: a look at every file of this environment."""
    return metadata.packages_distributions()
