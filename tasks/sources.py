"""The one digest of sources: part of the key of everything that is kept, so that nothing outlives an edit of what made it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path

#: What no prepared case, list or exported form depends on: what runs them, and the zoo. What prepares imports nothing
#: of these but the constants of rows.
RUNNING = (
    "tasks.backends",
    "tasks.child",
    "tasks.diagnose",
    "tasks.fork_server",
    "tasks.hunt",
    "tasks.interpreter",
    "tasks.judging",
    "tasks.model.row",
    "tasks.model.trace",
    "tasks.relay",
    "tasks.stranger",
    "tasks.runner",
    "tasks.trace",
    "tasks.wire",
    "tasks.zoo",
)
#: What makes artefacts: backends and the forms that they are given.
MAKING = (
    "tasks.arrays",
    "tasks.backends",
    "tasks.counterparts",
    "tasks.gradients",
    "tasks.graphs",
    "tasks.model",
    "tasks.operators",
    "tasks.training",
)


@functools.cache
def digest_sources(*modules: str, without: tuple[str, ...] = ("tasks.zoo",)) -> str:
    """Digest of the sources (.py, .json) of modules or packages with all that is in them; nothing is imported.

    without: dotted names of modules or packages inside that do not count. A module that is not found counts as empty.
    """
    total = hashlib.sha256()
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None
        if found is None:
            continue
        roots = [Path(folder) for folder in found.submodule_search_locations or ()]
        files = {str(path.relative_to(root)): path for root in roots for path in root.rglob("*")}
        if not roots and found.origin:
            files = {"": Path(found.origin)}
        left_out = tuple(name.removeprefix(f"{module}.").replace(".", "/") for name in without)
        for inside, path in sorted(files.items()):
            if path.suffix in (".py", ".json") and not inside.startswith(
                tuple(f"{x}{end}" for x in left_out for end in "/.")
            ):
                total.update(f"{module}/{inside}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def digest_case_sources(catalog_module: str) -> str:
    """Digest of what decides a catalog's list and the content of its prepared cases: the farm's own code that prepares,
    and the package of the catalog, if it is somebody else's."""
    package = catalog_module.partition(".")[0]
    own = digest_sources("tasks", without=RUNNING)
    return own if package == "tasks" else own + digest_sources(package)


def digest_artefact_sources() -> str:
    """Digest of what makes artefacts."""
    return digest_sources(*MAKING)
