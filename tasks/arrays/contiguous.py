"""The same case with contiguous inputs: what a kernel that fails at the layout of its inputs is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import layouts
from tasks.arrays.tree import TensorSpec, list_tensor_specs, make_contiguous_tensor, map_tree_tensors
from tasks.model import Form, Status
from tasks.model.row import Row

#: How the error of a row begins that contiguous inputs would not have.
ONLY_WHERE = "only where"
#: Statuses of a kernel that did not take its inputs as they lie: a word of its own, or of what compiles it.
REFUSED = (Status.ERROR, Status.UNSUPPORTED)


def find_strided_inputs(form: Form | None) -> dict[int, str]:
    """The inputs of a form that are not contiguous, by the number of their array: what they have otherwise, in words.
    Only a call of torch's tensors, or of NumPy arrays, is given any: others have no strides."""
    if form is None or form.kind != "torch":
        return {}
    named = [(str(k), node) for k, node in enumerate(form.args["v"])] + form.kwargs["v"]
    found = [(name, spec) for name, node in named for spec in list_tensor_specs(node) if spec.strides is not None]
    return {spec.id: layouts.describe_layout(name, spec) for name, spec in found}


def has_empty_input(form: Form) -> bool:
    """Whether an input of a form has no elements."""
    return any(
        not form.arrays[spec.id].size
        for spec in list_tensor_specs([form.args, form.kwargs])
        if spec.layout == "strided"
    )


def _list_strided_inputs(form: Form, kept: int = -1) -> list[TensorSpec]:
    """The inputs of a form of torch's that are not contiguous, but for that of one number."""
    found = list_tensor_specs([form.args, form.kwargs]) if form.kind == "torch" and form.args is not None else []
    return [x for x in found if x.strides is not None and x.id != kept]


def pack_strided_arrays(form: Form, arrays: Sequence[Any], kept: int = -1) -> list[Any]:
    """The arrays of a form, those of inputs that are not contiguous as their elements alone."""
    packed = list(arrays)
    for spec in _list_strided_inputs(form, kept):
        packed[spec.id] = make_contiguous_tensor(arrays[spec.id], spec)
    return packed


def lay_out_arrays(form: Form, packed: Sequence[Any], kept: int = -1) -> list[Any] | None:
    """The arrays of a form for those that `pack_strided_arrays` makes of them; None where several elements lie at one address
    and are not the same."""
    lying = list(packed)
    for spec in _list_strided_inputs(form, kept):
        lying[spec.id] = np.array(form.arrays[spec.id])
        spec.view(lying[spec.id], writeable=True)[...] = packed[spec.id]
        if spec.view(lying[spec.id]).tobytes() != packed[spec.id].tobytes():
            return None
    return lying


def call_with_packed_arrays(
    form: Form, run: Callable[[list[Any]], Sequence[Any]]
) -> Callable[[list[Any]], Sequence[Any]]:
    """A call of the arrays of a form as one of those that `pack_strided_arrays` makes of them; it raises ValueError where
    several elements lie at one address."""

    def call(packed: list[Any]) -> Sequence[Any]:
        lying = lay_out_arrays(form, packed)
        if lying is None:
            raise ValueError("several elements of an input lie at one address")
        return run(lying)

    return call if _list_strided_inputs(form) else run


def dense(form: Form, kept: int = -1) -> Form:
    """The form with the same values in contiguous inputs, but for that of one number. What it draws and judges beside
    them lies as they do."""

    def pack(arrays: Sequence[Any]) -> list[Any]:
        return pack_strided_arrays(form, arrays, kept)

    def fresh(seed: int) -> list[Any] | None:
        assert form.fresh is not None
        found = form.fresh(seed)
        return None if found is None else pack(found)

    def judge(outputs: Sequence[Any], arrays: Sequence[Any] | None = None) -> Any:
        assert form.judge is not None
        if arrays is None:
            return form.judge(outputs)
        lying = lay_out_arrays(form, arrays, kept)
        return None if lying is None else form.judge(outputs, lying)

    def plain(node: dict[str, Any]) -> dict[str, Any]:
        if "strides" not in node or node["id"] == kept:
            return node
        return {k: v for k, v in node.items() if k not in ("shape", "strides", "offset", "declared")}

    args, kwargs = (map_tree_tensors(tree, plain) for tree in (form.args, form.kwargs))
    return replace(
        form,
        args=args,
        kwargs=kwargs,
        arrays=pack(form.arrays),
        fresh=fresh if form.fresh else None,
        judge=judge if form.judge else None,
    )


def blame_input_layout(row: Row, which: str) -> Row:
    """A row that fails because of how its inputs lie in memory, which is said first."""
    what = f"{ONLY_WHERE} {which}; the same values in contiguous inputs pass"
    return row.with_values({"error": what + (f": {row.error}" if row.error else "")})
