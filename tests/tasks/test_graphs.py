"""Whole ONNX graphs in float64: every operator against the node suite or torch, what noise moves, what is freed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tasks.catalogs.onnx import node_suite
from tasks.counterparts import by_torch
from tasks.graphs.adequacy import find_unobserved_layers, list_graph_weight_layers
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import compute_node_floor, reference_and_floor
from tasks.graphs.widening import NoOracle
from tasks.model import EPS, compute_row_floor
from tasks.operators.table import EVALUATED

RNG = np.random.default_rng(20)
BOTH = pytest.mark.parametrize("operators", [EVALUATED, by_torch.list_operators_by_torch()], ids=["numpy", "torch"])


def model(
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: list[str],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model of nodes; inputs: shapes by name, or arrays whose dtype and shape are taken."""
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(x.dtype) if isinstance(x, np.ndarray) else kind,
            list(x.shape if isinstance(x, np.ndarray) else x),
        )
        for name, x in inputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        infos,
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run_one(
    op: str,
    inputs: list[np.ndarray | None],
    outputs: int = 1,
    opset: int = 20,
    operators: Any = EVALUATED,
    **attributes: Any,
) -> list[Any]:
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    made = [f"y{i}" for i in range(outputs)]
    given = {name: x for name, x in zip(names, inputs) if x is not None}
    node = helper.make_node(op, names, made, **attributes)
    graph = EvaluatedGraph(model([node], given, made, opset=opset, kind=TensorProto.DOUBLE), operators)
    found = graph.run(given)
    return [found[name] for name in made]


@BOTH
def test_every_operator_computes_what_the_node_suite_expects(operators: Any) -> None:
    cases = node_suite._list_suite_cases()
    judged = set()
    for name, case in cases.items():
        op = node_suite._find_case_op_type(name, cases)
        if op not in {*EVALUATED, "If", "Loop", "Scan", "Resize", "Attention"} or name == "test_scan_sum":
            continue  # that one is of opset 8
        graph = EvaluatedGraph(case.model, operators)
        for inputs, outputs in case.data_sets:
            found = graph.run({x.name: node_suite._make_suite_dense(v) for x, v in zip(case.model.graph.input, inputs)})
            for value, expected in zip(case.model.graph.output, outputs):
                if expected is None or isinstance(expected, list):
                    continue
                a, y = found[value.name], node_suite._to_dense_array(expected)
                assert a.shape == y.shape, name
                eps = EPS.get(y.dtype.name, 0.0)
                # DynamicQuantizeLinear's expected output was rounded from a float32 that lies at a tie
                atol = 1.0 if op == "DynamicQuantizeLinear" and not eps else max(case.atol, 8 * eps)
                tolerance = {"rtol": max(case.rtol, 8 * eps) if eps else 0.0, "atol": atol}
                np.testing.assert_allclose(a.astype(np.float64), y.astype(np.float64), err_msg=name, **tolerance)
                judged.add(op)
    assert judged >= {
        "Conv",
        "ConvTranspose",
        "LSTM",
        "GRU",
        "LayerNormalization",
        "MaxPool",
        "AveragePool",
        "Loop",
        "If",
    }


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (2, 2, 1), (6, 1, 2), (6, 2, 1)])
def test_convolutions_agree_with_torch(dims: int, groups: int, stride: int, dilation: int) -> None:
    x, bias = RNG.normal(size=(2, 6, *(9, 7, 8)[:dims])), RNG.normal(size=12)
    w = RNG.normal(size=(12, 6 // groups, *(3, 2, 3)[:dims]))
    how = {"strides": [stride] * dims, "dilations": [dilation] * dims, "pads": [1] * (2 * dims), "group": groups}
    (y,) = run_one("Conv", [x, w, bias], **how)
    conv = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
    expected = conv(*map(torch.from_numpy, (x, w, bias)), stride, 1, dilation, groups)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-12, atol=1e-12)

    w = RNG.normal(size=(6, 12 // groups, *(3, 2, 3)[:dims]))
    more = stride - 1
    (y,) = run_one("ConvTranspose", [x, w, bias], output_padding=[more] * dims, **how)
    back = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[dims - 1]
    expected = back(*map(torch.from_numpy, (x, w, bias)), stride, 1, more, groups, dilation)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-12, atol=1e-12)


def test_a_convolution_that_is_unfolded_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = RNG.normal(size=(1, 4, 23, 9)), RNG.normal(size=(5, 4, 3, 3))
    whole = run_one("Conv", [x, w], strides=[2, 1])
    monkeypatch.setattr("tasks.operators.spatial._UNFOLDED", 1)
    np.testing.assert_allclose(run_one("Conv", [x, w], strides=[2, 1]), whole, rtol=1e-13)


@BOTH
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("count", [0, 1])
def test_pools_agree_with_torch(operators: Any, ceil: int, count: int) -> None:
    x = RNG.normal(size=(1, 3, 11, 8))
    how = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": ceil, "operators": operators}
    (y,) = run_one("MaxPool", [x], **how)
    expected = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, 2, 1, ceil_mode=bool(ceil))
    np.testing.assert_array_equal(y, expected.numpy())
    (y,) = run_one("AveragePool", [x], count_include_pad=count, **how)
    expected = torch.nn.functional.avg_pool2d(torch.from_numpy(x), 3, 2, 1, bool(ceil), bool(count))
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-13)


