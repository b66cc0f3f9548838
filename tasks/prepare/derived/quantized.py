"""Samples of the quantized check: models in INT8 and float16 by ONNX Runtime's own tools."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks.catalogs.base import Sample
from tasks.checks.quantized import KINDS
from tasks.model import Group, OpClass, Vacuous, compute_row_floor
from tasks.model.errors import find_error_text
from tasks.older_python import zip_equal
from tasks.operators import table as operators
from tasks.prepare.derived.parts import Spoilt, list_part_feeds

#: Classes whose outputs no reference says.
_UNSAID = (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE)
#: What a value may be off that is rounded to a scale's step, as a share of the step: at the limit of 32 error units two
#: steps, one for a tie that falls to the other side and one for what that does to the next.
STEP = 1 / 16
#: Share of the elements of every quantised tensor that a draw moves by a step, and how many draws.
FLIPPED, FLIPS = 1 / 256, 4


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The model of ``base`` in ``number`` bits, with that graph's float64 evaluation.

    The noise floor is the row floor of a model (`tasks.graphs.noise_floor`), and a share, STEP, of two things: the step of an
    output that comes straight from a DequantizeLinear; and what it does to an output that some elements of every
    quantised tensor fall to the other side of a tie. Raises Spoilt where the tool takes the model not, or makes one
    that cannot be evaluated or has an infinite scale; Vacuous for a model that is not float32, or of which the tool
    leaves everything as it is.
    """
    import onnx

    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.noise_floor import reference_and_floor
    from tasks.graphs.widening import NoOracle

    if group.dtype != "float32" or base.definition or base.op_class in _UNSAID:
        raise Vacuous("only float32 models whose outputs can be said are quantised")
    model = onnx.load_model_from_string(base.model)
    feeds = list_part_feeds(base, model)
    try:
        with _silence_quantising_tools():
            given = onnx.load_model_from_string(base.model)  # the tools write to what they are given
            made = _convert_to_float16(given) if number == 16 else _quantize_to_int8(given, feeds)
            # Types as well: the second output of a LayerNormalization stays float32, and the float16 tool does not
            # know.
            onnx.checker.check_model(made, full_check=True)
    except Exception as error:
        raise Spoilt(
            "quantizer",
            f"ONNX Runtime's tool for {KINDS[number]} does not take the model, or spoils it: {find_error_text(error)}",
        ) from None
    if not _has_quantising_changed(made, number):
        raise Vacuous(f"ONNX Runtime's tool for {KINDS[number]} leaves the model as it is")
    _check_scales_finite(made)
    try:
        exact = EvaluatedGraph(model).run(feeds)
        graph = EvaluatedGraph(made)
        references, _, floors, *_ = reference_and_floor(graph, feeds, draws)
    except (NoOracle, KeyError) as error:
        raise Vacuous(f"no float64 evaluation: {error}") from None
    steps, flips = _find_output_steps(made), _measure_quantised_flips(graph, made, feeds, references)
    expected = []
    for leaf, name, y, delta, flip in zip_equal(base.expected, graph.outputs, references, floors, flips):
        floor = np.maximum(delta, STEP * np.maximum(flip, steps.get(name, 0.0)))
        expected.append(replace(leaf, shape=y.shape, reference=y, noise=floor if floor.any() else None))
    version = importlib.metadata.version("onnxruntime")
    return replace(
        base,
        index=number,
        expected=expected,
        others=[],
        coarse={},
        op_class=OpClass.COMPOSITE,  # with a model's floor; a model's digits it does not have
        oracle="float64",
        model=made.SerializeToString(deterministic=True),
        columns=base.columns
        | {
            "flags": f"quantized={KINDS[number]} tool=onnxruntime-{version}",
            "loss": _measure_quantised_loss(list(exact.values()), references),
        },
    )


