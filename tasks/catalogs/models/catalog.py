"""The catalog "models": whole networks, each with its float64 reference, its own noise floor and a second oracle."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tasks.arrays import module_state
from tasks.cache import default_cache
from tasks.catalogs.base import Catalog, Entry, Failure, Sample
from tasks.catalogs.models import exporting, modules, network_samples, own_models, training
from tasks.catalogs.models.table import MODELS, Model
from tasks.model import Group, Unavailable, Unsupported

#: Counts up whenever the bytes of a sample, a reference or a noise floor change.
CATALOG_VERSION = "3"


class Models(Catalog):
    """The networks of `tasks.catalogs.models.table`: real inputs first, then one seeded sample, then both in turn.

    The expected outputs are those of the ONNX form in float64, node by node, on the inputs and weights as they are; a
    second evaluation by torch in float64 stands beside them. A torch module of the user's is evaluated itself
    (`tasks.catalogs.models.modules`), and is exported for backends that take ONNX alone.
    """

    name = "models"
    forms = ("onnx", "torch")
    exports = ("onnx",)

    def version(self) -> str:
        """The catalog's own version and those of the packages that decide the bytes of a sample or a reference."""
        packages = ("numpy", "onnx", "pillow", "torch", "onnxscript", "transformers")
        return " ".join([CATALOG_VERSION, *(f"{x}{_find_model_package_version(x)}" for x in packages)])

    def list_version(self) -> str:
        return f"{self.version()} {sorted(own_models.list_own_models().items())}"

    def forms_of(self, group: Group) -> tuple[str, ...]:
        mine = None if group.variant else own_models.list_own_models().get(group.op_name)
        return ("torch",) if mine is not None and mine.is_module else self.forms

    def as_onnx(self, group: Group, made: Sample) -> bytes | None:
        return self._as_made(group, made).model(default_cache())

    def any_size(self, group: Group) -> bytes | None:
        return self._model(group).export(exporting.ModelExport(any_size=True), default_cache())

    def at_opset(self, group: Group, made: Sample, opset: int) -> Iterator[tuple[str, bytes | Exception]]:
        model = self._as_made(group, made)
        for how in exporting.list_model_exports(opset):
            try:
                found = model.export(how, default_cache())
            except Exception as error:
                yield how.way, error
            else:
                yield from [] if found is None else [(how.way, found)]

    def _as_made(self, group: Group, made: Sample) -> Model:
        """The model of a sample, its module with the tensors that the sample was made with."""
        model = self._model(group)
        if made.alike:
            module = model.module(default_cache())
            module_state.load_module_state(module, made.state)
            module.written = made.written
        return model

    def bare(self, group: Group) -> Sample:
        model, cache = self._model(group), default_cache()
        return network_samples.make_bare_sample(model.model(cache), model.inputs(0, group.seed, cache))

    def group_version(self, group: Group) -> str:
        mine = own_models.list_own_models().get(group.op_name)
        return mine.digest() if mine else ""

    def entries(self) -> list[Entry]:
        """One entry per network, a variant for each of its sizes; those that are trained in steps have one more, for
        autocast. The user's own are there as well."""
        found = [Entry(f"{self.name}:{name}", "", ("float32",)) for name in sorted(own_models.list_own_models())]
        for name, variant in sorted(MODELS):
            trained = training.has_training_steps(name, variant)
            found.append(Entry(f"{self.name}:{name}", variant, ("float32",), ("forward", "backward")[: 1 + trained]))
            if trained:
                found.append(Entry(f"{self.name}:{name}", variant, training.AUTOCAST, ("amp",)))
        return found

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Samples 0 … group.samples − 1. Raises ValueError for a network or a dtype that the catalog does not have."""
        model, cache = self._model(group), default_cache()
        if group.check in training.CHECKS:
            return training.make_training_samples(group, draws, skip)
        if group.dtype != "float32":
            raise ValueError(f"models: {group.label} has no dtype {group.dtype!r}; it has float32")
        return self._make_samples(model, group, draws, skip, cache)

    def _make_samples(
        self, model: Model, group: Group, draws: int, skip: Collection[int], cache: Path
    ) -> Iterator[Sample]:
        network: network_samples.CatalogNetwork | modules.OwnModule | None = None
        about = {"licence": model.licence}
        for index in range(min(group.samples, getattr(model, "samples", group.samples))):
            if index in skip:
                yield Sample(index, columns=about)
                continue
            try:
                network = network or _read_model_network(model, cache)
                yield network.sample(index, model.inputs(index, group.seed, cache), draws)
            except Exception as error:
                yield Sample(index, failure=_describe_model_failure(error), columns=about)

    def call(self, group: Group) -> Callable[..., Any]:
        """The network as a torch module, in evaluation mode, or a training step of it. Raises Unsupported where it is
        ONNX alone, or where this environment lacks what it is made of."""
        try:
            if group.check in training.CHECKS:
                return training.make_training_step(group)
            found = self._model(group).module(default_cache())
        except Unavailable as error:
            raise Unsupported(str(error)) from None
        if found is None:
            raise Unsupported("this network comes as an ONNX model: it has no torch form")
        return found

    def _model(self, group: Group) -> Model:
        if group.op_name in own_models.list_own_models() and not group.variant:
            return own_models.list_own_models()[group.op_name]
        try:
            return MODELS[group.op_name, group.variant]
        except KeyError:
            raise ValueError(f"the catalog models has no network {group.label!r}") from None


def _read_model_network(model: Model, cache: Path) -> network_samples.CatalogNetwork | modules.OwnModule:
    if isinstance(model, own_models.OwnModelFile) and model.is_module:
        return modules.OwnModule(model)
    return network_samples.CatalogNetwork(model, cache)


def _describe_model_failure(error: Exception) -> Failure:
    stage = "reference" if isinstance(error, network_samples.NoOracle) else "sample"
    return Failure.of(error, stage)


@functools.cache
def _find_model_package_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"