@BOTH
@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_a_pool_far_larger_than_its_image_costs_what_the_image_does(operators: Any, auto: str) -> None:
    x = RNG.normal(size=(2, 3, 7, 5))
    size = [200_000, 300_000]  # padded for, an image would have 480 GB
    how = {"kernel_shape": size, "strides": size, "ceil_mode": 1, "auto_pad": auto, "operators": operators}
    np.testing.assert_array_equal(run_one("MaxPool", [x], **how)[0], x.max((2, 3), keepdims=True))
    mean = run_one("AveragePool", [x], **how)[0]
    np.testing.assert_allclose(mean, x.mean((2, 3), keepdims=True), rtol=1e-13)
    padded = run_one("AveragePool", [x], count_include_pad=1, **how)[0]
    with_pads = 35 / np.prod(size) if auto != "NOTSET" else 1.0
    np.testing.assert_allclose(padded, mean * with_pads, rtol=1e-13)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_agree_with_torch(kind: str) -> None:
    layer = getattr(torch.nn, kind)(5, 4, bidirectional=True, dtype=torch.float64)
    x = torch.from_numpy(RNG.normal(size=(7, 3, 5)))
    order = [0, 3, 1, 2] if kind == "LSTM" else [1, 0, 2]  # torch has i, f, g, o and r, z, n

    def stacked(*names: str) -> np.ndarray:
        parts = [
            np.concatenate(
                [
                    np.concatenate([np.split(layer.state_dict()[f"{name}{end}"].numpy(), len(order))[k] for k in order])
                    for name in names
                ]
            )
            for end in ("", "_reverse")
        ]
        return np.stack(parts)

    w, r, b = stacked("weight_ih_l0"), stacked("weight_hh_l0"), stacked("bias_ih_l0", "bias_hh_l0")
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    y, h, *_ = run_one(kind, [x.numpy(), w, r, b], outputs=2, hidden_size=4, direction="bidirectional", **more)
    with torch.no_grad():
        expected, last = layer(x)
    np.testing.assert_allclose(np.swapaxes(y, 1, 2).reshape(7, 3, 8), expected.numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(h, (last[0] if kind == "LSTM" else last).numpy(), rtol=1e-12, atol=1e-13)


def test_a_recurrent_layer_stops_at_the_length_of_each_sequence() -> None:
    x, w, r = RNG.normal(size=(6, 2, 3)), RNG.normal(size=(2, 16, 3)), RNG.normal(size=(2, 16, 4))
    how = {"hidden_size": 4, "direction": "bidirectional", "outputs": 2}
    lengths = np.array([6, 3], np.int32)
    y, last = run_one("LSTM", [x, w, r, None, lengths], **how)
    alone, last_alone = run_one("LSTM", [x[:3, 1:], w, r], **how)
    np.testing.assert_allclose(y[:3, :, 1:], alone, rtol=1e-13)
    np.testing.assert_allclose(last[:, 1:], last_alone, rtol=1e-13)
    assert not y[3:, :, 1].any()


def test_functions_of_one_number_keep_their_digits() -> None:
    x = np.concatenate([RNG.normal(size=200) * 4, [-30.0, -6.0, 0.0, 40.0]])
    t = torch.from_numpy(x)
    functional = torch.nn.functional
    for op, expected in {
        "Erf": torch.erf(t),
        "Sigmoid": torch.sigmoid(t),
        "HardSwish": functional.hardswish(t),
        "Mish": functional.mish(t),
    }.items():
        np.testing.assert_allclose(run_one(op, [x])[0], expected.numpy(), rtol=1e-13, atol=1e-300, err_msg=op)
    np.testing.assert_allclose(run_one("Gelu", [x])[0], functional.gelu(t).numpy(), rtol=1e-12, atol=1e-15)
    tanh = functional.gelu(t, approximate="tanh").numpy()
    np.testing.assert_allclose(run_one("Gelu", [x], approximate="tanh")[0], tanh, rtol=1e-12, atol=1e-15)
    far = np.array([-9.0, -11.5])  # by mpmath, 50 digits
    for operators in (EVALUATED, by_torch.list_operators_by_torch()):
        (y,) = run_one("Gelu", [far], operators=operators)
        np.testing.assert_allclose(y, [-1.01572956536e-18, -7.58513716303e-30], rtol=1e-11)
    # alpha = 0 is no missing alpha
    assert run_one("HardSigmoid", [x], alpha=0.0, beta=0.25)[0].tolist() == [0.25] * len(x)


def test_normalisations_agree_with_torch() -> None:
    x, scale, bias = RNG.normal(size=(2, 6, 5, 4)), RNG.normal(size=6), RNG.normal(size=6)
    mean, var = RNG.normal(size=6), RNG.random(6) + 0.5
    t = [torch.from_numpy(v) for v in (x, scale, bias, mean, var)]
    eps = float(np.float32(1e-3))
    functional = torch.nn.functional
    expected = functional.batch_norm(t[0], t[3], t[4], t[1], t[2], eps=eps)
    for opset in (9, 15):  # onnx's evaluator trains in opset 9
        (y,) = run_one("BatchNormalization", [x, scale, bias, mean, var], opset=opset, epsilon=1e-3)
        np.testing.assert_allclose(y, expected.numpy(), rtol=1e-12)
    expected = functional.group_norm(t[0], 3, t[1], t[2], eps)
    (y,) = run_one("GroupNormalization", [x, scale, bias], opset=21, num_groups=3, epsilon=1e-3)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-11)
    w = RNG.normal(size=4)
    (y,) = run_one("LayerNormalization", [x, w], epsilon=1e-3)
    np.testing.assert_allclose(y, functional.layer_norm(t[0], (4,), torch.from_numpy(w), None, eps).numpy(), rtol=1e-11)


