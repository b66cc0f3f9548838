"""A folder of submissions as a config: the declaration of a task, and a backend for every file beside it.

A submission is the task's op with another function. It is a backend of its own (`tasks.backends.BackendSpec.kernel`),
so it has a process of its own, and what a task's cases are made of is made once for all of them.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pydantic

from farm.plan import config as configs
from farm.plan import kernels
from farm.plan.config_schema import CatalogConfig, Config, ConfigError
from farm.plan.published import Read, find_published_tasks
from farm.plan.task_files import TASK, TaskFiles, find_task_files, list_submission_files
from tasks import checks, user_sources
from tasks.catalogs.user import declaration_keys
from tasks.catalogs.user.ops import UserOp
from tasks.judge import policy_files
from tasks.model import DISTRIBUTIONS
from tasks.nearest import suggest_nearest_names

#: What the files of a leaderboard are called.
BOARD = "leaderboard"
#: Bytes of a submission at most.
MOST_BYTES = 1 << 20
#: Seconds that a case of a submission may take: a C++ extension and what torch.compile makes are compiled at the first
#: call. Of one that hangs the other cases are not run.
DEADLINE_S = 120.0
#: What is asked of a submission: on values from everywhere, and on the task's own.
VALUES = ("own", "adversarial", "fuzz")
CHECKS = ("audit", "speedup")
#: Samples of each dtype that are timed, the smallest and the largest among them: each takes hundreds of calls.
TIMED = 3


@dataclass(frozen=True)
class Refused:
    """A submission, or a task with all of its own, that is not run. why: one line; paths: the submission's file or
    folder, which is nobody's module all the same."""

    name: str
    why: str
    paths: tuple[str, ...] = ()


def list_refused_paths(record: Mapping[str, Any]) -> list[str]:
    """The files and folders of submissions that a recorded run has refused."""
    return [path for one in record.get("refused") or () for path in one.get("paths", ())]


@dataclass(frozen=True)
class Board:
    """A folder of submissions as a run. refused: those that are not run."""

    config: Config
    refused: tuple[Refused, ...]


@dataclass(frozen=True)
class DeclaredTask:
    """A task of a folder. place: what an error names; prefix: of its submissions' names; made: its config, without
    backends; files: its submissions by name, in which a name may stand twice; of_folder: whose the files beside it
    are."""

    place: Path
    prefix: str
    made: dict[str, Any]
    files: list[tuple[str, Path]]
    of_folder: TaskFiles


def read_submissions_folder(folder: Path, backends: Sequence[str] = (), here: str = "torch-cpu") -> Board:
    """The run of a folder with a task's declaration and submissions, or of one whose subfolders are such. backends:
    what every submission runs on, instead of what the task says; here: where nobody says anything. Raises
    ConfigError."""
    whole: dict[str, Any] = {}
    refused: list[Refused] = []
    tasks: list[tuple[str, DeclaredTask, dict[str, Any], Config]] = []
    for name, read in _find_folder_tasks(folder):
        try:
            task = read()
            place = _describe_place([*backends, *task.made.pop("backends", []), here][0])
            tasks.append((name, task, place, _check_task_config(task, place)))
        except ConfigError as error:
            refused.append(Refused(name, str(error)))
    by_name = {name: config for name, _, _, config in tasks}
    for name, task, place, _ in tasks:
        try:
            _check_settings(task, name, by_name)
        except ConfigError as error:
            refused.append(Refused(name, str(error)))
            continue
        submitted = list(_check_submission_files(task))
        refused += [x for x in submitted if isinstance(x, Refused)]
        there = [place | x for x in submitted if isinstance(x, dict)]
        names = [glob.escape(x["name"]) for x in there]
        catalogs = [c | {"backends": names} for c in task.made["catalogs"] if names]
        joined = {"catalogs": catalogs, "backends": there}
        whole = {**(whole or task.made), **{key: [*whole.get(key, ()), *joined[key]] for key in joined}}
    if not whole.get("backends"):
        none = f"no submission: put files of Python beside the task, or into {user_sources.SUBMISSIONS}/"
        if not whole:
            none = f"no task: there is no {TASK}, which declares the reference and the inputs (docs/leaderboards.md)"
        raise ConfigError("\n".join(dict.fromkeys(x.why for x in refused)) or f"{folder}: {none}")
    return Board(make_task_config(whole | {"name": folder.resolve().name}, folder), tuple(refused))


def _describe_place(backend: Any) -> dict[str, Any]:
    """What the backend of each submission has of the one that all run on, which a config may name or describe."""
    told = dict(backend) if isinstance(backend, Mapping) else {"like": backend}
    return {"like": told.pop("name", ""), **told}


