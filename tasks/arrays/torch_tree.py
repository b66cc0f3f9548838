"""Torch values in argument trees: tensors, dtypes, devices, memory formats to JSON nodes and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.arrays import layouts
from tasks.arrays.block_scaled import E2M1, pack_pairs, unpack_pairs
from tasks.arrays.guarded import PageGuard
from tasks.arrays.tree import (
    NotEncodable,
    TensorSpec,
    encode_argument_tree,
    encode_tensor_spec,
    make_contiguous_tensor,
    read_tensor_spec,
)
from tasks.model import Unsupported
from tasks.model.dtypes import EPS, NATIVE, PACKED_BITS, TABLE, get_numpy_dtype, name_numpy_dtype


@functools.cache
def name_torch_dtype(dtype: Any) -> str:
    """The farm's name of a torch dtype."""
    return str(dtype).rpartition(".")[2]


#: Torch dtypes numpy lacks travel as integers of their width.
AS_INTEGER = {
    name: "int16" if TABLE[name].bits == 16 else "uint8"
    for name in EPS
    if TABLE[name].numpy == "ml_dtypes" and name not in PACKED_BITS
}

#: The dtype that travels widened, and the flag of a stored tensor that is one.
COMPLEX32 = "complex32"


def tensor_to_numpy(tensor: Any) -> np.ndarray:
    """A dense CPU tensor as numpy array of the farm's dtype, sharing memory where it can."""
    import torch

    name = name_torch_dtype(tensor.dtype)
    if name in NATIVE:
        try:
            return tensor.numpy()
        except RuntimeError:  # of a negated or conjugated view: asked for only then, as nearly none is one
            return tensor.resolve_conj().resolve_neg().numpy()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if name in AS_INTEGER:
        return tensor.view(getattr(torch, AS_INTEGER[name])).numpy().view(get_numpy_dtype(name))
    if name == f"{E2M1}_x2":  # pairs along the axis whose neighbours adjoin
        bits = tensor.view(torch.uint8).numpy()
        columns = tensor.ndim > 1 and tensor.stride(-1) != 1 and tensor.stride(-2) == 1
        return unpack_pairs(bits.swapaxes(-1, -2)).swapaxes(-1, -2) if columns else unpack_pairs(bits)
    if name == "complex32":
        return torch.view_as_real(tensor).float().numpy().view(np.complex64)[..., 0]
    return tensor.numpy()


