"""All networks of the catalog by name and variant, whatever they come from: one face for trained ones and architectures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.catalogs.models import architectures, exporting
from tasks.catalogs.models.inputs import Arrays
from tasks.catalogs.models.sources import TRAINED
from tasks.catalogs.models.weights import WEIGHTS


class Model(Protocol):
    """A network. outputs: what each stands for, by name (see `tasks.judge.model_meaning`); licence: of its weights."""

    @property
    def licence(self) -> str: ...

    @property
    def outputs(self) -> Mapping[str, str]: ...

    def model(self, cache: Path) -> bytes:
        """Its serialized ModelProto; files that it needs are kept in ``cache``. Raises Unavailable, in one line."""

    def export(self, how: exporting.ModelExport, cache: Path) -> bytes | None:
        """As `model`, exported otherwise; None where it is no torch module, or where no dimension of one can be left
        open. Raises Unavailable, and what the exporter raises."""

    def files_in(self, cache: Path) -> Mapping[str, bytes]:
        """It as files of other frameworks, by form (see `tasks.catalogs.base.Sample`). Raises Unavailable."""

    def inputs(self, index: int, seed: int, cache: Path) -> Arrays:
        """The inputs of a sample by name. Raises Unavailable."""

    def module(self, cache: Path) -> Any:
        """It as a torch module, float32 in evaluation mode; None where there is none. Raises Unavailable."""


#: Architectures whose logits choose along another axis than the last: the U-Net has classes by pixel.
_LOGITS = {"unet": "logits axis 1"}


@dataclass(frozen=True)
class SeededModel:
    """An architecture with seeded weights (`tasks.catalogs.models.architectures`) in one of its sizes."""

    name: str
    size: str
    licence: str = "seeded weights"

    @property
    def outputs(self) -> Mapping[str, str]:
        meaning = _LOGITS.get(self.name, "logits")
        return {name: meaning for name in architectures.ARCHITECTURES[self.name].outputs if name == "logits"}

    def model(self, cache: Path) -> bytes:
        return self.export(exporting.PLAIN, cache)

    def export(self, how: exporting.ModelExport, cache: Path) -> bytes:
        return exporting.export_architecture(self.name, self.size, cache / "exported", how)

    def files_in(self, cache: Path) -> Mapping[str, bytes]:
        return {}

    def inputs(self, index: int, seed: int, cache: Path) -> Arrays:
        return dict(architectures.draw_architecture_example(self.name, self.size, seed + index))

    def module(self, cache: Path) -> Any:
        return architectures.build_architecture(self.name, self.size)


#: Every network by its name and variant.
MODELS: dict[tuple[str, str], Model] = {
    **{(name, ""): one for name, one in TRAINED.items()},
    **{(name, ""): one for name, one in WEIGHTS.items()},
    **{
        (name, "" if size == "full" else size): SeededModel(name, size)
        for name in architectures.ARCHITECTURES
        for size in architectures.SIZES
    },
}