def test_a_softmax_of_an_old_opset_goes_along_all_axes_from_its_own_on() -> None:
    x = RNG.normal(size=(2, 3, 4))
    (y,) = run_one("Softmax", [x], opset=11)
    np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x.reshape(2, -1)), 1).numpy().reshape(x.shape))
    (y,) = run_one("Softmax", [x], opset=13)
    np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x), 2).numpy())


@pytest.mark.parametrize(
    ("mode", "how", "expected"),
    [
        ("nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, {"mode": "nearest"}),
        ("linear", {"coordinate_transformation_mode": "half_pixel"}, {"mode": "bilinear", "align_corners": False}),
        ("linear", {"coordinate_transformation_mode": "align_corners"}, {"mode": "bilinear", "align_corners": True}),
        ("cubic", {"coordinate_transformation_mode": "half_pixel"}, {"mode": "bicubic", "align_corners": False}),
    ],
)
def test_resize_agrees_with_torch(mode: str, how: dict[str, str], expected: dict[str, Any]) -> None:
    x, sizes = RNG.normal(size=(1, 2, 6, 5)), np.array([1, 2, 9, 11])
    (y,) = run_one("Resize", [x, None, None, sizes], mode=mode, cubic_coeff_a=-0.75, **how)
    by_torch = torch.nn.functional.interpolate(torch.from_numpy(x), (9, 11), **expected)
    np.testing.assert_allclose(y, by_torch.numpy(), rtol=1e-12, atol=1e-13)


def test_a_loop_stacks_what_each_turn_gives() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["again"]),
            helper.make_node("Identity", ["next"], ["row"]),
        ],
        "body",
        [helper.make_tensor_value_info(n, k, None) for n, k in (("i", 7), ("go", 9), ("state", 1))],
        [helper.make_tensor_value_info(n, k, None) for n, k in (("again", 9), ("next", 1), ("row", 1))],
    )
    loop = helper.make_node("Loop", ["turns", "", "x"], ["last", "rows"], body=body)
    w, x = np.full((2, 3), 2.0, np.float32), np.ones((2, 3), np.float32)
    graph = EvaluatedGraph(model([loop], {"x": x}, ["last", "rows"], {"w": w, "turns": np.array(3)}))
    found = graph.run({"x": x})
    assert found["last"][0, 0] == 8.0 and found["rows"].shape == (3, 2, 3)
    assert [n.op for n in graph.block.walk()] == ["Loop", "Mul", "Identity", "Identity"]
    references, floors, *_ = reference_and_floor(graph, {"x": x}, 4)
    assert floors[0].max() > 2 * EPS["float32"] * references[0].max()  # moved at every turn, and so is w