def have_same_tensor_bits(a: Any, b: Any) -> bool:
    """Whether two dense tensors are equal bit for bit."""
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    plain = (x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return torch.equal(*plain)


def tensor_from_numpy(array: np.ndarray) -> Any:
    """A CPU tensor of the array's values, sharing its memory (which may be read-only: do not write). Raises
    Unsupported."""
    import torch

    name = name_numpy_dtype(array.dtype)
    if name in AS_INTEGER:
        if not hasattr(torch, name):
            raise Unsupported(f"torch {torch.__version__} has no dtype {name}")
        return torch.from_numpy(array.view(AS_INTEGER[name])).view(getattr(torch, name))
    if name in PACKED_BITS:  # of which torch has one alone, by pairs along the last axis
        if name != E2M1 or array.shape[-1:] == () or array.shape[-1] % 2 or not hasattr(torch, f"{name}_x2"):
            raise Unsupported(f"torch {torch.__version__} has no tensors of {name}")
        return torch.from_numpy(pack_pairs(array)).view(torch.float4_e2m1fn_x2)
    return torch.from_numpy(array)


def read_tensor_layout(tensor: Any) -> TensorSpec:
    """How a tensor lies in memory (`tasks.arrays.layouts.make_layout_spec`); a sparse one is taken as it is."""
    import torch

    if tensor.layout is not torch.strided or not tensor.numel():
        return TensorSpec(0)
    return layouts.make_layout_spec(tensor.shape, tensor.stride(), tensor.storage_offset())


def encode_torch_args(args: Any, kwargs: Any) -> tuple[Any, Any, list[np.ndarray]]:
    """Encode the arguments of a call. Returns (args node, kwargs node, arrays the tensors refer to).

    A strided tensor keeps its strides, over the span of its storage that it touches, and its offset up to
    `layouts.MOST_LEAD`. Raises NotEncodable.
    """
    import torch

    arrays: list[np.ndarray] = []

    def add(tensor: Any) -> int:
        arrays.append(tensor_to_numpy(tensor))
        return len(arrays) - 1

    def leaf(x: Any) -> Any | None:
        if isinstance(x, torch.Tensor):
            t = x.detach()
            if t.is_quantized:
                raise NotEncodable("a quantized tensor cannot be stored")
            if t.layout == torch.strided:
                if t.is_conj() or t.is_neg():
                    t = t.resolve_conj().resolve_neg()
                lead = t.storage_offset()
                lead = lead if lead <= layouts.MOST_LEAD else 0
                half = COMPLEX32 if name_torch_dtype(t.dtype) == COMPLEX32 else ""
                if (t.is_contiguous() and not lead) or t.numel() == 0:
                    return encode_tensor_spec(TensorSpec(add(t), flags=half))
                span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
                flat = t.as_strided((lead + span,), (1,), t.storage_offset() - lead)
                return encode_tensor_spec(TensorSpec(add(flat), tuple(t.shape), tuple(t.stride()), lead, flags=half))
            if t.layout == torch.sparse_coo:
                parts = (add(t._indices()), add(t._values()))
                flags = "coalesced" if t.is_coalesced() else ""
                return encode_tensor_spec(TensorSpec(parts[1], tuple(t.shape), None, 0, "sparse_coo", parts, flags))
            if t.layout in (torch.sparse_csr, torch.sparse_bsr):
                parts3 = (add(t.crow_indices()), add(t.col_indices()), add(t.values()))
            elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
                parts3 = (add(t.ccol_indices()), add(t.row_indices()), add(t.values()))
            else:
                raise NotEncodable(f"a tensor of layout {t.layout} cannot be stored")
            return encode_tensor_spec(
                TensorSpec(parts3[2], tuple(t.shape), None, 0, name_torch_dtype(t.layout), parts3)
            )
        return encode_torch_word(x)

    return encode_argument_tree(tuple(args), leaf), encode_argument_tree(dict(kwargs), leaf), arrays


def encode_torch_word(x: Any) -> Any | None:
    """The JSON node of an argument of torch's that is no tensor; None for what is none of torch's own."""
    import torch

    if isinstance(x, (torch.dtype, torch.layout, torch.memory_format)):
        return {"$": "torch." + type(x).__name__, "name": name_torch_dtype(x)}
    if isinstance(x, torch.device):
        return {"$": "torch.device"}
    if isinstance(x, torch.Size):
        return {"$": "tuple", "v": list(x)}
    return None


def make_tensor_decoder(
    arrays: Callable[[int], np.ndarray], device: str, place: Callable[[int, np.ndarray], Any] | None = None
) -> Callable[[str, dict[str, Any]], Any]:
    """The ``leaf`` of `tasks.arrays.tree.decode_argument_tree` that makes fresh tensors on ``device`` (writing to them is safe).

    place: makes the tensor of an array's values, given its number, somewhere else than in fresh memory."""
    import torch

    guard = PageGuard.of_process() if device == "cpu" else None

    def fresh(i: int) -> Any:
        array = arrays(i)
        if place is not None:
            return place(i, array)
        if device == "cpu":
            return tensor_from_numpy(array.copy() if guard is None else guard.copy(array))
        return tensor_from_numpy(array if array.flags.writeable else array.copy()).to(device)

    def leaf(kind: str, node: dict[str, Any]) -> Any:
        if kind == "tensor":
            layout = node.get("layout")
            if layout is None:
                strides = node.get("strides")
                if strides and min(strides) < 0:  # which torch has not
                    return tensor_from_numpy(
                        make_contiguous_tensor(arrays(node["id"]), read_tensor_spec(node)).copy()
                    ).to(device)
                tensor = fresh(node["id"])
                tensor = tensor.to(torch.complex32) if node.get("flags") == COMPLEX32 else tensor
                return tensor if strides is None else torch.as_strided(tensor, node["shape"], strides, node["offset"])
            parts, shape = [fresh(i) for i in node["parts"]], node["shape"]
            if layout == "sparse_coo":
                coo = torch.sparse_coo_tensor(parts[0], parts[1], shape, check_invariants=False)
                return coo._coalesced_(node.get("flags") == "coalesced")
            return torch.sparse_compressed_tensor(*parts, shape, layout=getattr(torch, layout), check_invariants=False)
        if kind in ("torch.dtype", "torch.layout", "torch.memory_format"):
            return getattr(torch, node["name"])
        if kind == "torch.device":
            return torch.device(device)
        raise NotEncodable(f"unknown node {kind!r} in a stored argument tree")

    return leaf


def replace_device_in_tree(value: Any, device: str) -> Any:
    """Decoded arguments with the name of the device that samples are made for, "cpu", replaced: factory functions and
    ``to`` are given it as a string."""
    if isinstance(value, (list, tuple)):
        made = [replace_device_in_tree(x, device) for x in value]
        return type(value)(made) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {k: replace_device_in_tree(x, device) for k, x in value.items()}
    return device if isinstance(value, str) and value == "cpu" else value


def list_output_tensors(value: Any) -> list[Any]:
    """The outputs of a torch call, flat: tensors and scalars of nested tuples, lists and dicts; None left out."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return [] if value is None else [value]
    return [leaf for x in value for leaf in list_output_tensors(x)]


def dense(leaf: Any) -> Any:
    """A tensor leaf as a dense CPU tensor without gradient; scalars as they are."""
    import torch

    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.requires_grad:
        leaf = leaf.detach()
    if leaf.layout is not torch.strided:
        leaf = leaf.to_dense()
    elif leaf.is_quantized:
        leaf = leaf.dequantize()
    return leaf if leaf.is_cpu else leaf.cpu()


def list_output_arrays(value: Any) -> list[np.ndarray]:
    """What a torch call returned, flat and dense, as numpy arrays (see `list_output_tensors`, `dense`, `make_output_array`)."""
    import torch

    if type(value) is torch.Tensor and value.dtype is torch.float64 and value.layout is torch.strided:
        return [tensor_to_numpy(value.detach() if value.requires_grad else value)]  # what nearly every reference is
    return [make_output_array(dense(x)) for x in list_output_tensors(value)]


def make_output_array(leaf: Any) -> np.ndarray:
    """A dense leaf (see `dense`) as numpy array; Python scalars become 0-d arrays of float64, int64, …"""
    import torch

    if isinstance(leaf, torch.Tensor):
        return tensor_to_numpy(leaf)
    if isinstance(leaf, (bool, int, float, complex)):
        return np.asarray(leaf)
    return np.asarray(str(leaf), dtype=object)
