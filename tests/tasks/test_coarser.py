"""A model that was computed in a coarser precision than anybody asked for is told by its errors; other faults are not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec, encode_argument_tree
from tasks.graphs.coarse_products import list_product_weights, round_coarse_factor, round_product_weights
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import reference_and_floor
from tasks.judge import coarser_precision, policy_files
from tasks.judge.error_metrics import compare_outputs
from tasks.judge.policy import judge_by_policy
from tasks.model import EPS, Leaf, OpClass, Status, round_to_dtype
from tests import residual_model

POLICY = policy_files.load_policy("error_units")


@cache
def prepared() -> tuple[Any, dict[str, np.ndarray], list[Leaf], dict[str, list[np.ndarray]]]:
    """(a model, its inputs, what its outputs are to be, what rounded weights make of them)."""
    model = residual_model.residual()
    graph, feeds = EvaluatedGraph(model), residual_model.inputs(model)
    references, floors, *_ = reference_and_floor(graph, feeds, 4)
    leaves = [Leaf("float32", y.shape, y, noise, meaning="logits") for y, noise in zip(references, floors)]
    return (
        model,
        feeds,
        leaves,
        {name: round_product_weights(graph, feeds, name) for name in coarser_precision.SUSPECTS},
    )


def run(model: Any) -> list[np.ndarray]:
    """The outputs of a model in ONNX Runtime, on the inputs of the prepared one."""
    ort = pytest.importorskip("onnxruntime")
    return list(ort.InferenceSession(model.SerializeToString()).run(None, prepared()[1]))


def told(outputs: Sequence[np.ndarray]) -> str:
    """The precision that is suspected, "" for none."""
    _, _, leaves, twins = prepared()
    found = coarser_precision.suspect_coarser_precision(outputs, leaves, twins, POLICY, "models:tiny", "float32")
    return found.precision if found else ""


def status(outputs: Sequence[np.ndarray], precision: str = "") -> Status:
    metrics = compare_outputs(outputs, prepared()[2], OpClass.MODEL, precision)
    return judge_by_policy(metrics, POLICY, "models:tiny", OpClass.MODEL, "float32", "float64", precision)[0]


def test_the_weights_of_products_are_found_and_no_others() -> None:
    assert list_product_weights(EvaluatedGraph(prepared()[0])) == {"up0", "down0", "up1", "down1", "head"}


def test_numbers_are_rounded_to_so_many_digits() -> None:
    x = np.linspace(-7, 7, 1000)
    assert np.array_equal(round_coarse_factor(x, "bfloat16"), round_to_dtype(x, "bfloat16"))
    assert np.abs(round_coarse_factor(x, "tfloat32") / x - 1).max() <= EPS["tfloat32"] / 2


def test_a_sound_runtime_passes_and_is_suspected_of_nothing() -> None:
    outputs = run(prepared()[0])
    assert status(outputs) is Status.PASS and told(outputs) == ""


@pytest.mark.parametrize("precision", coarser_precision.SUSPECTS)
def test_a_runtime_that_computes_in_less_is_wrong_and_told_by_its_errors(precision: str) -> None:
    outputs = run(residual_model.with_products_in(prepared()[0], precision))
    assert status(outputs) is Status.WRONG and told(outputs) == precision
    assert status(outputs, precision) is Status.PASS  # had it been declared


def test_openvino_is_told_where_its_own_default_is_bfloat16() -> None:
    pytest.importorskip("openvino")
    from tasks.backends import BackendSpec
    from tasks.model import Form

    model, feeds, _, _ = prepared()
    args, data = encode_argument_tree((TensorSpec(0),)), model.SerializeToString()
    form = Form("onnx", "models:tiny", "float32", list(feeds.values()), args=args, model=data)
    for option, unasked in (("f32", False), ("default", True)):
        backend = BackendSpec.parse("o", "openvino-cpu", {"inference_precision": option}).create()
        info = backend.start()
        outputs = [np.asarray(x) for x in backend.build(form).run()]
        coarse = info.compute_precision == "bfloat16"  # a CPU without bfloat16 units computes in float32
        assert info.unasked == (unasked and coarse)
        assert status(outputs) is (Status.WRONG if coarse else Status.PASS)
        assert told(outputs) == ("bfloat16" if coarse else "")
        assert status(outputs, info.compute_precision) is Status.PASS


def _edited(model: Any, name: str, change: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(model)
    (tensor,) = (x for x in made.graph.initializer if x.name == name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), name))
    return made


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gain1", lambda x: np.float32(1.001) * x),
        ("bias0", np.zeros_like),
        ("root", lambda x: x * np.float32(1.002)),
        (
            "up1",
            lambda x: round_coarse_factor(x.astype(np.float64), "bfloat16").astype(np.float32),
        ),  # one layer is no precision
        ("head", lambda x: np.roll(x, 1, 1)),
        ("down0", lambda x: np.where(np.arange(x.shape[0])[:, None] == 3, np.float32(0), x)),
    ],
)
def test_other_faults_are_wrong_and_tell_of_no_precision(name: str, change: Any) -> None:
    outputs = run(_edited(prepared()[0], name, change))
    assert status(outputs) is Status.WRONG and told(outputs) == ""


def test_what_is_no_output_of_the_model_tells_of_nothing() -> None:
    right = run(prepared()[0])
    for outputs in ([np.zeros_like(right[0])], [right[0][::-1]], [round_to_dtype(right[0].astype(float), "bfloat16")]):
        outputs = [x.astype(np.float32) for x in outputs]
        assert status(outputs) is Status.WRONG and told(outputs) == ""