def test_a_tensor_is_freed_when_nothing_reads_it_any_more() -> None:
    size = 1 << 17  # 1 MiB of float64
    nodes = [helper.make_node("Add", [f"x{i}", f"x{i}"], [f"x{i + 1}"]) for i in range(40)]
    graph = EvaluatedGraph(model(nodes, {"x0": [size]}, ["x40"]))
    x = np.ones(size, np.float32)
    tracemalloc.start()
    try:
        found = graph.run({"x0": x}, keep=["x20"])
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
    assert found["x20"][0] == 2.0**20 and found["x40"][0] == 2.0**40 and set(found) == {"x20", "x40"}


def test_noise_moves_weights_and_outputs_but_nothing_that_says_what_is_computed() -> None:
    weights = {
        "w": RNG.normal(size=(1, 1, 1, 8)).astype(np.float32),
        "scales": np.array([1, 1, 2, 2.0], np.float32),
        "exponents": np.full((1, 1, 8, 16), 2.0, np.float32),
        "two": np.array(2.0, np.float32),
        "times": np.array([1.0, 1.0, 1.0, 1.0], np.float32),
    }
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["product"]),
        helper.make_node("Mul", ["scales", "times"], ["zoom"]),
        helper.make_node("Resize", ["product", "", "zoom"], ["large"], mode="linear"),
        helper.make_node("Neg", ["large"], ["negative"]),
        helper.make_node("Pow", ["negative", "exponents"], ["powers"]),
        helper.make_node("Mul", ["powers", "two"], ["y"]),
    ]
    x = RNG.normal(size=(1, 1, 4, 8)).astype(np.float32)
    graph = EvaluatedGraph(model(nodes, {"x": x}, ["y"], weights))
    assert set(graph.movable) == {"w"}
    moved: dict[str, float] = {}

    def move(name: str, value: np.ndarray, eps: float) -> np.ndarray:
        moved[name] = eps
        return value

    graph.run({"x": x}, move=move)
    assert set(moved) == {"x", "w", "product", "large", "powers", "y"}  # Neg rounds nothing; zoom ends as a scale
    assert set(moved.values()) == {EPS["float32"]}
    references, floors, rows, *_ = reference_and_floor(graph, {"x": x}, 4)
    assert np.isfinite(floors[0]).all() and floors[0].shape == references[0].shape
    np.testing.assert_array_equal(rows[0], compute_row_floor(floors[0]))