def _convert_to_float16(model: Any) -> Any:
    """With float32 inputs and outputs; the tool leaves the casts that it adds at the end, where ONNX allows none."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    made = OnnxModel(convert_float_to_float16(model, keep_io_types=True))
    made.topological_sort()
    return made.model


def _quantize_to_int8(model: Any, feeds: dict[str, np.ndarray]) -> Any:
    """A QDQ graph, signed and per tensor as the tool does it unasked, calibrated on ``feeds``."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Once(CalibrationDataReader):  # type: ignore[misc]
        left = [feeds]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "quantized.onnx"
        quantize_static(model, str(target), Once(), quant_format=QuantFormat.QDQ)
        return onnx.load(str(target))


def _has_quantising_changed(made: Any, number: int) -> bool:
    if number == 16:
        half = {t.name for t in made.graph.initializer if t.data_type == 10}
        return bool(half) or any(node.op_type == "Cast" for node in made.graph.node)
    return any(node.op_type == "QuantizeLinear" for node in made.graph.node)


def _check_scales_finite(made: Any) -> None:
    """Raise Spoilt for an infinite scale: zero is then NaN, and what a runtime makes of that is its own."""
    if endless := [name for name, scale in _read_quantised_scales(made).items() if not np.isfinite(scale).all()]:
        text = f"ONNX Runtime's tool gives a tensor of infinite numbers an infinite scale: {endless[0]}"
        raise Spoilt("quantizer", text)


def _find_output_steps(made: Any) -> dict[str, float]:
    """The largest scale of a DequantizeLinear that makes an output, by the output's name."""
    found: dict[str, float] = {}
    scales = _read_quantised_scales(made)
    for node in made.graph.node:  # in order, so that what hands on follows what it is given
        if node.op_type == "DequantizeLinear" and node.input[1] in scales:
            found[node.output[0]] = float(scales[node.input[1]].max())
        elif operators.find_operator(node.op_type).hands_on and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _read_quantised_scales(made: Any) -> dict[str, np.ndarray]:
    """Scales of the graph that are given, by name."""
    from onnx import numpy_helper

    names = {node.input[1] for node in made.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")}
    given = {x.name: x for x in made.graph.initializer if x.name in names}
    return {name: np.abs(np.asarray(numpy_helper.to_array(x), np.float64)) for name, x in given.items()}


def _measure_quantised_flips(
    graph: Any, made: Any, feeds: dict[str, Any], references: list[np.ndarray]
) -> list[np.ndarray]:
    """How far each output moves, as a row floor, where FLIPPED of every tensor that is quantised falls a step
    elsewhere."""
    scales = _read_quantised_scales(made)
    steps = {
        node.input[0]: float(scales[node.input[1]].max())
        for node in made.graph.node
        if node.op_type == "QuantizeLinear" and node.input[1] in scales
    }
    found = [np.zeros(y.shape) for y in references]
    for draw in range(FLIPS if steps else 0):
        rng = np.random.default_rng(draw)

        def move(name: str, x: np.ndarray, eps: float, rng: np.random.Generator = rng) -> np.ndarray:
            if name not in steps or not x.size:
                return x
            moved = x.copy()
            places = rng.integers(0, x.size, max(1, round(FLIPPED * x.size)))
            moved.reshape(-1)[places] += steps[name] * rng.choice((-1.0, 1.0), places.size)
            return moved

        outputs = graph.run(feeds, move=move)
        for delta, name, y in zip(found, graph.outputs, references):
            if y.dtype.kind == "f" and outputs[name].shape == y.shape:
                np.maximum(delta, np.abs(outputs[name] - y), out=delta)
    return [compute_row_floor(delta) for delta in found]


def _measure_quantised_loss(exact: list[Any], references: list[np.ndarray]) -> float | None:
    """Root mean square of what changed, as a share of that of the float32 model's outputs, all of them together."""
    pairs = [(np.asarray(a), b) for a, b in zip_equal(exact, references) if np.asarray(a).dtype.kind == "f"]
    size = sum(float(np.square(a).sum()) for a, _ in pairs)
    lost = sum(float(np.square(a - b).sum()) for a, b in pairs)
    return float(np.sqrt(lost / size)) if size > 0 and np.isfinite(lost) else None


@contextlib.contextmanager
def _silence_quantising_tools() -> Iterator[None]:
    """The tools write advice to the log and to stdout, where a child speaks to its supervisor."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
