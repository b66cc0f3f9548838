"""The culprit of a failing torch program is named to its operation, with the module that it is of; parts run by themselves."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays import torch_tree
from tasks.arrays.training import Optimiser, TrainingStep
from tasks.arrays.tree import TensorSpec, encode_tensor_spec
from tasks.graphs import traced_program as programs
from tasks.graphs.traced_program import ProgramPart
from tasks.hunt.dialogue import Ask, DialoguePiece, NotFailing, Ran
from tasks.hunt.localise import nodes
from tasks.hunt.localise.question import CulpritQuestion, SearchClock
from tasks.hunt.localise.search import Culprit, search_culprit
from tasks.hunt.torch_program import TorchProgram
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Form, Leaf, OpClass, Unsupported
from tests.stand_in import driven
from tests.tiny_module import block

torch = pytest.importorskip("torch")


class Case:
    """A small torch network, traced, and a float32 run of it in which some operations give something else."""

    def __init__(self) -> None:
        module, self.inputs = block()
        self.program = programs.trace_torch_module(module, self.inputs)
        self.feeds = programs.name_program_arguments(self.program, self.inputs)
        self.subject = TorchProgram(self.program, self.feeds)

    def fails(self, outputs: Sequence[np.ndarray]) -> bool:
        exact = self.subject.evaluate()
        leaves = [Leaf("float32", y.shape, y, np.full(y.shape, 1e-6)) for y in map(exact.get, self.subject.outputs)]
        return float(compare_outputs(outputs, leaves, OpClass.MODEL).error_units or 0) > nodes.LIMIT

    def culprit(self, faults: Mapping[str, Any], hidden: str = "") -> Culprit:
        """faults: what an operation's result becomes, by name; hidden: strikes only where this tensor is no output."""

        def ran(asked: Ask) -> Ran:
            piece = asked.case if isinstance(asked.case, DialoguePiece) else self.subject.probed([])
            wanted, feeds = piece.program, piece.feeds
            part = programs.cut_program_part(self.program, wanted)
            made = {x.name for x in part.graph.nodes if x.op == "call_function"}

            class Faulty(torch.fx.Interpreter):
                def run_node(self, node: Any) -> Any:
                    value = super().run_node(node)
                    strikes = node.name in faults and (not hidden or (hidden in made and hidden not in wanted.outputs))
                    return faults[node.name](value) if strikes else value

            with torch.no_grad():
                outputs = Faulty(part).run(*[torch.from_numpy(np.array(feeds[x])) for x in wanted.inputs])
            return Ran([x.numpy() for x in outputs])

        return driven(search_culprit(CulpritQuestion(self.subject, self.fails, SearchClock(60))), ran)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def place(case: Case, name: str) -> int:
    return next(k for k in case.subject.places if case.subject.name(k) == name)


@pytest.mark.parametrize(
    ("name", "op", "fault"),
    [
        ("linear_1", "linear", lambda x: x.bfloat16().float()),
        ("softmax", "softmax", lambda x: x * 1.001),
        ("layer_norm", "layer_norm", lambda x: x + 1e-3),
        ("chunk", "chunk", lambda x: tuple(reversed(x))),
    ],
)
def test_a_fault_in_one_operation_is_named(case: Case, name: str, op: str, fault: Any) -> None:
    found = case.culprit({name: fault})
    assert (found.name, found.effect, found.alone) == (f"node {name} ({op})", "same", True)
    assert found.places == (place(case, name),)


def test_a_sound_run_is_not_blamed(case: Case) -> None:
    with pytest.raises(NotFailing):
        case.culprit({})


def test_what_is_wrong_only_fused_is_a_window(case: Case) -> None:
    found = case.culprit({"softmax": lambda x: x * 1.01}, hidden="matmul")
    assert (found.name, found.effect) == ("window matmul..softmax", "healed")


def test_an_operation_says_its_module_attributes_and_tensors(case: Case) -> None:
    told = case.subject.describe(place(case, "layer_norm"))
    assert (told["op"], told["module"]) == ("layer_norm", "norm")
    assert told["attributes"]["normalized_shape"] == "[16]" and told["outputs"] == ["layer_norm float32[2, 6, 16]"]
    assert told["inputs"][0] == "add float32[2, 6, 16]"


def test_the_float64_evaluation_is_that_of_the_whole(case: Case) -> None:
    module, inputs = block()
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*[x.double() if x.is_floating_point() else x for x in inputs])
    found = case.subject.evaluate()
    for name, y in zip(case.subject.outputs, exact):
        np.testing.assert_allclose(found[name], y.numpy(), rtol=1e-12, atol=1e-12)


def test_a_part_of_a_form_runs_by_itself(case: Case, tmp_path: Any) -> None:
    from tasks.arrays.pack import ArrayPack, save_pack

    module, inputs = block()
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(i)) for i in range(len(inputs))]}
    form = Form("torch", "tiny:block", "float32", [x.numpy() for x in inputs], args=args, call=module)
    at = place(case, "softmax")
    (read,), (made,) = case.subject.border(at)
    save_pack(tmp_path / "part", {"inputs": [read], "outputs": [made]}, [case.subject.exact[read]])
    part = programs.cut_traced_program(form, ArrayPack(str(tmp_path / "part")))
    (got,) = part.call(torch.from_numpy(part.arrays[0]))  # type: ignore[misc]
    np.testing.assert_allclose(got.numpy(), case.subject.exact[made], rtol=1e-5)