def test_a_model_of_integers_has_a_floor_and_float32_lies_within_it_where_bfloat16_does_not() -> None:
    table, w = (RNG.normal(size=s).astype(np.float32) / 8 for s in ((50, 64), (64, 64)))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["hidden"]),
        helper.make_node("Gelu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "w"], ["y"]),
    ]
    ids = RNG.integers(0, 50, (2, 12))
    graph = EvaluatedGraph(model(nodes, {"ids": ids}, ["y"], {"table": table, "w": w}, opset=20))
    (y,), _, (floor,), *_ = reference_and_floor(graph, {"ids": ids}, 4)

    def units(round_to: Any) -> float:
        hidden = torch.from_numpy(table[ids]) @ torch.from_numpy(w)
        a = round_to(torch.nn.functional.gelu(hidden)) @ round_to(torch.from_numpy(w))
        return float((np.abs(a.double().numpy() - y) / (EPS["float32"] * np.abs(y) + floor)).max())

    assert units(lambda t: t) < 8
    assert units(lambda t: t.bfloat16().float()) > 320


def test_a_node_alone_has_an_element_floor() -> None:
    w = RNG.normal(size=(16, 16)).astype(np.float32)
    graph = EvaluatedGraph(model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [4, 16]}, ["y"], {"w": w}))
    x = RNG.normal(size=(4, 16))
    (floor,) = compute_node_floor(graph, graph.nodes[0], [x, w], 4)
    size = EPS["float32"] * (np.abs(x) @ np.abs(w))
    assert (floor < 2 * size).all() and (floor > 0).all() and floor.mean() > 0.05 * size.mean()


def test_a_transform_in_a_graph_has_a_floor_where_it_cancels() -> None:
    x = RNG.normal(size=(1, 16, 1)).astype(np.float32)
    both = np.concatenate([x, x[:, ::-1]], axis=1)  # what is the same from both ends has sines that cancel
    (y,), (floor,), *_ = reference_and_floor(
        EvaluatedGraph(model([helper.make_node("DFT", ["x"], ["y"])], {"x": both}, ["y"])), {"x": both}, 4
    )
    alone = torch.fft.fft(torch.from_numpy(both[0, :, 0]))
    off = np.abs(np.stack([alone.real.numpy(), alone.imag.numpy()], axis=-1) - y[0])
    assert floor.min() >= EPS["float32"] * np.abs(y).max()
    assert (off < 8 * floor[0]).all()


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [
        ("Split", [np.ones(12), np.array([2, 4])], 2),
        ("Split", [np.ones(6), np.array([2, 2, 2])], 2),
        ("ReverseSequence", [np.ones((2, 4)), np.array([4, 3, 2, 1])], 1),
        ("NegativeLogLikelihoodLoss", [np.ones((1, 5)), np.array([3]), np.ones(2)], 1),
        ("NegativeLogLikelihoodLoss", [np.ones((1, 5)), np.array([5])], 1),
        ("SoftmaxCrossEntropyLoss", [np.ones((1, 5)), np.array([3]), np.ones(2)], 1),
    ],
)
def test_what_does_not_fit_together_has_no_reference(op: str, inputs: list[Any], outputs: int) -> None:
    with pytest.raises(NoOracle, match="left open"):
        run_one(op, inputs, outputs)


def test_the_floor_of_a_sum_lets_a_device_take_subnormal_numbers_as_nothing() -> None:
    w = (RNG.normal(size=(16, 16)) * 1e-40).astype(np.float32)  # a channel of a trained network that died
    w[:, 8:] = RNG.normal(size=(16, 8))
    graph = EvaluatedGraph(model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [4, 16]}, ["y"], {"w": w}))
    x = RNG.normal(size=(4, 16))
    (floor,) = compute_node_floor(graph, graph.nodes[0], [x, w], 4)
    (y,) = graph.run_node(graph.nodes[0], [x, w])
    assert (np.abs(y[:, :8]) < floor[:, :8]).all()
    assert (np.abs(y[:, 8:]) > 1e4 * floor[:, 8:]).any(axis=0).all()


