"""What this process was told of catalogs whose ops are the user's: kernels, models, and folders of harvested nodes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from tasks.catalogs.user.submission_finder import hide_submissions_from_imports

#: The catalog of kernels of one's own.
USER = "user"
#: As JSON: {"deadline_s": seconds a reference may take, "sources": [{"at": place among the config's catalogs, "root":
#: folder, "modules": [names], "kernels": [fields of UserOp]}], "nodes": [{"at": place, "path": folder}], "models":
#: [{"at": place, "root": folder, "name": …, "model": …, "inputs": [paths]}], "trainings": [{"at": place, "root":
#: folder, "name": …, "source": …}], "home": see `find_home_backend`, "kernel": see `put_kernel_in_definitions`, "isolation": see `do_definitions_isolate`,
#: "hidden": [files and folders that no kernel's process may read, nor a baseline's], "declarations": [files of tasks that
#: no kernel's process may read], "submissions": [files, and folders that are refused: no module is found in them, and no
#: other submission may read them]}.
_told: list[str] = [""]


def announce_definitions(definitions: str) -> None:
    """Tell this process the definitions ("" for none). Not by a variable, which a kernel may clear."""
    _told[:] = [definitions]
    # Before torch is imported, which may be started beside them.
    hide_submissions_from_imports(parse_definitions(definitions).get("submissions", ()))


def get_announced_definitions() -> str:
    """What this process was told."""
    return _told[0]


def read_definitions() -> dict[str, Any]:
    """What this process was told, read."""
    return parse_definitions(get_announced_definitions())


def are_kernels_of_submission() -> bool:
    """Whether the kernels of this process are those of a submission: what it cannot import is its own fault."""
    return bool(read_definitions().get("kernel"))


def put_kernel_in_definitions(text: str, kernel: str) -> str:
    """Definitions for a process in which the kernels' functions are those of a file, a submission's; as they are where
    ``kernel`` is ""."""
    return json.dumps(parse_definitions(text) | {"kernel": kernel}) if kernel else text


def list_other_submissions(told: Mapping[str, Any]) -> list[str]:
    """Of definitions that were read, the submissions but the one whose kernels are run."""
    return [x for x in told.get("submissions", ()) if x != told.get("kernel")]


def drop_definitions_isolation(text: str) -> str:
    """Definitions for a process that runs the user's kernels itself; "" where there are none."""
    return json.dumps(parse_definitions(text) | {"isolation": "none"}) if text else text


def do_definitions_isolate(text: str) -> bool:
    """Whether definitions have kernels of the user's, and these run in a process of their own, which does not judge."""
    told = parse_definitions(text)
    return bool(told.get("sources")) and told.get("isolation", "process") != "none"


def find_home_backend(catalog: str, text: str | None = None) -> dict[str, Any] | None:
    """The backend (fields of `BackendSpec`) in whose environment a catalog's modules are imported, its samples and
    references prepared; None for the farm's own environment. text: definitions, instead of those that this process was
    told."""
    found: dict[str, Any] | None = parse_definitions(get_announced_definitions() if text is None else text).get("home")
    return found if catalog == USER else None


@functools.lru_cache(maxsize=4)
def parse_definitions(text: str) -> dict[str, Any]:
    """Definitions that were announced, read."""
    made: dict[str, Any] = json.loads(text) if text else {}
    return made
