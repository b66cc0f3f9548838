"""Torch modules of the catalog to ONNX, with the names of their inputs and outputs; slow, so kept by content."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from tasks.catalogs.models import architectures


def export(name: str, size: str = "full", folder: Path | None = None) -> bytes:
    """An architecture as a serialized ModelProto, float32, of static shapes: those of `architectures.example`.

    folder: where it is kept, and found again while neither the architecture nor the exporter changes. Raises what
    `architectures.build` raises, and whatever the exporter does.
    """
    parts = [name, size, architectures.version(), f"onnxscript {metadata.version('onnxscript')}", _own()]
    kept = folder / f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:40]}.onnx" if folder else None
    if kept is not None and kept.is_file():
        return kept.read_bytes()
    import torch

    module = architectures.build(name, size)
    example = architectures.example(name, size)
    made = converted(module, [torch.from_numpy(x) for x in example.values()], module.input_names, module.output_names)
    content: bytes = made.SerializeToString()
    if kept is not None:
        _keep(kept, content)
    return content


def converted(module: Any, inputs: list[Any], input_names: tuple[str, ...], output_names: tuple[str, ...]) -> Any:
    """The ModelProto that torch's exporter makes of a module and inputs."""
    import torch

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
