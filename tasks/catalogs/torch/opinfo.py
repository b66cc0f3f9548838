"""The torch catalog: every OpInfo of torch's op_db; the one file that touches that private API."""

from __future__ import annotations

import functools
import platform
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from importlib import metadata
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.catalogs.base import Catalog, Entry, Failure, Sample, candidates
from tasks.catalogs.torch import generated as torch_generated
from tasks.catalogs.torch.samples import Maker, is_random, unseeded
from tasks.model import Group

CATALOG_VERSION = 1

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64", "int64", "int32", "int16", "int8", "uint8", "bool")


class TorchOpInfo(Catalog):
    name = "torch"
    forms = ("torch",)
    exports = ("onnx",)

    def version(self) -> str:
        # Sample bytes differ between CPU capabilities: a vectorised fill draws in another order.
        return f"{CATALOG_VERSION} torch {metadata.version('torch')} {_cpu_capability()}"

    def entries(self) -> list[Entry]:
        found = []
        for info in _op_db().values():
            supported = {torch_tree.name_of(d) for d in info.supported_dtypes("cpu")}
            dtypes = tuple(d for d in DTYPES if d in supported)
            name, variant = f"torch:{info.name}", info.variant_test_name
            checks = (
                "forward",
                *("backward",) * info.supports_autograd,
                *("double_backward",) * bool(info.supports_gradgrad),
            )
            sources = torch_generated.distributions(name, variant, is_random(info.op))
            found.append(Entry(name, variant, dtypes or ("float32",), checks, sources))
        return sorted(found, key=lambda e: (e.op, e.variant))

    def call(self, group: Group) -> Callable[..., Any]:
        info = _op_db()[group.op_name, group.variant]
        return unseeded(info.op) if group.check == "forward" else _differentiable(info)

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        import torch

        info = _op_db()[group.op_name, group.variant]
        if group.op_name.startswith("jiterator_"):
            yield Sample(
                -1,
                failure=Failure(
                    "invalid",
                    "reference",
                    "NotImplementedError",
                    "jiterator ops exist on CUDA only: no float64 reference on the CPU",
                ),
            )
            return
        if group.variant == "partial_views":
            # The argument is part of a storage, and the op reads the rest of it: no copy of the argument has that.
            yield Sample(-1, failure=Failure("invalid", "store", "", "the op reads memory beyond its argument"))
            return
        if group.check != "forward" and not _has_gradient(info, group.dtype):
            yield Sample(-1, failure=Failure("vacuous", "sample", "", "the op declares no gradient for this dtype"))
            return
        torch.default_generator.manual_seed(_seed(group))
        np.random.seed(_seed(group) % 2**32)
        import random

        random.seed(_seed(group))
        made: list[Any] = []
        broken: Failure | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for sample in info.sample_inputs(
                    "cpu", getattr(torch, group.dtype), group.check != "forward", set_seed=False
                ):
                    made.append(sample)
            except Exception as error:
                broken = Failure("invalid", "sample", type(error).__name__, str(error))
            if broken:
                yield Sample(len(made), failure=broken)
            maker = self._maker(info, group, draws)
            if group.distribution != "own" and made:
                yield from torch_generated.samples(group, made, maker.make, info, skip, first=int(bool(broken)))
                return
            # A list that broke off takes one place of those asked for, so that it is never left out.
            for place, index in enumerate(candidates(len(made), group.samples - bool(broken))):
                yield Sample(index) if place + bool(broken) in skip else maker.make(index, made[index])
        if not made and not broken:
            yield Sample(-1, failure=Failure("vacuous", "sample", "", "the op declares no samples for this dtype"))

    def _maker(self, info: Any, group: Group, draws: int) -> Maker:
        if group.check == "forward":
            return Maker(info, group.dtype, draws)
        from tasks.catalogs.torch.gradients import GradientMaker

        return GradientMaker(info, group, draws, self.call(group))


def _seed(group: Group) -> int:
    return zlib.crc32(f"{group.label}/{group.dtype}/{group.seed}".encode())


def _cpu_capability() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "").split()
    except OSError:
        return platform.machine()
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else platform.machine()


@functools.cache
def _op_db() -> dict[tuple[str, str], Any]:
    import torch.testing._internal.common_utils as common_utils

    # Each sample_inputs call looks for the running unittest with inspect.stack(): a tenth of the time, for nothing.
    common_utils.extract_test_fn = lambda: None
    from torch.testing._internal.common_methods_invocations import op_db

    return {(info.name, info.variant_test_name): info for info in op_db}


def _has_gradient(info: Any, dtype: str) -> bool:
    return any(dtype in map(torch_tree.name_of, info.supported_backward_dtypes(device)) for device in ("cpu", "cuda"))


#: Keyword argument of `_differentiable` calls: the name of a sample's own function of the outputs.
PROCESS = "output_process_fn_grad"


def _differentiable(info: Any) -> Callable[..., Any]:
    """The op as OpInfo's gradient tests call it: inputs made hermitian, triangular, … inside, so that a small change
    of them stays within the op's domain; outputs defined up to a choice made unique by the sample's own function."""
    functions = _process_functions(info)

    def call(*args: Any, **kwargs: Any) -> Any:
        process = kwargs.pop(PROCESS, None)
        found = info.gradcheck_wrapper(info.op, *args, **kwargs)
        found = found if process is None else functions[process](found)
        return ordered(found) if ordered else found

    ordered = _ORDERED.get(info.name)
    call.__wrapped__ = info.op  # type: ignore[attr-defined]
    return call


def _by_eigenvalue(found: Any) -> Any:
    """Eigenvalues, alone or with their vectors, in one order: LAPACK's own depends on the rounding."""
    import torch

    values = found[0] if isinstance(found, tuple) else found
    # Conjugate pairs have the same real part: the irrational share of the imaginary one tells them apart.
    order = (values.real + values.imag / 3**0.5).argsort(dim=-1)
    sorted_values = values.gather(-1, order)
    if not isinstance(found, tuple):
        return sorted_values
    return sorted_values, torch.take_along_dim(found[1], order.unsqueeze(-2), -1)


#: What makes the outputs of an op's gradient test unique where OpInfo's own function does not.
_ORDERED = {"linalg.eig": _by_eigenvalue, "linalg.eigvals": _by_eigenvalue}


def process_name(sample: Any) -> str | None:
    """Name of the sample's function of the outputs; None where it leaves them as they are."""
    name: str = sample.output_process_fn_grad.__qualname__
    return None if name.startswith(("SampleInput.", "OpInfo.")) else name


def _process_functions(info: Any) -> dict[str, Callable[..., Any]]:
    import torch

    with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        made = info.sample_inputs("cpu", torch.float64, requires_grad=True)
        return {name: s.output_process_fn_grad for s in made if (name := process_name(s))}
