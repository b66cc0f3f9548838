"""The culprit of a failing model is named to the node; what is there only fused is a window; nothing sound is blamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tasks.backends.shared.onnx_form import make_probe_form
from tasks.graphs.cut_graph import index_tensor_producers
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import reference_and_floor
from tasks.hunt.dialogue import Ask, NotFailing, Ran
from tasks.hunt.localise import nodes
from tasks.hunt.localise.question import CulpritQuestion, SearchClock
from tasks.hunt.localise.search import Culprit, search_culprit
from tasks.hunt.localise.serving import read_onnx_form
from tasks.hunt.localise.settings import NOTHING, BackendSettings
from tasks.hunt.onnx_program import OnnxProgram
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Form, Leaf, OpClass, Unsupported, culprit
from tests import stand_in, tiny_models
from tests.stand_in import Fault, Site, answered, driven, model_of

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


class Case:
    """A tiny model with its exact outputs."""

    def __init__(self, make: Callable[[], tuple[Any, dict[str, np.ndarray]]]) -> None:
        self.model, self.feeds = make()
        self.exact, self.floors, *_ = reference_and_floor(EvaluatedGraph(self.model), self.feeds, 4)
        self.graph = self.model.graph

    def fails(self, outputs: Sequence[np.ndarray]) -> bool:
        leaves = [Leaf("float32", y.shape, y, delta) for y, delta in zip(self.exact, self.floors)]
        metrics = compare_outputs(outputs, leaves, OpClass.MODEL)
        return bool(metrics.kind) or float(metrics.error_units or 0) > nodes.LIMIT

    def question(self, model: Any = None, seconds: float = 60) -> CulpritQuestion:
        program = OnnxProgram.inlined(self.model if model is None else model, self.feeds)
        return CulpritQuestion(program, self.fails, SearchClock(seconds))

    def culprit(
        self, *faults: Fault, settings: BackendSettings = NOTHING, run: Callable[..., Ran] | None = None
    ) -> Culprit:
        def backend(model: Any, feeds: Any) -> Ran:
            for fault in faults:
                model = fault.planted(model)
            return stand_in.run(model, feeds)

        return answered(search_culprit(self.question(), settings), self.model, self.feeds, run or backend)

    def fault(self, at: str, kind: str) -> Fault:
        place = index_tensor_producers(self.graph)[at]
        shape = EvaluatedGraph(self.model).run(self.feeds, keep=[at])[at].shape
        return Fault(kind, at, dict(stand_in.kinds(Site(self.graph, place), shape))[kind])


@pytest.fixture(scope="module")
def image() -> Case:
    return Case(tiny_models.convolutional)


@pytest.fixture(scope="module")
def text() -> Case:
    return Case(tiny_models.transformer)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


FAULTS = [
    *[("image", at, kind) for at, kind in (("conv4", "bfloat16"), ("conv0", "TF32"), ("conv4", "shifted pad"))],
    *[("image", at, kind) for at, kind in (("conv8", "one bias"), ("resize6", "Resize mode"), ("relu9", "leaky"))],
    *[("image", at, kind) for at, kind in (("batchnormalization1", "epsilon"), ("sigmoid5", "hard sigmoid"))],
    *[("text", at, kind) for at, kind in (("gather0", "truncated table"), ("matmul14", "TF32"), ("softmax16", "axis"))],
    *[("text", at, kind) for at, kind in (("transpose5", "two heads"), ("erf27", "tanh for erf"), ("add3", "no bias"))],
    *[("text", at, kind) for at, kind in (("layernormalization23", "epsilon"), ("mul29", "a thousandth"))],
]


@pytest.mark.parametrize(("case", "at", "kind"), FAULTS, indirect=["case"])
def test_a_fault_in_one_node_is_named_to_the_node(case: Case, at: str, kind: str) -> None:
    found = case.culprit(case.fault(at, kind))
    node = case.graph.node[index_tensor_producers(case.graph)[at]]
    assert found.name == f"node {node.name} ({node.op_type})"
    assert found.effect == "same"
    assert found.alone and found.units is not None and found.units > nodes.LIMIT


@pytest.mark.parametrize("case", ["image", "text"], indirect=True)
def test_a_sound_backend_is_not_blamed(case: Case) -> None:
    with pytest.raises(NotFailing, match="run again, the model does not fail"):
        case.culprit()


@pytest.mark.parametrize(
    ("case", "chain", "culprit"),
    [
        ("image", ["conv4", "sigmoid5"], "window Conv_4..Sigmoid_5"),
        ("text", ["div15", "softmax16", "matmul17"], "window Div_15..MatMul_17"),
        ("text", ["matmul14", "div15", "softmax16", "matmul17"], "window MatMul_14..MatMul_17"),
        ("text", ["matmul24", "add25", "div26", "erf27", "add28", "mul29"], "fusion"),
    ],
    indirect=["case"],
)
def test_a_fault_that_exists_only_fused_is_a_window_or_fusion(case: Case, chain: list[str], culprit: str) -> None:
    fault = Fault("fused", chain[-1], stand_in.times(1.01), tuple(chain[:-1]))
    found = case.culprit(fault)
    assert (found.name, found.effect) == (culprit, "healed")
    seen = {name for place in found.places for name in case.graph.node[place].output}
    assert not found.places or seen == set(chain)


def test_the_first_node_whose_own_error_reaches_the_output_is_the_culprit(text: Case) -> None:
    # The keys' bias shifts all scores of a row alike: the softmax does not see it.
    harmless, harmful = text.fault("add7", "no bias"), text.fault("matmul31", "bfloat16")
    with pytest.raises(NotFailing):
        text.culprit(harmless)
    found = text.culprit(harmless, harmful)
    assert found.name == "node MatMul_31 (MatMul)"
    places = [place for place, node in enumerate(text.graph.node) if node.op_type != "Constant"]
    units = dict(zip(places, found.node_units))
    assert units[index_tensor_producers(text.graph)["add7"]] > nodes.LIMIT  # it is seen, and not blamed


def test_errors_that_fail_only_together_are_no_single_node_s_fault(text: Case) -> None:
    small = [Fault("small", at, stand_in.times(1 + 2**-16)) for at in ("div15", "div26", "mul29", "mul30")]
    for fault in small:
        with pytest.raises(NotFailing):
            text.culprit(fault)
    found = text.culprit(*small)
    assert found.name.startswith("nodes, ") and "the worst " in found.name


def test_a_search_that_runs_out_of_time_names_nobody(text: Case) -> None:
    fault = Fault("fused", "matmul17", stand_in.times(1.01), ("div15", "softmax16"))
    question = text.question(seconds=0)
    found = answered(search_culprit(question), text.model, text.feeds, lambda m, x: stand_in.run(m, x, fault))
    assert found.name == "" and "until the time was over" in found.why[-1]


def test_own_and_inherited_errors_are_told_apart(image: Case) -> None:
    found = image.culprit(image.fault("conv0", "bfloat16"))
    beyond = [node.op_type for node, units in zip(image.graph.node, found.node_units) if units > 1000]
    assert beyond == ["Conv"]  # what comes after it is wrong as well, and none of it errs


def test_a_precision_that_nobody_asked_for_is_no_single_node_s_fault(text: Case) -> None:
    products = [node.output[0] for node in text.graph.node if node.op_type == "MatMul"]
    for kind, name in (("bfloat16", "precision bfloat16"), ("TF32", "precision tfloat32")):
        assert text.culprit(*(text.fault(at, kind) for at in products)).name == name


@pytest.mark.parametrize("hide", [True, False])
def test_a_pass_that_makes_the_difference_takes_the_blame(image: Case, hide: bool) -> None:
    """hide: the fault is there only where two nodes can be fused."""
    fault = Fault("fused", "sigmoid5", stand_in.times(1.01), ("conv4",) if hide else ())
    passes = ("Other", "Faulty", "Third", "Fourth", "Fifth")

    def ran(asked: Ask) -> Ran:
        on = "Faulty" not in asked.setting.removeprefix("without ").split(",")
        return stand_in.run(*model_of(asked, image.model, image.feeds), fault if on else None)

    question = image.question()
    found = driven(search_culprit(question, BackendSettings(passes=passes)), ran)
    assert found.name == "optimiser Faulty"
    assert found.why[-1] == ("at window Conv_4..Sigmoid_5" if hide else "at node Sigmoid_5 (Sigmoid)")


def test_the_lowest_level_that_is_wrong_is_named_where_no_pass_is(image: Case) -> None:
    fault = image.fault("conv4", "shifted pad")

    def ran(asked: Ask) -> Ran:
        sound = asked.setting in ("level disable", "level basic")
        return stand_in.run(*model_of(asked, image.model, image.feeds), None if sound else fault)

    question = image.question()
    settings = BackendSettings(levels=("disable", "basic", "extended", "all"), passes=("One", "Two"))
    assert driven(search_culprit(question, settings), ran).name == "optimiser level extended, right at level basic"


def test_a_graph_that_is_not_what_was_exported_is_the_exporter_s(image: Case) -> None:
    exported = image.fault("conv4", "no bias").planted(image.model)
    question = image.question(exported)
    found = answered(search_culprit(question), exported, image.feeds, stand_in.run)
    assert (found.name, found.node_units) == ("exporter", ())


def test_a_model_that_does_not_run_with_its_tensors_asked_for_is_cut(image: Case) -> None:
    fault = image.fault("conv4", "shifted pad")

    def ran(model: Any, feeds: Any) -> Ran:
        if len(model.graph.output) > 1:
            return Ran(None, "too many outputs")
        return stand_in.run(model, feeds, fault)

    found = image.culprit(run=ran)
    assert (found.name, found.effect) == ("node Conv_4 (Conv)", "")
    assert "too many outputs" in found.why[0]


def test_a_backend_that_gives_no_integers_is_asked_for_floats_alone(image: Case) -> None:
    from onnx import TensorProto, helper

    fault = image.fault("conv4", "shifted pad")
    counted = image.model.__deepcopy__({})
    counted.graph.node.append(helper.make_node("Shape", ["conv4"], ["size"]))
    counted.graph.node.append(helper.make_node("Cast", ["size"], ["sizes"], to=TensorProto.FLOAT))

    def ran(model: Any, feeds: Any) -> Ran:
        if any(x.name == "size" for x in model.graph.output):
            return Ran(None, "no output of int64")
        return stand_in.run(model, feeds, fault)

    question = image.question(counted)
    found = answered(search_culprit(question), counted, image.feeds, ran)
    assert (found.name, found.effect) == ("node Conv_4 (Conv)", "same")


def test_tensors_are_asked_for_in_parts_where_they_are_many(image: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, most = image.fault("conv8", "bfloat16"), 0

    def ran(model: Any, feeds: Any) -> Ran:
        nonlocal most
        most = max(most, len(model.graph.output))
        return stand_in.run(model, feeds, fault)

    whole = image.culprit(run=ran)
    at_once, most = most, 0
    monkeypatch.setattr(nodes, "CHUNK", 1 << 14)
    parts = image.culprit(run=ran)
    assert (parts.name, parts.node_units) == (whole.name, whole.node_units)
    assert most < at_once / 2


def test_a_backend_that_takes_no_pieces_is_asked_for_its_settings_alone(image: Case) -> None:
    fault = image.fault("conv4", "shifted pad")

    def ran(asked: Ask) -> Ran:
        assert asked.case is None
        return stand_in.run(image.model, image.feeds, None if asked.setting == "level eager" else fault)

    question = image.question()
    found = driven(search_culprit(question, BackendSettings(levels=("eager", "compiled")), "it takes functions"), ran)
    assert (found.name, found.effect) == ("optimiser level compiled, right at level eager", "")


def test_a_tensor_that_is_garbage_only_where_it_is_asked_for_is_not_blamed(image: Case) -> None:
    # As a runtime does that gives an intermediate tensor in its own layout.
    fault = image.fault("conv8", "TF32")

    def ran(model: Any, feeds: Any) -> Ran:
        got = stand_in.run(model, feeds, fault)
        names = [x.name for x in model.graph.output]
        assert got.outputs is not None
        found = dict(zip(names, got.outputs))
        lies: dict[str, Any] = {"relu2": lambda x: x[..., ::-1].copy(), "conv4": lambda x: x[None]}
        return Ran([lies[name](x) if name in lies else x for name, x in found.items()])

    found = image.culprit(run=ran)
    node = image.graph.node[index_tensor_producers(image.graph)["conv8"]]
    assert (found.name, found.alone) == (f"node {node.name} (Conv)", True)


def test_a_node_that_errs_beside_its_neighbours_alone_is_a_window_with_them(image: Case) -> None:
    # Fused, and computed beside that where it is asked for: the model gives the same bits, whoever looks.
    fault = Fault("fused", "sigmoid5", stand_in.times(1.01), ())

    def ran(model: Any, feeds: Any) -> Ran:
        together = {"conv4", "sigmoid5"} <= index_tensor_producers(model.graph).keys()
        return stand_in.run(model, feeds, fault if together else None)

    found = image.culprit(run=ran)
    assert (found.name, found.effect, found.alone) == ("window Conv_4..Sigmoid_5", "same", True)


def test_a_case_without_a_graph_of_several_nodes_has_nothing_to_localise() -> None:
    with pytest.raises(Unsupported, match="the case has no ONNX form"):
        read_onnx_form(Form("torch", "user:mine", "float32", []), "float32")
    with pytest.raises(Unsupported, match="the graph has one node"):
        read_onnx_form(make_probe_form(), "float32")


@pytest.mark.parametrize("case", ["image", "text"], indirect=True)
def test_the_floor_of_a_sum_of_products_is_what_draws_find(case: Case) -> None:
    program = case.question().program
    sums = [place for place in program.places if case.graph.node[place].op_type in ("Conv", "MatMul", "Gemm")]
    for place in sums:
        feeds = {name: program.exact[name] for name in program.border(place)[0]}
        name = case.graph.node[place].output[0]
        drawn, spread = program.floor_of(place, feeds, 1)[name], program.spread_of(place, feeds)[name]
        assert 0.5 < np.median(drawn / spread) < 1.5


@pytest.mark.parametrize(("first", "last"), [("Conv_4", "Conv_4"), ("a b/Conv (1)", "b/Relu")])
def test_a_culprit_names_its_nodes(first: str, last: str) -> None:
    text = culprit.name_node_culprit(first, "Conv") if first == last else culprit.name_window_culprit(first, last)
    assert culprit.find_culprit_ends(text) == (first, last)
    assert culprit.find_culprit_kind(text) == ("node" if first == last else "window")
    assert culprit.find_culprit_ends("optimiser level O2, right at level O1") is None