def test_a_number_below_the_least_of_float16_may_become_nothing() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["low"], to=TensorProto.FLOAT16)]
    nodes += [helper.make_node("Cast", ["low"], ["y"], to=TensorProto.FLOAT)]
    graph = EvaluatedGraph(model(nodes, {"x": [3]}, ["y"]))
    x = np.array([8.6e-9, 1.0, -2e-8], np.float32)
    (y,), (floor,), *_ = reference_and_floor(graph, {"x": x}, 4)
    error = np.abs(x.astype(np.float16).astype(np.float64) - y)
    assert (error <= 1.5 * floor).all() and (floor < 2e-3 * np.abs(y) + 1e-7).all()


def test_nodes_without_a_name_or_with_one_name_are_told_apart() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        *(helper.make_node("Relu", [a], [b], name="n") for a, b in ("ab", "by")),
    ]
    graph = EvaluatedGraph(model(nodes, {"x": [2]}, ["y"]))
    assert [node.name for node in graph.nodes] == ["Relu_a", "n", "n#2"]
    assert graph.node("n#2").outputs == ("y",)


def test_what_has_no_float64_evaluation_is_said_in_one_line() -> None:
    custom = helper.make_node("Fused", ["x"], ["y"], domain="com.vendor", name="here")
    proto = model([custom], {"x": [2]}, ["y"])
    proto.opset_import.append(helper.make_opsetid("com.vendor", 1))
    with pytest.raises(NoOracle, match=r"node 'here': com.vendor.Fused is no operator of ONNX: .+ user") as caught:
        EvaluatedGraph(proto).run({"x": np.ones(2, np.float32)})
    assert "\n" not in str(caught.value)
    grid = helper.make_node("MelWeightMatrix", ["a", "b", "c", "d", "e"], ["y"], name="mel")
    values = [np.array(v) for v in (8, 16, 8192)] + [np.array(v, np.float32) for v in (0.0, 4096.0)]
    given = dict(zip("abcde", values))
    with pytest.raises(NoOracle, match="onnx computes MelWeightMatrix in float32"):
        EvaluatedGraph(model([grid], given, ["y"])).run(given)


def test_a_layer_whose_weights_can_be_scaled_unnoticed_is_named() -> None:
    w = RNG.normal(size=(16, 16)).astype(np.float32)
    zero = np.zeros(16, np.float32)  # a residual branch whose last gain is zero hides what is before it

    def hidden(gain: np.ndarray) -> list[str]:
        nodes = [
            helper.make_node("MatMul", ["x", "inside"], ["a"]),
            helper.make_node("Mul", ["a", "gain"], ["b"]),
            helper.make_node("Add", ["x", "b"], ["c"]),
            helper.make_node("MatMul", ["c", "head"], ["y"]),
        ]
        graph = EvaluatedGraph(model(nodes, {"x": [4, 16]}, ["y"], {"inside": w, "gain": gain, "head": w}))
        feeds = {"x": RNG.normal(size=(4, 16)).astype(np.float32)}
        references, _, rows, *_ = reference_and_floor(graph, feeds, 4)
        assert find_unobserved_layers(graph, feeds, references, rows, among=["head"]) == []
        return find_unobserved_layers(graph, feeds, references, rows)

    assert hidden(zero) == ["inside"]
    assert hidden(zero + 1) == []


def test_a_layer_inside_a_branch_is_looked_at_too() -> None:
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["inner"])],
        "then",
        [],
        [helper.make_tensor_value_info("inner", 1, None)],
    )
    node = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    weights = {"w": RNG.normal(size=(8, 8)).astype(np.float32), "yes": np.array(True)}
    graph = EvaluatedGraph(model([node], {"x": [2, 8]}, ["y"], weights))
    feeds = {"x": RNG.normal(size=(2, 8)).astype(np.float32)}
    references, _, rows, *_ = reference_and_floor(graph, feeds, 4)
    assert list_graph_weight_layers(graph) == ["w"] and find_unobserved_layers(graph, feeds, references, rows) == []
    assert find_unobserved_layers(
        graph, {"x": np.zeros((2, 8), np.float32)}, [np.zeros((2, 8))], [np.zeros((2, 8))]
    ) == ["w"]
