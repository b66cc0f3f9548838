"""The lists of catalogs: made once in a child process, kept by what decides them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from farm.fleet import envs, visible_devices
from farm.fleet.ask_backends import explain_no_device
from farm.fleet.channel import Interpreter
from farm.fleet.child_process import ChildDeath, ChildProcess, Limits, find_default_python
from farm.fleet.inventory import UNBUILT
from farm.plan import config as configs
from farm.plan import kernels
from farm.plan.config import Config, ConfigError
from farm.plan.matrix import count_configured_samples
from farm.work.local import ALONE, DirectChild
from tasks import catalogs, sources, wire
from tasks.backends import BackendSpec
from tasks.catalogs.base import Entry
from tasks.catalogs.user_definitions import USER, get_announced_definitions
from tasks.model import Status
from tasks.plugins import PluginError


class CatalogHome(NamedTuple):
    """A backend in whose environment the user's modules may be imported, and why they are not: "" if they are."""

    spec: BackendSpec
    why: str = ""


def find_catalog_homes(config: Config, cache: Path, build: bool, inline: bool) -> list[CatalogHome]:
    """Where the user's modules may be imported if the farm's own environment lacks what they import: with the backends
    that run the user's kernels in an environment of their own. build: whether one that is not there may be built."""
    given = [c for c in config.catalogs if c.name == USER]
    found = []
    for spec in [b.spec() for b in config.backends if any(count_configured_samples(c, b.name) for c in given)]:
        environment = envs.find_environment(spec)
        if environment is not None and set(spec.create().forms) & set(catalogs.get_catalog(USER).forms):
            missing = "" if environment.there(cache) else explain_no_device(spec, None) or UNBUILT * (not build)
            found.append(CatalogHome(spec, ALONE if inline else missing))
    return found


def _find_list_path(name: str, cache: Path, home: BackendSpec | None = None) -> Path:
    """Where a catalog's list is kept. Raises ConfigError if the catalog's package is not installed."""
    try:
        catalog = catalogs.get_catalog(name)
        version = catalog.list_version()
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"catalog {name}: the package {error.name} is not installed") from None
    except PluginError as error:
        raise ConfigError(str(error)) from None
    code = sources.digest_case_sources(type(catalog).__module__)
    environment = envs.find_environment(home) if home else None
    at = f" {environment.key}" if environment else ""
    tag = hashlib.sha256(f"{version} {code}{at}".encode()).hexdigest()[:16]
    return cache / "lists" / f"{name}-{tag}.json"


def find_catalog_list_version(name: str) -> str:
    """What a catalog's list is made of: it changes with the files of the user's."""
    return catalogs.get_catalog(name).list_version()


def list_entries_here(name: str, cache: Path, inline: bool = False, config: str = "") -> list[Entry]:
    """As `list_catalog_entries`, in the farm's own environment alone."""
    return list_catalog_entries(name, cache, inline, config)[0]


def list_catalog_entries(
    name: str,
    cache: Path,
    inline: bool = False,
    config: str = "",
    homes: Sequence[CatalogHome] = (),
    given_up: threading.Event | None = None,
) -> tuple[list[Entry], str]:
    """A catalog's entries, from the cache or from a child process (unless ``inline``: from this process), and the name
    of the one of ``find_catalog_homes`` in whose environment it was listed: the first that has what the farm's own lacks; "" for
    that one.

    ``config``: path of the config, to give the place of a mistake in it. Raises ConfigError; GivenUp soon after
    ``given_up`` is set.
    """
    usable = [None, *(home.spec for home in homes if not home.why)]
    places = [(home, _find_list_path(name, cache, home)) for home in usable]
    for home, path in places:
        try:
            found = json.loads(path.read_text())
            return [Entry(op, variant, *map(tuple, rest)) for op, variant, *rest in found], home.name if home else ""
        except (OSError, ValueError):
            pass
    answer, whys = None, [f"{home.spec.name}: {home.why}" for home in homes if home.why]
    for home, path in places:
        try:
            python = "" if inline else envs.build_interpreter_of_backend(home, cache, given_up)
            said = _ask_for_catalog_list(name, 300, inline, python)
        except envs.EnvError as error:
            whys.append(f"{home.name if home else ''}: {error}")
            continue
        if isinstance(said, wire.Listed):
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(f".{os.getpid()}")
            aside.write_text(json.dumps([list(vars(entry).values()) for entry in said.entries]))
            aside.replace(path)
            return list(said.entries), home.name if home else ""
        answer = answer or said
        if not (isinstance(answer, wire.Misconfigured) and answer.lacks):
            break
        if home is not None:
            whys.append(
                f"in the environment of {home.name}: {said.text if isinstance(said, ChildDeath) else said.error}"
            )
    if isinstance(answer, ChildDeath):
        raise ConfigError(
            f"{_find_crashing_module(name, config, answer)}catalog {name} cannot be listed: {answer.text}"
        )
    assert answer is not None
    where = _locate(config, answer.key) if answer.key else f"catalog {name}: "
    told = f"{where}{answer.error}"
    raise ConfigError("; ".join([told, *(whys or [_explain_missing_import(answer.lacks)] if answer.lacks else [])]))


def _explain_missing_import(package: str) -> str:
    """What to do where no environment has what a user's module imports."""
    return (
        f"install {package} beside the farm, or name it in the packages of a backend that runs the kernels, as in "
        f"{{name: torch-cpu-own, like: torch-cpu, packages: [torch, {package}]}}"
    )


def _ask_for_catalog_list(name: str, deadline_s: float, inline: bool = False, python: str | Interpreter = "") -> Any:
    command = wire.List(name, get_announced_definitions())
    if inline:
        return DirectChild().ask(command)
    env, imports = visible_devices.build_child_variables(None), catalogs.get_catalog(name).imports
    child, answer = ChildProcess.start_and_ask(
        python or find_default_python(), Limits(), env, command, deadline_s, imports
    )
    child.close()
    return answer


def _find_crashing_module(name: str, config: str, death: ChildDeath) -> str:
    """Place and name of the user's module that ends the process that imports it; "" if it cannot be told."""
    if name != "user" or death.status != Status.CRASH:
        return ""
    found = kernels.find_deadly_kernel(lambda: isinstance(_ask_for_catalog_list(name, 60), ChildDeath))
    if found is None:
        return ""
    key, module = found
    return f"{_locate(config, key)}{module}: "


def _locate(config: str, key: tuple[Any, ...]) -> str:
    """How an error at a key begins. config: its file, "" where there is none."""
    return configs.locate(config, key) if config else f"{'.'.join(map(str, key))}: "