def _check_task_config(task: DeclaredTask, place: Mapping[str, Any]) -> Config:
    """A task's config. place: of the backend that its submissions run on. Raises ConfigError where that is none."""
    data = {"name": "task", **task.made, "backends": [{**place, "name": "submission"}]}
    config = make_task_config(data, task.place)
    configs.check_config_backend(config.backends[0], str(task.place))
    return config


def _check_settings(task: DeclaredTask, name: str, by_name: Mapping[str, Config]) -> None:
    """Raises ConfigError where a task has another setting of the run than the first one of its folder: they are one
    run, which has each setting once. by_name: the configs of all."""
    first = next(iter(by_name))
    for key in sorted(Config.model_fields.keys() - {"name", "catalogs", "backends"}):
        all_of_key = [getattr(x, key) for x in by_name.values()]
        own, its = getattr(by_name[name], key), all_of_key[0]
        if own != its:
            where = configs.find_config_place(task.place, (key,)) if task.place.is_file() else str(task.place)
            raise ConfigError(
                f"{where}: {key}: it is {own!r} here ({all_of_key.count(own)} of {len(all_of_key)} tasks) and {its!r} in the "
                f"task {first} ({all_of_key.count(its)}), and a folder of tasks is one run: give all the same, or put those "
                "that differ into a folder of their own"
            )


def make_task_config(data: Mapping[str, Any], place: Path) -> Config:
    """The config of a task, or of all in a folder. Raises ConfigError, at the task's own key where place is its
    file."""
    try:
        return Config.model_validate(data)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = tuple(first["loc"])[2 * (first["loc"][:1] == ("catalogs",)) :]  # as the task has it
        where = configs.find_config_place(place, key) if place.is_file() else ascii(str(place))[1:-1]
        said = ": ".join(filter(None, (".".join(map(str, key)), configs.reword_pydantic_error(first))))
        raise ConfigError(f"{where}: {said}") from None


def _find_folder_tasks(folder: Path) -> Iterator[tuple[str, Callable[[], DeclaredTask]]]:
    """The tasks of a folder by name, and what reads them: the one that it declares, those of its subfolders, else those
    of another benchmark's layout."""
    if (folder / TASK).is_file():
        yield folder.resolve().name, partial(declare_task, folder / TASK)
    elif declared := sorted(folder.glob(f"*/{TASK}")):
        for file in declared:
            yield file.parent.name, partial(declare_task, file, f"{file.parent.name}.")
    else:
        for prefix, read in find_published_tasks(folder):
            yield prefix.rstrip(".") or folder.resolve().name, partial(_take_over_published, folder, prefix, read)


def _take_over_published(folder: Path, prefix: str, read: Read) -> DeclaredTask:
    """A task of another benchmark's layout. Raises ConfigError."""
    found = read()
    files = sorted(found.files.items()) if found.files is not None else list_submission_files(folder, found.problem.own)
    made = plan_task_ops(found.given, found.drawn, found.root, {}, _make_refusal_at(folder))
    return DeclaredTask(folder, prefix, made, files, found.problem)


def _make_refusal_at(place: Path) -> kernels.Refuse:
    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{place}: {'.'.join(map(str, key))}: {text}")

    return refuse


def declare_task(file: Path, prefix: str = "", asked: Mapping[str, Any] | None = None) -> DeclaredTask:
    """The task of a declaration, with the submissions of its folder. asked: settings (`plan_task`) instead of its own.
    Raises ConfigError at the key that is wrong."""
    made, folder = _read_task_config(file, asked or {}), file.parent
    reference = made["catalogs"][0]["kernels"][0]["reference"]
    module = reference if reference.endswith(".py") else reference.rpartition(":")[0]
    place = user_sources.locate_module_source(module, str(folder)) if module else None
    of_folder = find_task_files(folder, [place] if place else [], str(folder))
    return DeclaredTask(file, prefix, made, list_submission_files(folder, of_folder.own), of_folder)


