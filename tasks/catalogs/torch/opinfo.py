"""The torch catalog: every OpInfo of torch's op_db; the one file that touches that private API."""

from __future__ import annotations

import functools
import platform
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays import torch_tree
from tasks.arrays.tree import decode_argument_tree
from tasks.catalogs.base import Catalog, Entry, Failure, Metadata, Sample, spread_candidate_samples
from tasks.catalogs.torch import declared, every_input, structured_samples, variants
from tasks.catalogs.torch import generated as torch_generated
from tasks.catalogs.torch.differentiable import PROCESS, has_op_gradient, make_differentiable_op, make_output_processing
from tasks.catalogs.torch.gradient_samples import GradientSampleMaker
from tasks.catalogs.torch.samples import OpInfoSampleMaker, is_op_seeded, unwrap_seeded_op
from tasks.devices import TORCH_DEVICES
from tasks.devices.processor import read_processor_entry
from tasks.importing import pause_garbage_collector
from tasks.model import EXHAUSTIVE, STRUCTURED, Group

CATALOG_VERSION = 5

#: Images and channels that a sample of SMALLER has at most. All else of op_db's own stays: the sizes that coordinates
#: are scaled by, modes, paddings, and the number and order of the samples.
IMAGES, CHANNELS = 2, 3
#: Ops whose samples in op_db have up to 5 million elements: they took a third of the time of all ops.
SMALLER = ("grid_sampler_3d",)

#: complex32 has no kernels for most ops (123 of op_db list it) and no dtype in NumPy: it travels as complex64
#: (`tasks.arrays.torch_tree`).
DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "complex64",
    "complex32",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


