"""Published reports of wrong results in ONNX Runtime and OpenVINO, as kernels that call the runtime themselves."""

import numpy as np

from tasks import op


def _model(op_type, opset, feeds, out_type, constants=(), **attributes):
    """Serialized model of one node over ``feeds`` and the named ``constants``."""
    from onnx import TensorProto, helper, numpy_helper

    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    names = [*feeds, *(n for n, _ in constants)]
    if op_type == "Resize":
        names.insert(1, "")  # no region of interest
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["out"], **attributes)],
        op_type,
        inputs,
        [helper.make_tensor_value_info("out", getattr(TensorProto, out_type), None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()


def _onnxruntime(model, feeds):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def _openvino(model, feeds):
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    return np.array(compiled(list(feeds.values()))[0])


@op(
    name="onnxruntime_28450_reduce_sum",
    framework="numpy",
    reference=lambda x: np.sum(x),
    op_class="reduction",
    inputs={"x": {"shape": ["n"], "low": 0.0999, "high": 0.1001}},
    dims={"n": [100, 1 << 20]},
)
def reduce_sum(x):
    """https://github.com/microsoft/onnxruntime/issues/28450: float32 accumulation in a few lanes."""
    return _onnxruntime(_model("ReduceSum", 13, {"x": x}, "FLOAT", keepdims=0), {"x": x})


@op(
    name="onnxruntime_22557_sigmoid",
    framework="numpy",
    reference=lambda x: 1 / (1 + np.exp(-x)),
    op_class="elementary",
    inputs={"x": {"shape": ["n"], "low": -19, "high": -15}},
    dims={"n": [4, 64]},
)
def sigmoid(x):
    """https://github.com/microsoft/onnxruntime/issues/22557: the tail below -16 has no right digit."""
    return _onnxruntime(_model("Sigmoid", 13, {"x": x}, "FLOAT"), {"x": x})


@op(
    name="openvino_35837_cumsum",
    framework="numpy",
    reference=lambda x: np.cumsum(x),
    op_class="exact",
    dtypes=["int64"],
    inputs={"x": {"shape": [5], "data": [1 << 30, 1 << 30, 1 << 30, 5, 7]}},
)
def cumsum(x):
    """https://github.com/openvinotoolkit/openvino/issues/35837: int64 is narrowed to int32."""
    return _openvino(_model("CumSum", 14, {"x": x}, "INT64", [("axis", np.int64(0))]), {"x": x})


def _half(n, a=-0.75):
    """(n/2, n) weights of cubic interpolation to half the size with antialiasing, half-pixel centres."""
    centre = 2 * (np.arange(n // 2)[:, None] + 0.5)
    t = np.abs(np.arange(n) + 0.5 - centre) / 2
    near, far = (a + 2) * t**3 - (a + 3) * t**2 + 1, a * (t**3 - 5 * t**2 + 8 * t - 4)
    weights = np.where(t <= 1, near, np.where(t < 2, far, 0.0))
    return weights / weights.sum(axis=1, keepdims=True)


@op(
    name="openvino_35893_resize_antialias",
    framework="numpy",
    op_class="contraction",
    reference=lambda x: _half(x.shape[2]) @ x @ _half(x.shape[3]).T,
    inputs={"x": [1, "channels", "size", "size"]},
    dims={"channels": [1, 3], "size": [6, 16]},
)
def resize_antialias(x):
    """https://github.com/openvinotoolkit/openvino/issues/35893: Resize ignores antialias in cubic mode."""
    model = _model(
        "Resize",
        18,
        {"x": x},
        "FLOAT",
        [("scales", np.array([1, 1, 0.5, 0.5], np.float32))],
        mode="cubic",
        coordinate_transformation_mode="half_pixel",
        antialias=1,
        exclude_outside=1,
    )
    return _openvino(model, {"x": x})
