"""A folder of submissions as a config: the declaration of a task, and a backend for every file beside it.

A submission is the task's op with another function. It is a backend of its own (`tasks.backends.BackendSpec.kernel`), so it has a process
of its own, and what a task's cases are made of is made once for all of them.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from farm.fleet import detect
from farm.plan import config as configs
from farm.plan import kernels
from farm.plan.model import CatalogConfig, Config, ConfigError
from tasks import checks
from tasks.catalogs.user import keys, sources
from tasks.catalogs.user.ops import UserOp
from tasks.devices import TORCH_DEVICES
from tasks.nearest import nearest

#: What a task's declaration is called, and the folder that its submissions may be in instead of beside it.
TASK, SUBMISSIONS = "task.yaml", "submissions"
#: What the files of a leaderboard are called.
BOARD = "leaderboard"
#: Bytes of a submission at most.
MOST_BYTES = 1 << 20
#: Seconds that a case of a submission may take: dozens are judged, and one that sleeps is not waited for.
DEADLINE_S = 20.0
#: What is asked of a submission: on values from everywhere, and on the task's own.
DISTRIBUTIONS = ("own", "adversarial", "fuzz")
CHECKS = ("audit", "speedup")


@dataclass(frozen=True)
class Refused:
    """A submission that is not run. why: one line."""

    name: str
    why: str


@dataclass(frozen=True)
class Board:
    """A folder of submissions as a run. refused: those that are not run."""

    config: Config
    refused: tuple[Refused, ...]


def read_folder(folder: Path, backends: Sequence[str] = ()) -> Board:
    """The run of a folder with a task's declaration and submissions, or of one whose subfolders are such. backends: what every submission
    runs on, instead of eager torch on the device that is here. Raises ConfigError."""
    found = [folder] if (folder / TASK).is_file() else [x.parent for x in sorted(folder.glob(f"*/{TASK}"))]
    if not found:
        raise ConfigError(
            f"{folder}: no task: there is no {TASK}, which declares the reference and the inputs (docs/leaderboards.md)"
        )
    parts: list[dict[str, Any]] = []
    refused: list[Refused] = []
    for one in found:
        prefix = "" if one == folder else f"{one.name}."
        made = _read_task(one / TASK)
        submitted = list(_list_submissions(one, made["catalogs"][0]["kernels"][0], prefix))
        refused += [x for x in submitted if isinstance(x, Refused)]
        there = [x for x in submitted if isinstance(x, dict)]
        on = [*backends, *made.pop("backends", [])][:1] or [f"torch-{_find_device()}"]
        made["backends"] = [x | {"like": on[0]} for x in there]
        for catalog in made["catalogs"]:
            catalog["backends"] = [glob.escape(x["name"]) for x in there]
        parts.append(made)
    if not any(part["backends"] for part in parts) and not refused:
        raise ConfigError(f"{folder}: no submission: put files of Python beside {TASK}, or into {SUBMISSIONS}/")
    whole = parts[0] | {
        "name": folder.resolve().name,
        "catalogs": [c for part in parts for c in part["catalogs"] if c["backends"]],
        "backends": [b for part in parts for b in part["backends"]],
    }
    if not whole["backends"]:
        raise ConfigError("\n".join(f"{folder}: {x.name}: {x.why}" for x in refused))
    try:
        config = Config.model_validate(whole)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{found[0] / TASK}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for backend in config.backends:
        configs.check_backend(backend, str(found[0] / TASK))
    return Board(config, tuple(refused))


def _read_task(file: Path) -> dict[str, Any]:
    """The config of a task, without submissions. Raises ConfigError at the key that is wrong."""
    _, data = configs.read_yaml(file)
    op_keys = {name for one in keys.fields(UserOp) for name in (one.name, keys.name_of(one))}
    own = {"samples", "distributions"}
    of_run = {*Config.model_fields} - op_keys - {"include", "catalogs", "known_failures", "gate", "skip"}

    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{configs.place(file, key)}: {'.'.join(map(str, key)) or 'the task'}: {text}")

    for name in data:
        if name not in op_keys | own | of_run:
            refuse((name,), f"unknown key{nearest(str(name), sorted(op_keys | own | of_run))}")
    given = {"name": file.parent.resolve().name, "kernel": ""}
    given |= {name: value for name, value in data.items() if name in op_keys}
    for key, text in keys.read(UserOp, given):
        refuse(key, text)
    op: UserOp = keys.make(UserOp, given)
    catalog = kernels.resolve_paths(CatalogConfig(name="user", kernels=[op]), file.parent)
    kernels.check(catalog, (), lambda key, text: refuse(key[2:], text), task=True)
    known = checks.names()
    named = data.get("checks")
    first = ["forward", *["backward"] * bool(op.gradient)] if named is None else named
    more = [name for name in CHECKS if name in known] if named is None else []
    count = {"samples": data["samples"]} if "samples" in data else {}
    whole = catalog.model_dump() | {"dtypes": ["*"], "checks": first, **count}
    whole["distributions"] = data.get("distributions", list(DISTRIBUTIONS))
    catalogs = [whole]
    if more:  # these vary the inputs themselves
        catalogs.append({"name": "user", "ops": [op.name], "dtypes": ["*"], "checks": more, **count})
    settings = {"deadline_s": DEADLINE_S} | {name: data[name] for name in of_run & data.keys() - {"checks"}}
    return settings | {"catalogs": catalogs}


def _list_submissions(folder: Path, kernel: dict[str, Any], prefix: str) -> Iterator[dict[str, Any] | Refused]:
    """Of every submission of a task its backend, or why there is none. Files that the reference is made of are none, nor are those
    whose name begins with "_" or "."; a folder with one file is a submission by the folder's name."""
    reference = kernel["reference"]
    module = reference if reference.endswith(".py") else reference.rpartition(":")[0]
    place = sources.locate(module, str(folder)) if module else None
    own = set(sources.closure(place, str(folder))) if place else set()
    apart = folder / SUBMISSIONS
    where = apart if apart.is_dir() else folder
    files: list[tuple[str, Path]] = []
    for path in sorted(where.iterdir()):
        if path.name.startswith(("_", ".")):
            continue
        if path.suffix == ".py" and path.resolve() not in own:
            files.append((path.stem, path))
        elif path.is_dir() and where is apart and len(inner := sorted(path.glob("*.py"))) == 1:
            files.append((path.name, inner[0]))
    times = Counter(name for name, _ in files)
    for name, path in files:
        size = path.stat().st_size
        if times[name] > 1:
            yield Refused(prefix + name, f"{path}: the name {name!r} is given twice: rename one")
        elif size > MOST_BYTES:
            yield Refused(prefix + name, f"{path}: {size:,} bytes, more than {MOST_BYTES:,} are allowed")
        else:
            yield {"name": prefix + name, "kernel": str(path.resolve())}


def _find_device() -> str:
    """The device of eager torch that this machine has, "cpu" where it has none."""
    there = detect.list_devices()
    return next((name for name, (_, label) in TORCH_DEVICES.items() if label in there), "cpu")