class TorchOpInfo(Catalog):
    name = "torch"
    forms = ("torch",)
    exports = ("onnx",)
    imports = ("torch", f"{__name__}:_load_op_db")

    def version(self) -> str:
        # Sample bytes differ between CPU capabilities: a vectorised fill draws in another order.
        return f"{CATALOG_VERSION} torch {metadata.version('torch')} {_find_cpu_capability()}"

    def entries(self) -> list[Entry]:
        found = []
        for info in _load_op_db().values():
            supported = {torch_tree.name_torch_dtype(d) for d in info.supported_dtypes("cpu")}
            dtypes = tuple(d for d in DTYPES if d in supported)
            name, variant = f"torch:{info.name}", info.variant_test_name
            checks = (
                "forward",
                *("backward",) * info.supports_autograd,
                *("double_backward",) * bool(info.supports_gradgrad),
                *variants.list_variant_checks(info),
            )
            sources = torch_generated.list_generated_distributions(name, variant, is_op_seeded(info.op))
            sources += (STRUCTURED,) * (len(sources) > 1 and structured_samples.takes_structured_inputs(info))
            sources += (EXHAUSTIVE,) * every_input.takes_every_input(info)
            found.append(
                Entry(name, variant, dtypes or ("float32",), checks, sources, _list_device_dtypes(info, dtypes))
            )
        return sorted(found, key=lambda e: (e.op, e.variant))

    def call(self, group: Group) -> Callable[..., Any]:
        info = _load_op_db()[group.op_name, group.variant]
        if checks.get_check_or_default(group.check).own_call:
            return variants.make_variant_call(info, group.check)
        return unwrap_seeded_op(info.op) if group.check == "forward" else make_differentiable_op(info)

    def is_public(self, group: Group) -> bool:
        info = _load_op_db()[group.op_name, group.variant]
        return group.check == "forward" and _find_public_function(group.op_name) is info.op

    def public(self, group: Group) -> Callable[..., Any]:
        # op_db takes three times as long to import as torch itself.
        return _find_public_function(group.op_name) or self.call(group)

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        info = _load_op_db()[group.op_name, group.variant]
        if group.op_name.startswith("jiterator_"):
            absent = NotImplementedError("jiterator ops exist on CUDA only: no float64 reference on the CPU")
            yield Sample(-1, failure=Failure.of(absent, "reference"))
            return
        if group.variant == "partial_views":
            # The argument is part of a storage, and the op reads the rest of it: no copy of the argument has that.
            yield Sample(-1, failure=Failure("invalid", "store", "", "the op reads memory beyond its argument"))
            return
        if group.check == variants.REFUSES:
            yield from _make_refusal_samples(info, group)
            return
        gradient = checks.get_check_or_default(group.check).gradient
        if gradient and not has_op_gradient(info, group.dtype):
            yield Sample(-1, failure=Failure.vacuous("the op declares no gradient for this dtype"))
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made, broken = _list_opinfo_samples(info, group)
            if broken:
                yield Sample(len(made), failure=broken)
            maker = self._maker(info, group, draws)
            if group.distribution == EXHAUSTIVE and made:
                yield from every_input.samples(group, info, made, maker.make, skip)
                return
            if group.distribution == STRUCTURED and made:
                yield from structured_samples.samples(group, made, maker.make, skip, first=int(bool(broken)))
                return
            if group.distribution != "own" and made:
                yield from torch_generated.samples(group, made, maker.make, info, skip, first=int(bool(broken)))
                return
            # A list that broke off takes one place of those asked for, so that it is never left out.
            for place, index in enumerate(spread_candidate_samples(len(made), group.samples - bool(broken))):
                yield Sample(index) if place + bool(broken) in skip else maker.make(index, made[index])
        if not made and not broken:
            yield Sample(-1, failure=Failure.vacuous("the op declares no samples for this dtype"))

    def remade(self, group: Group, given: Sample, draws: int) -> Sample:
        leaf = torch_tree.make_tensor_decoder(lambda number: given.arrays[number], "cpu")
        gradient = checks.get_check_or_default(group.check).gradient

        def differentiable(kind: str, node: dict[str, Any]) -> Any:
            made = leaf(kind, node)
            wanted = gradient and kind == "tensor" and (made.is_floating_point() or made.is_complex())
            return made.requires_grad_() if wanted else made

        args, kwargs = (decode_argument_tree(tree, differentiable) for tree in (given.args, given.kwargs))
        info = _load_op_db()[group.op_name, group.variant]
        process = make_output_processing(info, kwargs.pop(PROCESS, None))
        source = types.SimpleNamespace(input=args[0], args=args[1:], kwargs=kwargs, **{PROCESS: process})
        return self._maker(info, group, draws).make(given.index, source)

    def undeclared(self, group: Group, args: Any, kwargs: Any, device: str) -> str:
        info, gradient = _load_op_db()[group.op_name, group.variant], checks.get_check_or_default(group.check).gradient
        for of_gradient in (False, True)[: 1 + gradient]:
            known = declared.list_declared_dtypes(info, device, of_gradient)
            if known is not None and group.dtype not in known:
                what = f"gradient of {group.op_name}" if of_gradient else group.op_name
                return f"torch's op_db declares no {what} in {group.dtype} for {device}"
        if declared.list_declared_dtypes(info, device) is None:
            return ""
        kwargs = kwargs | {"v": [pair for pair in kwargs["v"] if pair[0] != PROCESS]}
        mode = declared.describe_call_modes(args, kwargs)
        own = group.op_name, group.variant, group.dtype, checks.get_check_or_default(group.check).gradient
        here, there = (_list_device_modes(*own, x) for x in ("cpu", device))
        if mode in here and mode not in there:
            return f"torch's op_db has this call of {group.op_name} for the CPU and not for {device}"
        return ""

    def on_device(self, group: Group, index: int, device: str) -> OnDevice:
        """What torch's kernels for a device (`Backend.torch_device`) are to give for a group's sample of that index, by
        meta kernels and op_db; nothing is computed there. Raises IndexError for no such sample, and what making it
        raises."""
        info = _load_op_db()[group.op_name, group.variant]
        made, broken = _list_opinfo_samples(info, group)
        if broken and index >= len(made):
            raise IndexError(f"{group.label} in {group.dtype} has no sample {index}: {broken.error}")
        sample = self._maker(info, group, 0).make(index, made[index])
        outputs = sample.on_device or [(leaf.dtype, leaf.shape) for leaf in sample.expected]
        return OnDevice(tuple(outputs), self.undeclared(group, *sample.encoded(), device))

    def _maker(self, info: Any, group: Group, draws: int) -> OpInfoSampleMaker:
        if group.check == "forward":
            return OpInfoSampleMaker(info, group.dtype, draws)
        if checks.get_check_or_default(group.check).own_call:
            return variants.VariantSampleMaker(info, group, draws)
        return GradientSampleMaker(info, group, draws, self.call(group))


@dataclass(frozen=True)
class OnDevice:
    """What a device is expected to give: dtype and shape of each output. undeclared: why it need not ("" where op_db
    declares the call for it, or says nothing of the device)."""

    outputs: tuple[Metadata, ...]
    undeclared: str


def _list_device_dtypes(info: Any, on_cpu: Collection[str]) -> tuple[tuple[str, str], ...]:
    """(device, dtype) of an op, of 16 bits or two of them, that have kernels there and none for the CPU. What op_db
    does not say of a device, CUDA's list does. Not of Fourier transforms: NumPy has no complex numbers of two
    halves."""
    if not on_cpu or info.name.startswith("fft."):
        return ()
    found = []
    for device in ("", *TORCH_DEVICES):
        there = declared.list_declared_dtypes(info, device) if device else None
        there = declared.list_declared_dtypes(info, "cuda") if there is None else there
        dtypes = (d for d in ("float16", "bfloat16", "complex32") if d in (there or ()) and d not in on_cpu)
        found += [(device, dtype) for dtype in dtypes if device != "cpu"]
    return tuple(found)


