"""Catalogs: what ops there are and how their samples are made (inputs, reference, leaves); one file per source of ops; what this process was told of the user's own (`announce_definitions`)."""

from __future__ import annotations

import contextlib
import functools

from tasks.catalogs.base import Catalog, CatalogError, GeneratingCatalog
from tasks.plugins import PluginError, PluginPart, list_plugin_parts

#: Catalog name → "module:class"; imported only when asked for.
BUILT_IN = {
    "torch": "tasks.catalogs.torch.opinfo:TorchOpInfo",
    "onnx": "tasks.catalogs.onnx.node_suite:OnnxNode",
    "onnx-1.16": "tasks.catalogs.onnx.releases:Onnx116",
    "onnx-1.13": "tasks.catalogs.onnx.releases:Onnx113",
    "critical": "tasks.catalogs.critical.catalog:Critical",
    "collective": "tasks.catalogs.collective.catalog:Collective",
    "engine": "tasks.catalogs.engine.catalog:Engines",
    "gemm": "tasks.catalogs.gemm.catalog:Gemm",
    "casts": "tasks.catalogs.casts.catalog:Casts",
    "models": "tasks.catalogs.models.catalog:Models",
    "nodes": "tasks.catalogs.nodes.catalog:Nodes",
    "fuzz": "tasks.catalogs.fuzz.catalog:Fuzz",
    "serving": "tasks.catalogs.serving.catalog:Serving",
    "training": "tasks.catalogs.training.catalog:Training",
    "user": "tasks.catalogs.user.catalog:User",
}
#: What a catalog has: known without importing it.
ABOUT = {
    "torch": "PyTorch's own op samples",
    "onnx": "ONNX's own node tests",
    "onnx-1.16": "the node tests of ONNX 1.16, opset 21",
    "onnx-1.13": "the node tests of ONNX 1.13, opset 18",
    "critical": "what current models need",
    "collective": "what several ranks compute together",
    "engine": "what an engine that serves decoders is asked",
    "gemm": "matrix products at the edges of tiles",
    "casts": "conversions of all dtypes, and quantising",
    "models": "whole networks",
    "nodes": "nodes of models, with their own tensors",
    "fuzz": "generated cases of ONNX operators",
    "serving": "what engines compute that serve decoders",
    "training": "steps of a training run",
    "user": "your own kernels",
}


def list_catalogs() -> dict[str, PluginPart]:
    """Every catalog by name: built in, and from other packages' entry points of the group "farm.catalogs"."""
    return list_plugin_parts("catalog", BUILT_IN)


@functools.cache
def get_catalog(name: str) -> Catalog:
    """The catalog called ``name``. Raises KeyError for an unknown name, PluginError if it cannot be imported."""
    catalog: Catalog = list_catalogs()[name].load()()
    return catalog


def get_generating_catalog(name: str) -> GeneratingCatalog | None:
    """The catalog called ``name`` if its cases are generated; None of another, and of one that cannot be had here."""
    with contextlib.suppress(PluginError):
        if isinstance(found := get_catalog_if_installed(name), GeneratingCatalog):
            return found
    return None


def get_catalog_if_installed(name: str) -> Catalog | None:
    """The catalog called ``name``; None in an environment without the package that brings it."""
    return get_catalog(name) if name in BUILT_IN or name in list_catalogs() else None
