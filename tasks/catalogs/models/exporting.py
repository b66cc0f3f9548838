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
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.catalogs.models import architectures


def export(name: str, size: str = "full", folder: Path | None = None, any_size: bool = False) -> bytes:
    """An architecture as a serialized ModelProto, float32, of static shapes: those of `architectures.example`.

    any_size: with every dimension open that the network leaves open; folder: where it is kept, and found again while neither the architecture nor the exporter changes. Raises what
    `architectures.build` raises, and whatever the exporter does.
    """
    import torch

    def made() -> Any:
        module = architectures.build(name, size)
        inputs = [torch.from_numpy(x) for x in architectures.example(name, size).values()]
        return converted(module, inputs, module.input_names, module.output_names, any_size)

    return kept([name, size, architectures.version(), *["any size"] * any_size], folder, made)


def kept(what: list[str], folder: Path | None, make: Callable[[], Any]) -> bytes:
    """A serialized ModelProto that is made once; ``what`` says, with the exporter's version, what decides it."""
    parts = [*what, f"onnxscript {metadata.version('onnxscript')}", _own()]
    path = folder / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:40]}.onnx" if folder else None
    if path is not None and path.is_file():
        return path.read_bytes()
    content: bytes = make().SerializeToString()
    if path is not None:
        _keep(path, content)
    return content


def converted(
    module: Any, inputs: list[Any], input_names: tuple[str, ...], output_names: tuple[str, ...], any_size: bool = False
) -> Any:
    """The ModelProto that torch's exporter makes of a module and inputs, of their sizes or, as far as it can be, of any."""
    import torch

    how = {}
    if any_size:
        # An axis of length 1 would be taken for one that is always 1.
        inputs = [torch.cat([x, x]) if x.shape[:1] == (1,) else x for x in inputs]
        axes = tuple(dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for x in inputs)
        taken = inspect.signature(module.forward).parameters.values()
        how = {"dynamic_shapes": (axes,) if any(x.kind is x.VAR_POSITIONAL for x in taken) else axes}
    for logger in ("torch.onnx", "onnxscript", "torch.export"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            tuple(inputs),
            dynamo=True,
            verbose=False,
            input_names=list(input_names),
            output_names=list(output_names),
            **how,
        )
    assert program is not None
    return program.model_proto


def _own() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def _keep(path: Path, content: bytes) -> None:
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