def test_a_program_is_stored_without_its_weights_and_read_again(case: Case) -> None:
    made, weights = programs.lift_program_weights(case.program)
    stored = json.loads(json.dumps(programs.encode_program(made)))
    again, feeds = programs.decode_program(stored), case.feeds | weights
    assert programs.encode_program(again) == stored and len(weights) == 9
    exact = case.subject.evaluate()
    found = programs.evaluate_program(again, feeds)
    assert list(found) == list(case.subject.outputs)
    for name, y in exact.items():
        np.testing.assert_array_equal(found[name], y)


@pytest.mark.parametrize(
    "op", ["aten.from_file.default", "aten.linear.other", "os.system.x", "prims.add.default", "aten.__class__.mro"]
)
def test_a_stored_program_calls_operations_of_aten_alone(op: str) -> None:
    node = {"name": "y", "dtype": "", "op": op, "args": {"$": "tuple", "v": []}, "kwargs": {"$": "dict", "v": []}}
    with pytest.raises(Unsupported, match="no operation of ATen's"):
        programs.decode_program({"nodes": [node], "outputs": ["y"]})


@pytest.mark.parametrize("placeholder", [True, False])
def test_names_in_a_stored_program_are_never_run(placeholder: bool, tmp_path: Path) -> None:
    """torch.fx writes the names of arguments as they are into source that it executes."""
    code = f"open({str(tmp_path / 'ran')!r}, 'w')"
    x, named = ("x=" + code, []) if placeholder else ("x", [[f"a={code}, b", 1]])
    args, kwargs = {"$": "tuple", "v": [{"$": "node", "name": x}]}, {"$": "dict", "v": named}
    relu = {"name": "y", "dtype": "float32", "op": "aten.relu.default", "args": args, "kwargs": kwargs}
    with pytest.raises(Unsupported, match="no name of an argument"):
        programs.decode_program({"nodes": [{"name": x, "dtype": "float32"}, relu], "outputs": ["y"]})(torch.ones(2))
    assert not (tmp_path / "ran").exists()


class Writes(torch.nn.Module):
    """Of a tensor, or by another name of it; without which it would be another program."""

    def forward(self, x: Any) -> Any:
        y = x + 1
        y[:, 0] = 0
        part = y[1]
        part.mul_(2)
        return y.exp(), part


class WritesAll(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.nn.functional.relu(x - 1, inplace=True).exp()


class WritesInput(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mul_(2).exp()


class Counts(torch.nn.Module):
    """Its calls, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(2))
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x: Any) -> Any:
        self.calls.mul_(2)
        return self.norm(x) * self.calls


@pytest.mark.parametrize(
    ("made", "ops"),
    [(Writes, {"select_scatter", "mul"}), (WritesAll, {"relu_"}), (WritesInput, {"mul", "exp"}), (Counts, {"mul"})],
)
def test_what_writes_to_a_part_or_to_what_was_given_makes_a_new_tensor_and_what_writes_to_all_of_its_own_stays(
    made: Any, ops: set[str]
) -> None:
    x = torch.arange(4.0).view(2, 2)
    program, right = programs.trace_torch_module(made(), [x]), made()(x.clone())
    assert ops <= {programs.name_traced_operation(node) for node in program.graph.nodes if node.op == "call_function"}
    for _ in range(2):  # what is written for the next call is not of it
        assert all(map(torch.equal, torch_tree.list_output_tensors(program(x)), torch_tree.list_output_tensors(right)))
    assert torch.equal(x, torch.arange(4.0).view(2, 2))


def test_a_training_step_is_the_program_of_its_loss_and_gradients() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.counts, self.writes = torch.nn.Linear(2, 2), Counts(), Writes()

        def forward(self, x: Any) -> Any:
            return self.writes(self.counts(self.layer(x)))[0]

    def loss(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.mse_loss(outputs, targets[0])

    torch.manual_seed(0)
    step, given = TrainingStep(Net(), loss, 1, Optimiser("sgd", 0.1)), [torch.rand(2, 2), torch.rand(2, 2)]
    program, arguments = programs.trace_training_step(step, given)
    assert step.module.counts.calls.tolist() == [1, 1]
    named = [programs.name_traced_operation(node) for node in program.graph.nodes if node.op == "call_function"]
    assert "mse_loss_backward" in named and "select_scatter" in named
    right = step.run_first_step(step, given)[:5]
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(program(*arguments), right, strict=True))
    narrow = TrainingStep(Net(), loss, 1, Optimiser("sgd", 0.1), autocast="bfloat16")
    with pytest.raises(Unsupported, match="under autocast"):
        programs.trace_training_step(narrow, given)


def test_what_cannot_be_traced_is_said_in_a_line(case: Case) -> None:
    with pytest.raises(Unsupported, match="no module"):
        programs.trace_torch_module(lambda x: x, case.inputs)

    class ByData(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(Unsupported, match="torch.export does not take the module") as raised:
        programs.trace_torch_module(ByData(), [torch.ones(2)])
    assert "\n" not in str(raised.value)

    assert programs.trace_torch_module(torch.nn.BatchNorm1d(2).train(), [torch.ones(2, 2)])  # it counts its batches
    with pytest.raises(ValueError, match="no tensor 'nothing'"):
        programs.cut_program_part(case.program, ProgramPart((), ("nothing",)))
