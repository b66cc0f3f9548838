"""The catalog "nodes": distinct nodes of models with their true tensors, each against float64 with its own noise floor."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from tasks.catalogs import user_definitions
from tasks.catalogs.base import Catalog, CatalogError, Entry, Failure, Sample
from tasks.catalogs.nodes import folder
from tasks.catalogs.nodes.folder import FolderError, KeptNode
from tasks.counterparts import by_torch
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.expected_outputs import compute_graph_leaves
from tasks.graphs.widening import NoOracle
from tasks.model import Group, OpClass, Oracle
from tasks.operators import table as operators

#: Counts up whenever a reference or a noise floor changes.
CATALOG_VERSION = "2"


class Nodes(Catalog):
    """The nodes of the folders that the config names. An op is "nodes:<OpType>", a variant a case of it and which
    instance: that with the largest numbers, or that which cancels most. One sample each; a group's seed is ignored."""

    name = "nodes"
    forms = ("onnx",)

    def version(self) -> str:
        return " ".join([CATALOG_VERSION, *(f"{x}{importlib.metadata.version(x)}" for x in ("numpy", "onnx"))])

    def list_version(self) -> str:
        try:
            return f"{self.version()} {folder.digest_nodes_folders(_list_node_folders())}"
        except FolderError as error:  # who lists it is told
            return f"{self.version()} {error}"

    def group_version(self, group: Group) -> str:
        return self._line(group)[1].digest

    def entries(self) -> list[Entry]:
        try:
            found = folder.index_nodes_folders(_list_node_folders())
        except FolderError as error:
            raise CatalogError(str(error), _make_nodes_key()) from None
        return [Entry(f"nodes:{op}", variant, (line.dtype,)) for (op, variant), (_, line) in sorted(found.items())]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """The one sample of a node. Raises KeyError for a node that the folders do not have."""
        path, line = self._line(group)
        if 0 in skip:
            yield Sample(0)
            return
        try:
            yield _make_node_sample(path, line, draws)
        except (NoOracle, FolderError) as error:
            yield Sample(0, failure=Failure.of(error, "reference" if isinstance(error, NoOracle) else "sample"))

    def _line(self, group: Group) -> tuple[Path, KeptNode]:
        try:
            return folder.index_nodes_folders(_list_node_folders())[group.op_name, group.variant]
        except KeyError:
            raise KeyError(f"no node {group.label!r} in {', '.join(_list_node_folders()) or 'any folder'}") from None


def _list_node_folders() -> list[str]:
    return [one["path"] for one in user_definitions.read_definitions().get("nodes", [])]


def _make_nodes_key() -> tuple[str | int, ...]:
    found = user_definitions.read_definitions().get("nodes", [])
    return ("catalogs", found[0]["at"], "path") if found else ()


def _make_node_sample(path: Path, line: KeptNode, draws: int) -> Sample:
    import onnx

    content, feeds = folder.load_harvested_node(path, line)
    model = onnx.load_from_string(content)
    graph = EvaluatedGraph(model)
    (node,) = graph.nodes
    leaves, op_class = compute_graph_leaves(graph, feeds, draws)
    return Sample.of(
        0,
        graph.order_inputs(feeds),
        expected=leaves,
        op_class=op_class,
        others=_compute_second_oracle(model, node.op, feeds, op_class),
        model=content,
    )


def _compute_second_oracle(model: object, op: str, feeds: dict[str, np.ndarray], op_class: OpClass) -> list[Oracle]:
    """torch's evaluation in float64 of an op that it does; of an exact one there is nothing to be said twice."""
    if not operators.find_operator(op).witnessed or op_class is OpClass.EXACT:
        return []
    found = by_torch.evaluate_model_by_torch(model, feeds)
    return [] if found is None else [Oracle(by_torch.NAME, found)]