def _read_task_config(file: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a task, without submissions."""
    _, data = configs.read_config_yaml(file)
    op_keys = {
        name for one in declaration_keys.fields(UserOp) for name in (one.name, declaration_keys.name_declared_key(one))
    }
    own = {"samples", "distributions"}
    of_run = {*Config.model_fields} - op_keys - {"include", "catalogs", "known_failures", "gate", "skip"}

    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{configs.find_config_place(file, key)}: {'.'.join(map(str, key)) or 'the task'}: {text}")

    for name in data:
        if name not in op_keys | own | of_run:
            refuse((name,), f"unknown key{suggest_nearest_names(str(name), sorted(op_keys | own | of_run))}")
    if not isinstance(data.get("backends", []), list):  # which are taken out before the others are looked at
        refuse(("backends",), configs.NO_LIST)
    given = {"name": file.parent.resolve().name, "kernel": ""}
    given |= {name: value for name, value in data.items() if name in op_keys}
    for key, text in declaration_keys.read_declared_keys(UserOp, given):
        refuse(key, text)
    op: UserOp = declaration_keys.make_declaration(UserOp, given)
    own_settings = {name: value for name, value in data.items() if name not in op_keys}
    return plan_task(op, file.parent, own_settings | dict(asked), refuse)


def plan_task(op: UserOp, root: Path, settings: Mapping[str, Any], refuse: kernels.Refuse) -> dict[str, Any]:
    """The config, without backends, of what is asked of the submissions of a task. root: where its files are looked up;
    settings: keys of a config, and the samples and distributions of a catalog, instead of the usual ones; refuse: told
    of a mistake in the op."""
    return plan_task_ops((), (op,), root, settings, refuse)


def plan_task_ops(
    given: Sequence[UserOp], drawn: Sequence[UserOp], root: Path, settings: Mapping[str, Any], refuse: kernels.Refuse
) -> dict[str, Any]:
    """As `plan_task`, of a task that is several ops. given: those whose inputs are all given, drawn: the others."""
    ops = [*given, *drawn]
    catalog = kernels.resolve_catalog_paths(CatalogConfig(name="user", root=str(root), kernels=ops), Path.cwd())
    kernels.check_config_kernels(catalog, (), lambda key, text: refuse(key[2:], text), task=True)
    for name, known in (
        ("checks", checks.list_check_names()),
        ("distributions", DISTRIBUTIONS),
        ("policy", policy_files.list_policy_names()),
    ):
        value = settings.get(name, ())
        for one in [value] if isinstance(value, str) else value if isinstance(value, list) else ():
            if one not in known:
                refuse(
                    (name,), f"unknown {name.removesuffix('s')} {one!r}{suggest_nearest_names(str(one), list(known))}"
                )
    named = settings.get("checks")
    right = ["forward", *["backward"] * any(op.gradient for op in ops)] if named is None else named
    more = [name for name in CHECKS if name in checks.list_check_names()] if named is None else []
    count = {"samples": settings["samples"]} if "samples" in settings else {}
    parts: list[dict[str, Any]] = []
    if given:
        parts.append({"ops": [op.name for op in given], "checks": right, "samples": 1})
    if drawn:
        values = settings.get("distributions", list(VALUES))
        parts.append({"ops": [op.name for op in drawn], "checks": right, "distributions": values, **count})
    for name in more:  # these vary the inputs themselves
        timed, asked = checks.get_check_or_default(name).timed, settings.get("samples")
        few = {"samples": min(TIMED, asked) if type(asked) is int else TIMED} if timed else count
        parts.append({"ops": [(given or drawn)[0].name], "checks": [name], **few})
    own = catalog.model_dump()
    catalogs = [
        {"name": "user", "root": own["root"], "kernels": own["kernels"], "dtypes": ["*"], **part} for part in parts
    ]
    told = {name: value for name, value in settings.items() if name in Config.model_fields and name != "checks"}
    return {"deadline_s": DEADLINE_S, "localise_s": 0.0, **told, "catalogs": catalogs}


def list_submitted_paths(task: DeclaredTask) -> list[str]:
    """The files and folders of a task's submissions, those that are refused among them."""
    found = _check_submission_files(task)
    return [path for x in found for path in (x.paths if isinstance(x, Refused) else (x["kernel"],))]


def _check_submission_files(task: DeclaredTask) -> Iterator[dict[str, Any] | Refused]:
    """Of every submission of a task its backend, or why there is none."""
    times = Counter(name for name, _ in task.files)
    for name, path in task.files:
        own, size, place = task.prefix + name, path.stat().st_size if path.is_file() else -1, os.path.realpath(path)
        refuse = partial(Refused, own, paths=() if path.is_symlink() else (place,))  # nobody hides what is not his own
        if not path.name.isprintable():  # bytes of another encoding, line feeds: no row holds them
            yield Refused(ascii(own)[1:-1], f"{ascii(str(path))[1:-1]}: its name is no printable text: rename it")
        elif times[name] > 1:
            yield refuse(f"{path}: the name {name!r} is given twice: rename one")
        elif why := task.of_folder.refused.get(Path(place)):
            yield refuse(why)
        elif size < 0:
            yield refuse(f"{path}: no file: a link that leads nowhere, or a folder that has not one file of Python")
        elif size > MOST_BYTES:
            yield refuse(f"{path}: {size:,} bytes, more than {MOST_BYTES:,} are allowed")
        else:
            yield {"name": own, "kernel": str(path.resolve())}
