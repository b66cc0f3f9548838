"""Catalogs: what ops there are and how their samples are made; one file per source of ops."""
from __future__ import annotations

import functools
from importlib import import_module

from tasks.catalogs.base import Catalog, CatalogError

__all__ = ["BUILT_IN", "Catalog", "CatalogError", "get", "known"]

#: Catalog name → "module:class"; imported only when asked for.
BUILT_IN = {
    "torch": "tasks.catalogs.torch_opinfo:TorchOpInfo",
    "onnx": "tasks.catalogs.onnx_node:OnnxNode",
    "critical": "tasks.catalogs.critical:Critical",
    "user": "tasks.catalogs.user:User",
}


def known() -> dict[str, str]:
    """Every catalog's name and where it comes from, "module:class" (built in and by entry point)."""
    from importlib.metadata import entry_points

    return BUILT_IN | {e.name: e.value for e in entry_points(group="farm.catalogs")}


@functools.cache
def get(name: str) -> Catalog:
    """The catalog called ``name``. Raises KeyError for an unknown name."""
    module, _, cls = known()[name].partition(":")
    catalog: Catalog = getattr(import_module(module), cls)()
    return catalog
