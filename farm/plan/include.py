"""Configs that include others: one run of all their cells, each backend sampled as the files that name it say."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Sequence
from typing import Any

from farm.plan.config_schema import BackendConfig, CatalogConfig, Config, Skip
from farm.plan.kernels import Refuse

#: Keys of which a run has one value: files that give it must agree.
ONCE = ("seed", "checks", "policy", "deadline_s", "localise_s", "race_s", "node_wait_s", "isolation")


def join_included_configs(own: Config, parts: Sequence[tuple[str, Config]], refuse: Refuse) -> Config:
    """The config with those that it includes (name and config, as loaded) in it.

    A file's catalogs are given to the backends that the file names itself; a file that names none gives them to all
    that it includes. A backend named in two files must be the same in both, and is given the cells of both. What a file
    does not say of seed, checks, policy and times is what the files say that it includes; its dtypes are its own
    catalogs'.
    """
    given = {name: getattr(own, name) for name in own.model_fields_set if name != "include"}
    for i, (name, part) in enumerate(parts):
        for key in ONCE:
            if key not in part.model_fields_set:
                continue
            if (value := getattr(part, key)) != given.setdefault(key, value):
                at = (key,) if key in own.model_fields_set else ("include", i)
                refuse(at, f"{key} is {given[key]!r} here and {value!r} in {name}; a run has one")
    dtypes = next((c.dtypes for c in (own, *(p for _, p in parts)) if "dtypes" in c.model_fields_set), own.dtypes)
    included = _join_config_backends([], parts, refuse)
    backends = _join_config_backends(own.backends, parts, refuse)
    if own.backends and not own.catalogs:
        refuse(("backends",), "they need catalogs in this file: those of an included file are for that file's backends")
    catalogs: list[CatalogConfig] = []
    skip: list[Skip] = []
    for i, catalog in enumerate(own.catalogs):
        _refuse_globs_of_included(catalog, own.backends, included, ("catalogs", i, "backends"), refuse)
    for config, its in ((own, own.backends or backends), *((part, part.backends) for _, part in parts)):
        for catalog in config.catalogs:
            pinned = catalog.model_copy(
                update={
                    "backends": [glob.escape(b.name) for b in its if _takes_backend(catalog, b)],
                    "dtypes": catalog.dtypes or (None if config is own or config.dtypes == dtypes else config.dtypes),
                }
            )
            catalogs += [pinned] * (pinned not in catalogs)
        skip += [s for s in config.skip if s not in skip]
    known = dict.fromkeys(k for c in (own, *(p for _, p in parts)) for k in c.known_failures)
    return Config.model_validate(
        given
        | {"dtypes": dtypes, "catalogs": catalogs, "backends": backends, "skip": skip, "known_failures": list(known)}
    )


def _join_config_backends(
    own: Sequence[BackendConfig], parts: Sequence[tuple[str, Config]], refuse: Refuse
) -> list[BackendConfig]:
    """The backends of all files, each once. Two files that define one backend differently are refused."""
    found = {b.name: (b, ("backends", i), "here") for i, b in enumerate(own)}
    for i, (name, part) in enumerate(parts):
        for backend in part.backends:
            first, at, where = found.setdefault(backend.name, (backend, ("include", i), f"in {name}"))
            here, there = first.model_dump(), backend.model_dump()
            if differ := [key for key in here if here[key] != there[key]]:
                said = ", ".join(f"{key} is {here[key]!r} {where} and {there[key]!r} in {name}" for key in differ)
                refuse(at if where == "here" else ("include", i), f"{backend.name!r} is given twice: {said}")
    return [backend for backend, _, _ in found.values()]


def _refuse_globs_of_included(
    catalog: CatalogConfig,
    own: Sequence[BackendConfig],
    included: Sequence[BackendConfig],
    at: tuple[Any, ...],
    refuse: Refuse,
) -> None:
    """Refuse globs that match included backends and none of the file's own: they would give the catalog to nobody."""
    if (
        own
        and not any(_takes_backend(catalog, b) for b in own)
        and (others := [b.name for b in included if _takes_backend(catalog, b)])
    ):
        refuse(
            at, f"{others[0]} is an included file's; name it in this file's backends to give it a catalog of this file"
        )


def _takes_backend(catalog: CatalogConfig, backend: BackendConfig) -> bool:
    return any(fnmatch.fnmatchcase(backend.name, pattern) for pattern in catalog.backends)
