"""Argument trees: plain values come back as they were; tensors as views; what has no JSON form is refused by name."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tasks.arrays.tree import (
    NotEncodable,
    TensorSpec,
    decode_argument_tree,
    encode_argument_tree,
    encode_tensor_spec,
    list_tensor_specs,
    read_tensor_spec,
)


def no_leaf(value: Any) -> None:
    return None


def as_spec(kind: str, node: dict[str, Any]) -> TensorSpec:
    assert kind == "tensor"
    return read_tensor_spec(node)


def round_trip(value: Any) -> Any:
    return decode_argument_tree(json.loads(json.dumps(encode_argument_tree(value, no_leaf))), as_spec)


def same(a: Any, b: Any) -> bool:
    """Equality that tells types and signs of zero apart and NaN from nothing."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


indices = st.none() | st.integers(-5, 5)
tensors = (
    st.builds(TensorSpec, st.integers(0, 9))
    | st.builds(TensorSpec, st.integers(0, 9), st.just((2, 3)), st.just((1, 2)), st.integers(0, 3))
    | st.builds(
        TensorSpec,
        st.just(1),
        st.just((4, 4)),
        st.none(),
        st.just(0),
        st.just("sparse_coo"),
        st.just((0, 1)),
        st.sampled_from(["", "coalesced"]),
    )
)
keys = st.text() | st.integers() | st.booleans()
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.complex_numbers()
    | st.just(Ellipsis)
    | st.builds(slice, indices, indices, indices)
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
)
trees = st.recursive(
    scalars | tensors,
    lambda x: st.lists(x, max_size=4) | st.lists(x, max_size=4).map(tuple) | st.dictionaries(keys, x, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_round_trip(value: Any) -> None:
    assert same(round_trip(value), value)


@settings(max_examples=100, deadline=None)
@given(trees)
def test_every_tensor_is_found_in_order(value: Any) -> None:
    def walk(x: Any) -> list[TensorSpec]:
        if isinstance(x, TensorSpec):
            return [x]
        if isinstance(x, dict):
            x = list(x.values())
        return [t for y in x for t in walk(y)] if isinstance(x, (list, tuple)) else []

    assert list_tensor_specs(encode_argument_tree(value, no_leaf)) == walk(value)


@pytest.mark.parametrize(
    "value",
    (
        np.float32(0.1),
        np.float64(0.1),
        np.float64(-np.inf),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.float16(np.nan),
        np.complex64(1 + 2j),
        np.complex128(1 - 2.5j),
        np.longdouble(0.5),
    ),
)
def test_numpy_scalars_become_plain(value: Any) -> None:
    plain = (
        complex(value)
        if isinstance(value, np.complexfloating)
        else value.item()
        if value.itemsize < 16
        else float(value)
    )
    assert same(round_trip(value), plain)


class Thing:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "value",
    (len, lambda: 0, Thing(), Thing, object(), b"bytes", {1, 2}, iter([1]), np.zeros(2), (1).__add__, (i for i in "a")),
    ids=lambda v: type(v).__name__,
)
def test_what_has_no_json_form_is_refused_by_name(value: Any) -> None:
    for nested in (value, [value], (1, (value,)), {"k": {"j": value}}):
        with pytest.raises(NotEncodable, match=type(value).__name__):
            encode_argument_tree(nested, no_leaf)


def test_a_leaf_of_the_callers_own() -> None:
    node = encode_argument_tree(
        [np.dtype("float32"), 1], lambda x: {"$": "dtype", "name": x.name} if isinstance(x, np.dtype) else None
    )
    assert node == [{"$": "dtype", "name": "float32"}, 1]
    assert decode_argument_tree(node, lambda kind, n: (kind, n["name"])) == [("dtype", "float32"), 1]


def test_a_node_is_data_whatever_it_says() -> None:
    evil = {"$": "tuple", "v": [{"$": "os.system", "v": "true"}]}
    with pytest.raises(NotEncodable):
        decode_argument_tree(evil, lambda kind, node: (_ for _ in ()).throw(NotEncodable(kind)))
    looks_like_a_node = {"$": "tensor", "id": 3}
    assert round_trip(looks_like_a_node) == looks_like_a_node
    assert list_tensor_specs(encode_argument_tree(looks_like_a_node, no_leaf)) == []


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_strided_view_of_the_stored_span(data: st.DataObject) -> None:
    base = np.arange(120, dtype=np.float32).reshape(data.draw(st.sampled_from([(120,), (10, 12), (4, 5, 6)])))
    base = base.transpose(data.draw(st.permutations(range(base.ndim))))
    index = data.draw(hnp.basic_indices(base.shape, allow_ellipsis=False, allow_newaxis=False))
    view = base[(*(index if isinstance(index, tuple) else (index,)), ...)]
    strides = [s // 4 for s in view.strides]
    if view.size == 0:
        return
    offset = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 4
    spec = TensorSpec(0, view.shape, tuple(strides), offset)
    seen = read_tensor_spec(json.loads(json.dumps(encode_tensor_spec(spec)))).view(np.arange(120, dtype=np.float32))
    np.testing.assert_array_equal(seen, view)
    assert not seen.flags.writeable


def test_views() -> None:
    store = np.arange(12.0)
    np.testing.assert_array_equal(TensorSpec(0, (3, 2), (1, 4), 2).view(store), [[2, 6], [3, 7], [4, 8]])
    np.testing.assert_array_equal(TensorSpec(0, (2, 3), (0, 1)).view(store), [[0, 1, 2], [0, 1, 2]])  # expanded
    np.testing.assert_array_equal(TensorSpec(0, (), (), 5).view(store), 5)
    assert TensorSpec(0, (2, 0), (4, 1), 12).view(store).shape == (2, 0)
    whole = store.reshape(3, 4)
    assert TensorSpec(0).view(whole) is whole


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((13,), (1,), 0),
        ((2,), (12,), 0),
        ((1,), (1,), 12),
        ((1,), (1,), -1),
        ((2,), (-1,), 0),
        ((2, 2), (1,), 0),
        ((1 << 40,), (1,), 0),
    ],
)
def test_a_view_beyond_its_array_is_refused(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        TensorSpec(0, shape, strides, offset).view(np.arange(12.0))
