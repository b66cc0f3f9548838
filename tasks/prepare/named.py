"""The function that a name stands for (`tasks.model.named`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tasks import catalogs
from tasks.arrays import module_state
from tasks.catalogs.base import Catalog
from tasks.model import Group, Invalid, Unsupported
from tasks.model.named import Found, Named


def find_named_function(named: Named) -> Found:
    """The function, in this process. Raises Unsupported where the catalog is not installed here, and as
    `find_catalog_function`."""
    catalog = catalogs.get_catalog_if_installed(named.group.catalog)
    if catalog is None:
        raise Unsupported(
            f"the package of the {named.group.catalog} catalog is not installed in the backend's environment"
        )
    return find_catalog_function(catalog, named.group, named.public, named if named.alike else None)


def find_catalog_function(catalog: Catalog, group: Group, public: bool, module: Named | None) -> Found:
    """The function that a catalog has for a group. public: see `Named`; module: what a module that was made in this
    process becomes, that of the sample. Raises Invalid where that cannot be, and what finding the function raises."""
    call = catalog.public(group) if public else catalog.call(group)
    renew = None if module is None else _restore_named_module(call, module)
    return Found(call, catalog.own_kernel(group), renew)


def _restore_named_module(call: Any, module: Named) -> Callable[[], None] | None:
    """Make a module the one that a sample is of. Returns what does so again, of one that a call writes to."""
    try:
        module_state.load_module_state(call, module.state)
    except module_state.NotAlike as error:
        raise Invalid(f"made again it is another module: {error}; what it is made of must not change") from None
    if module_state.digest_plain_attributes(call) != module.alike:
        raise Invalid(
            "made again it is another module: a number or an array that it holds is another; draw it by a seed"
        )
    call.written = module.written
    return functools.partial(module_state.load_module_state, call, module.state) if module.writes else None