def _list_opinfo_samples(info: Any, group: Group) -> tuple[list[Any], Failure | None]:
    """The samples that op_db has for a group on the CPU, and why there are no more of them."""
    import random

    import torch

    torch.default_generator.manual_seed(_derive_opinfo_seed(group))
    np.random.seed(_derive_opinfo_seed(group) % 2**32)
    random.seed(_derive_opinfo_seed(group))
    made: list[Any] = []
    try:
        with torch.no_grad():
            gradient = checks.get_check_or_default(group.check).gradient
            for sample in _unwrap_opinfo_sampler(info)(info, "cpu", getattr(torch, group.dtype), gradient):
                made.append(sample)
    except Exception as error:
        return variants.select_usable_samples(group.check, made), Failure.of(error, "sample")
    return variants.select_usable_samples(group.check, made), None


@functools.cache
def _list_device_modes(op: str, variant: str, dtype: str, gradient: bool, device: str) -> frozenset[str]:
    """Of the calls that op_db has for a device."""
    info = _load_op_db()[op, variant]
    return declared.list_sample_modes(_unwrap_opinfo_sampler(info), info, device, dtype, gradient)


def _make_refusal_samples(info: Any, group: Group) -> Iterator[Sample]:
    """The calls that eager torch refuses, one sample that says so where there is none in the dtype."""
    made = 0
    for made, sample in enumerate(variants.make_refusal_samples(info, group), 1):
        yield sample
        if made == group.samples:
            return
    if not made:
        yield Sample(-1, failure=Failure.vacuous("op_db has no call in this dtype that eager torch refuses"))


@functools.cache
def _find_public_function(name: str) -> Callable[..., Any] | None:
    """torch's function of that name, of those that torch itself lists as functions of tensors; None for any other."""
    import torch
    from torch.overrides import get_testing_overrides

    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if callable(found) and found in get_testing_overrides() else None


def _derive_opinfo_seed(group: Group) -> int:
    return zlib.crc32(f"{group.label}/{group.dtype}/{group.seed}".encode())


def _find_cpu_capability() -> str:
    flags = read_processor_entry("flags").split()
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else platform.machine()


@functools.cache
def _load_op_db() -> dict[tuple[str, str], Any]:
    with pause_garbage_collector():
        import torch.testing._internal.common_utils as common_utils

        # Each sample_inputs call looks for the running unittest with inspect.stack(): a tenth of the time, for nothing.
        common_utils.extract_test_fn = lambda: None
        from torch.testing._internal.common_methods_invocations import op_db

    quick = _build_quick_make_tensor()
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal.") and getattr(module, "make_tensor", None) is quick.__wrapped__:
            module.make_tensor = quick  # type: ignore[attr-defined]
    for info in op_db:
        if info.name in SMALLER:
            info.sample_inputs_func = with_make_tensor(_unwrap_opinfo_sampler(info), _shrink_image_batch)
    return {(info.name, info.variant_test_name): info for info in op_db}


def with_make_tensor(sampler: Any, make_tensor: Callable[..., Any]) -> Any:
    """A function of op_db that makes samples, with another make_tensor than torch's."""
    return types.FunctionType(sampler.__code__, sampler.__globals__ | {"make_tensor": make_tensor}, sampler.__name__)


def _unwrap_opinfo_sampler(info: Any) -> Any:
    """The function that makes an op's samples, without the decorator that switches gradients off and on at every
    sample."""
    return getattr(info.sample_inputs_func, "__wrapped__", info.sample_inputs_func)


def _build_quick_make_tensor() -> Any:
    """torch's make_tensor for the usual arguments: the same numbers without the checks, which take longer than the
    numbers."""
    import torch
    from torch.testing import make_tensor

    largest = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)}

    @functools.wraps(make_tensor)
    def make_quickly(
        *shape: Any, dtype: Any, low: Any = None, high: Any = None, requires_grad: bool = False, **how: Any
    ) -> Any:
        most = largest.get(dtype)
        if most is not None and shape and (len(how) == 1 or not any(how[x] for x in how if x != "device")):
            lowest, highest = -9 if low is None else low, 9 if high is None else high
            if -most <= lowest < highest <= most and highest - lowest < most:
                tensor = torch.empty(*shape, dtype=dtype, device=how["device"]).uniform_(lowest, highest)
                return tensor.requires_grad_() if requires_grad else tensor
        return make_tensor(*shape, dtype=dtype, low=low, high=high, requires_grad=requires_grad, **how)

    return make_quickly


def _shrink_image_batch(shape: tuple[int, ...], **how: Any) -> Any:
    """What op_db makes of (images, channels, depth, height, width), or of a grid (images, depth, height, width, 3)."""
    from torch.testing import make_tensor

    images, second, *rest = shape
    is_grid = rest[-1] == len(rest)
    return make_tensor((min(images, IMAGES), second if is_grid else min(second, CHANNELS), *rest), **how)
