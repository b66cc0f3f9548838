"""The lists of catalogs: made once in a child process, kept by what decides them."""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from farm.fleet import visible
from farm.fleet.child_process import ChildProcess, Death, Limits, default_python
from farm.plan import config as configs
from farm.plan import kernels
from farm.plan.config import ConfigError
from farm.work.local import DirectChild
from tasks import catalogs, sources, wire
from tasks.catalogs.base import Entry
from tasks.catalogs.told import announced
from tasks.model import Status
from tasks.plugins import PluginError


def _path(name: str, cache: Path) -> Path:
    """Where a catalog's list is kept. Raises ConfigError if the catalog's package is not installed."""
    try:
        catalog = catalogs.get(name)
        version = catalog.list_version()
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"catalog {name}: the package {error.name} is not installed") from None
    except PluginError as error:
        raise ConfigError(str(error)) from None
    code = sources.of_cases(type(catalog).__module__)
    tag = hashlib.sha256(f"{version} {code}".encode()).hexdigest()[:16]
    return cache / "lists" / f"{name}-{tag}.json"


def entries(name: str, cache: Path, inline: bool = False, config: str = "") -> list[Entry]:
    """A catalog's entries, from the cache or from a child process (unless ``inline``: from this process).

    ``config``: path of the config, to give the place of a mistake in it. Raises ConfigError.
    """
    path = _path(name, cache)
    try:
        listed = json.loads(path.read_text())
    except (OSError, ValueError):
        listed = _listed(name, inline, config)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(listed))
        aside.replace(path)
    return [Entry(op, variant, *map(tuple, rest)) for op, variant, *rest in listed]


def _listed(name: str, inline: bool, config: str) -> list[list[Any]]:
    answer = _ask(name, 300, inline)
    if isinstance(answer, Death):
        raise ConfigError(f"{_culprit(name, config, answer)}catalog {name} cannot be listed: {answer.text}")
    if isinstance(answer, wire.Misconfigured):
        where = f"{configs.place(config, answer.key)}: " if config and answer.key else ""
        raise ConfigError(f"{where}{'.'.join(map(str, answer.key)) or f'catalog {name}'}: {answer.error}")
    return [list(vars(entry).values()) for entry in answer.entries]


def _ask(name: str, deadline_s: float, inline: bool = False) -> Any:
    command = wire.List(name, announced())
    if inline:
        return DirectChild().ask(command)
    env, imports = visible.for_child(None), catalogs.get(name).imports
    child, answer = ChildProcess.asked(default_python(), Limits(), env, command, deadline_s, imports)
    child.close()
    return answer


def _culprit(name: str, config: str, death: Death) -> str:
    """Place and name of the user's module that ends the process that imports it; "" if it cannot be told."""
    if name != "user" or death.status != Status.CRASH:
        return ""
    found = kernels.culprit(lambda: isinstance(_ask(name, 60), Death))
    if found is None:
        return ""
    key, module = found
    where = f"{configs.place(config, key)}: " if config else ""
    return f"{where}{'.'.join(map(str, key))}: {module}: "
