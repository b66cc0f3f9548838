"""TensorRT's timings of kernels as ONNX Runtime's provider keeps them, in a file: kept beside what is compiled, by TensorRT and GPU."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.backends.shared import artefacts
from tasks.devices import cuda_driver

_KIND = "ort-tensorrt-timings"


@contextlib.contextmanager
def reuse_ort_timings(libraries: tuple[str, tuple[str, ...]] | None, ordinal: int = 0) -> Iterator[dict[str, str]]:
    """Around the making of a session: options with which the provider finds what was timed before. What it adds is
    kept.

    libraries: TensorRT's, as `Provider.libraries`; None: no timings, no options. The folder is this process's own,
    since the provider writes its file in place, and a second writer would tear it. An engine of dynamic shapes is built
    when it runs: its timings are kept at the next session.
    """
    if libraries is None:
        yield {}
        return
    folder = Path(_make_timings_folder().name)
    where = _name_timings_place(libraries[1][0], ordinal)
    file = folder / f"TensorrtExecutionProvider_cache_{where[-1].replace('_', '')}.timing" if where else None
    if file and len(before := artefacts.recall_artefact(_KIND, where) or b"") > _keep_ort_timings(
        file, where, len(before)
    ):
        file.write_bytes(before)
    yield {"trt_timing_cache_enable": "1", "trt_timing_cache_path": str(folder)}
    if file:
        _keep_ort_timings(file, where, len(artefacts.recall_artefact(_KIND, where) or b""))


def _keep_ort_timings(file: Path, where: tuple[str, ...], known: int) -> int:
    """Keep a file that has more in it than what is known; its size."""
    made = file.read_bytes() if file.exists() else b""
    if len(made) > known:
        artefacts.keep_artefact(_KIND, where, made)
    return len(made)


@functools.cache
def _make_timings_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="timings-")


@functools.cache
def _name_timings_place(nvinfer: str, ordinal: int) -> tuple[str, ...]:
    """(version of TensorRT, GPU, "sm_90"): timings of others are wrong here. () where one cannot be told; nothing is
    kept then."""
    with contextlib.suppress(OSError, AttributeError, cuda_driver.CudaError):
        version = ctypes.CDLL(nvinfer).getInferLibVersion()
        return str(version), *cuda_driver.describe_gpu(cuda_driver.load_cuda_driver(), ordinal)
    return ()
