"""Torch modules of the catalog to ONNX, with the names of their inputs and outputs; slow, so kept by content."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.catalogs.models import architectures

#: torch's exporters: of torch.export's graph; of a TorchScript trace.
DYNAMO, TORCHSCRIPT = "dynamo", "torchscript"
#: The first operator set that the former writes: to lower ones it converts what it has written for this one.
DYNAMO_FROM = 18


@dataclass(frozen=True)
class ModelExport:
    """How a module is exported. any_size: with every dimension open that it leaves open (DYNAMO alone); opset: the
    operator set, 0 for the exporter's own; way: DYNAMO or TORCHSCRIPT."""

    any_size: bool = False
    opset: int = 0
    way: str = DYNAMO

    @property
    def words(self) -> list[str]:
        """What tells it from others in a key; nothing of the usual one."""
        return ["any size"] * self.any_size + [f"opset {self.opset} by {self.way}"] * bool(self.opset)


#: Of its own opset, and of the sizes of what it is given.
PLAIN = ModelExport()


def list_model_exports(opset: int) -> list[ModelExport]:
    """The ways to write an operator set, the better first."""
    return [
        ModelExport(opset=opset, way=way) for way in ((DYNAMO, TORCHSCRIPT) if opset >= DYNAMO_FROM else (TORCHSCRIPT,))
    ]


class OtherOpset(Exception):
    """What was exported is of another operator set than was asked for."""


def export_architecture(name: str, size: str = "full", folder: Path | None = None, how: ModelExport = PLAIN) -> bytes:
    """An architecture as a serialized ModelProto, float32, of static shapes: those of `architectures.example`.

    folder: where it is kept, and found again while neither the architecture nor the exporter changes. Raises what
    `architectures.build` raises, and whatever the exporter does.
    """
    import torch

    def make_export() -> Any:
        module = architectures.build_architecture(name, size)
        inputs = [torch.from_numpy(x) for x in architectures.draw_architecture_example(name, size).values()]
        return export_model_module(module, inputs, module.input_names, module.output_names, how)

    return load_or_export_model(
        [name, size, architectures.get_architectures_version(), *how.words], folder, make_export
    )


def load_or_export_model(what: list[str], folder: Path | None, make: Callable[[], Any]) -> bytes:
    """A serialized ModelProto that is made once; ``what`` says, with the exporter's version, what decides it."""
    parts = [*what, f"onnxscript {metadata.version('onnxscript')}", digest_model_source(__file__)]
    path = folder / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:40]}.onnx" if folder else None
    if path is not None and path.is_file():
        return path.read_bytes()
    content: bytes = make().SerializeToString()
    if path is not None:
        _write_exported_file(path, content)
    return content


def export_model_module(
    module: Any,
    inputs: list[Any],
    input_names: tuple[str, ...],
    output_names: tuple[str, ...],
    how: ModelExport = PLAIN,
) -> Any:
    """The ModelProto that torch's exporter makes of a module and inputs, of their sizes or, as far as it can be, of
    any. Raises OtherOpset, and what the exporter raises."""
    import torch

    more: dict[str, Any] = {"input_names": list(input_names), "output_names": list(output_names), "verbose": False}
    if how.opset:
        more["opset_version"] = how.opset
    if how.any_size:
        # An axis of length 1 would be taken for one that is always 1.
        inputs = [torch.cat([x, x]) if x.shape[:1] == (1,) else x for x in inputs]
        axes = tuple(dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for x in inputs)
        taken = inspect.signature(module.forward).parameters.values()
        more["dynamic_shapes"] = (axes,) if any(x.kind is x.VAR_POSITIONAL for x in taken) else axes
    for logger in ("torch.onnx", "onnxscript", "torch.export"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if how.way == TORCHSCRIPT:
            made = _export_torchscript(module, tuple(inputs), more)
        else:
            program = torch.onnx.export(module, tuple(inputs), dynamo=True, **more)
            assert program is not None
            made = program.model_proto
    found = next((x.version for x in made.opset_import if x.domain in ("", "ai.onnx")), 0)
    if how.opset and found != how.opset:
        raise OtherOpset(f"it writes operator set {found} where {how.opset} is asked for")
    return made


def _export_torchscript(module: Any, inputs: tuple[Any, ...], more: dict[str, Any]) -> Any:
    """The ModelProto of the TorchScript exporter."""
    import onnx
    import torch

    file = io.BytesIO()
    # Told that it is for inference, it folds a BatchNormalization into the weights before it, rounded to float32:
    # another function.
    as_it_is = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    torch.onnx.export(module, inputs, file, dynamo=False, **as_it_is, **more)
    return onnx.load_model_from_string(file.getvalue())


def digest_model_source(file: str) -> str:
    """Of the file that makes a model or exports it."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def _write_exported_file(path: Path, content: bytes) -> None:
    """Write a file that nobody ever sees half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
