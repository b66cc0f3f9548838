"""Policies against catalogs: a limit that names an op nobody has is most likely misspelt."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Set

from tasks import catalogs
from tasks.judge.policy_files import Policy, PolicyError
from tasks.nearest import suggest_nearest_names


def check_policy_ops(policy: Policy, path: str, labels: Mapping[str, Set[str]]) -> None:
    """Raise PolicyError for a glob of a limit's ops that matches none of ``labels`` (per catalog, the ops' labels).

    A glob that may mean an op of a catalog which is not among ``labels`` cannot be refuted and is let pass, if there is
    such a catalog at all. ``path``: the policy's file; the policies that come with the farm hold for every version of a
    catalog and are not checked.
    """
    if not path.endswith(".json"):
        return
    known = sorted({label for some in labels.values() for label in some})
    for number, limit in enumerate(policy.limits):
        for glob in limit.ops:
            where = f"{path}: limits[{number}].ops"
            catalog, colon, _ = glob.partition(":")
            literal = not any(c in catalog for c in "*?[")
            if literal and not colon:
                near = [label for label in known if label.partition(":")[2] == glob]
                raise PolicyError(
                    f"{where}: {glob!r} names no catalog; did you mean {' or '.join(near[:3]) or f'torch:{glob}'}?"
                )
            if literal and catalog not in catalogs.list_catalogs():
                raise PolicyError(
                    f"{where}: {glob!r}: unknown catalog {catalog!r}; known: {', '.join(sorted(catalogs.list_catalogs()))}"
                )
            unseen = [
                name for name in catalogs.list_catalogs() if fnmatch.fnmatchcase(name, catalog) and name not in labels
            ]
            if unseen or any(fnmatch.fnmatchcase(label, glob) for label in known):
                continue
            raise PolicyError(f"{where}: no op matches {glob!r}{suggest_nearest_names(glob, known)}")
