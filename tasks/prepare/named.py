"""The function that a name stands for (`tasks.model.named`)."""

from __future__ import annotations

import functools

from tasks import catalogs
from tasks.arrays import module_state
from tasks.model import Invalid, Unsupported
from tasks.model.named import Found, Named


def find(named: Named) -> Found:
    """The function, in this process. A module that was made in it becomes the one that the sample is of. Raises Invalid where that cannot be,
    Unsupported where the catalog is not installed here, and what finding the function raises."""
    group = named.group
    catalog = catalogs.get_if_installed(group.catalog)
    if catalog is None:
        raise Unsupported(f"the package of the {group.catalog} catalog is not installed in the backend's environment")
    call = catalog.public(group) if named.public else catalog.call(group)
    renew = None
    if named.alike:
        try:
            module_state.load(call, named.state)
        except module_state.NotAlike as error:
            raise Invalid(f"made again it is another module: {error}; what it is made of must not change") from None
        if module_state.plain_digest(call) != named.alike:
            raise Invalid(
                "made again it is another module: a number or an array that it holds is another; draw it by a seed"
            )
        call.written = named.written  # type: ignore[attr-defined]
        renew = functools.partial(module_state.load, call, named.state) if named.writes else None
    return Found(call, catalog.own_kernel(group), renew)
