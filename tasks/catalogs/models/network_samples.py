"""A network as samples: its graph in float64, the floor of its outputs, and who else computed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tasks.catalogs.base import Sample
from tasks.catalogs.models import parameters
from tasks.catalogs.models.table import Model
from tasks.counterparts import by_torch
from tasks.graphs import adequacy, torch_module
from tasks.graphs.coarse_products import round_product_weights
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import reference_and_floor
from tasks.graphs.widening import WIDENED, NoOracle
from tasks.judge.coarser_precision import SUSPECTS
from tasks.model import Leaf, OpClass, Oracle

__all__ = ["CatalogNetwork", "NoOracle"]


class CatalogNetwork:
    """A network read once for all of its samples."""

    def __init__(self, model: Model, cache: Path) -> None:
        """Raises Unavailable where its file cannot be had, NoOracle for what has no float64 evaluation."""
        import onnx

        self.model, self._cache = model, cache
        self.content = model.model(cache)
        self._proto = onnx.load_from_string(self.content)
        self.graph = EvaluatedGraph(self._proto)
        self._module = model.module(cache)
        #: Layers that no sample so far observes; None before the first.
        self._hidden: list[str] | None = None

    def sample(self, index: int, feeds: Mapping[str, np.ndarray], draws: int) -> Sample:
        """A sample with these inputs. Raises NoOracle."""
        graph = self.graph
        arrays = graph.order_inputs(feeds)
        found = reference_and_floor(graph, feeds, draws)
        references, rows = found.references, found.rows
        if self._module is None:
            self._hidden = adequacy.find_unobserved_layers(graph, feeds, references, rows, self._hidden)
        else:
            self._hidden = parameters.find_unobserved_parameters(self._module, arrays, references, rows, self._hidden)
        return Sample.of(
            index,
            arrays,
            expected=[
                self._leaf(name, y, delta, jumps)
                for name, y, delta, jumps in zip(graph.outputs, references, found.steady, found.jumps)
            ],
            op_class=OpClass.MODEL,
            others=[self._second(feeds)],
            coarse={precision: round_product_weights(graph, feeds, precision) for precision in SUSPECTS},
            model=self.content,
            files=self.model.files_in(self._cache),
            ranks=(_rank_network_names(graph.inputs), _rank_network_names(graph.outputs)),
            columns={"licence": self.model.licence, "unobserved": ", ".join(self._hidden)},
        )

    def _leaf(self, name: str, y: np.ndarray, delta: np.ndarray, jumps: np.ndarray | None) -> Leaf:
        dtype = self.graph.dtypes.get(name) or "float32" if y.dtype.name in WIDENED else y.dtype.name
        meaning = self.model.outputs.get(name, "")
        return Leaf(dtype, y.shape, y, delta if delta.any() else None, meaning=meaning, jumps=jumps)

    def _second(self, feeds: Mapping[str, np.ndarray]) -> Oracle:
        """The outputs by torch in float64: of the network's own torch form, else of its graph with torch's
        operators."""
        if self._module is None:
            found = EvaluatedGraph(self._proto, by_torch.list_operators_by_torch()).run(feeds)
            return Oracle(by_torch.NAME, [np.array(found[name], order="C") for name in self.graph.outputs])
        return Oracle(
            "torch-float64",
            torch_module.evaluate_module_exactly(self._module, [feeds[name] for name in self.graph.inputs]),
        )


def make_bare_sample(content: bytes, feeds: Mapping[str, np.ndarray]) -> Sample:
    """A sample of a serialized ModelProto with nothing expected of it."""
    import onnx

    arrays = EvaluatedGraph(onnx.load_from_string(content)).order_inputs(feeds)
    return Sample.of(0, arrays, op_class=OpClass.MODEL, model=content)


def _rank_network_names(names: Sequence[str]) -> list[int]:
    """The place of each name among them sorted."""
    return [sorted(names).index(name) for name in names]
