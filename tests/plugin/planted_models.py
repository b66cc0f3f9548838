"""Tiny models as catalogs, of ONNX and of torch, and backends that run them with a planted fault, which the device names."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import TensorSpec
from tasks.arrays.widened import compute_in_float64
from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_program
from tasks.backends.shared.torch_run import to_arrays
from tasks.catalogs.base import Catalog, Entry, Sample
from tasks.graphs import traced_program as programs
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import reference_and_floor
from tasks.model import Form, Group, Leaf, OpClass, Program, RuntimeInfo
from tasks.model.dtypes import EPS
from tests import stand_in, tiny_models, tiny_module
from tests.stand_in import Fault

MODELS = {"convolutional": tiny_models.convolutional, "transformer": tiny_models.transformer}


class TinyCatalog(Catalog):
    name = "tiny"
    forms = ("onnx",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [Entry(f"tiny:{name}", "", ("float32",)) for name in sorted(MODELS)]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        model, feeds = MODELS[group.op_name]()
        exact, floors, *_ = reference_and_floor(EvaluatedGraph(model), feeds, draws)
        expected = [Leaf("float32", y.shape, y, delta) for y, delta in zip(exact, floors)]
        arrays = [np.asarray(x) for x in feeds.values()]
        args = tuple(TensorSpec(i) for i in range(len(arrays)))
        yield Sample(0, args, {}, arrays, expected, OpClass.MODEL, model=model.SerializeToString())


#: Planted faults by name: what a device of the backend is called.
FAULTS: Mapping[str, Sequence[Fault]] = {
    "clean": (),
    "pad": (Fault("shifted pad", "conv4", stand_in.shifted),),
    "table": (Fault("truncated table", "gather0", stand_in.lost_rows),),
    "fused": (
        Fault("fused", "sigmoid5", stand_in.times(1.01), ("conv4",)),
        Fault("fused", "softmax16", stand_in.times(1.01), ("div15",)),
    ),
    "products": tuple(
        Fault("bfloat16", at, stand_in.bfloat16)
        for at in ("conv0", "conv4", "conv8", "matmul2", "matmul14", "matmul31", "matmul24")
    ),
    "dies": (),
}


class Faulty(Backend):
    """ONNX Runtime node by node, with a fault; at the level "disable" the fault is not there."""

    vendor = "Planted"
    forms = ("onnx",)
    optimises = True

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("faulty 1", "cpu")

    def levels(self) -> Mapping[str, Backend]:
        return {"disable": self.but(device="clean"), "all": self} if self.device == "level" else {}

    def passes(self) -> tuple[str, ...]:
        return ("PlantedFusion", "OtherFusion", "ThirdFusion") if self.device == "pass" else ()

    def without(self, passes: Collection[str]) -> Backend:
        return self.but(device="clean") if "PlantedFusion" in passes else self

    def build(self, form: Form) -> Program:
        import onnx

        model, feeds = onnx.load_from_string(form.model), name_onnx_inputs(form)
        names = {"level": "pad", "pass": "pad"}

        def run() -> Sequence[Any]:
            if self.device == "dies" and len(model.graph.output) > 1:
                import os

                os.abort()
            planted = model
            for fault in FAULTS["pad" if self.device == "dies" else names.get(self.device, self.device)]:
                planted = fault.planted(planted)
            ran = stand_in.run(planted, feeds)
            if ran.outputs is None:
                raise RuntimeError(ran.error)
            return ran.outputs

        return Program(run, "CPU")


class TorchCatalog(Catalog):
    """One network that has no ONNX form."""

    name = "tinytorch"
    forms = ("torch",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [Entry("tinytorch:block", "", ("float32",))]

    def call(self, group: Group) -> Any:
        return tiny_module.block()[0]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        module, inputs = tiny_module.block()
        wide = [x.double() if x.is_floating_point() else x for x in inputs]

        def outputs(eps: float, draw: int) -> list[np.ndarray]:
            import torch

            with torch.no_grad(), compute_in_float64(eps, draw):
                return [y.numpy() for y in module.double()(*wide)]

        exact = outputs(0.0, 0)
        moved = [outputs(EPS["float32"], draw) for draw in range(draws)]
        floors = [np.max([abs(m[k] - y) for m in moved], 0) for k, y in enumerate(exact)]
        expected = [Leaf("float32", y.shape, y, delta) for y, delta in zip(exact, floors)]
        args = tuple(TensorSpec(i) for i in range(len(inputs)))
        yield Sample(0, args, {}, [x.numpy() for x in inputs], expected, OpClass.MODEL)


def _each(op: str, call: Any, given: list[Any], off: Iterator[bool]) -> list[Any]:
    """The results of a program, or of a training step, in which what the operations ``op`` make is a thousandth off,
    ``off`` says of which."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Planted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            strikes = func.overloadpacket.__name__ == op and next(off)
            for x in torch.utils._pytree.tree_leaves(made) if strikes else ():
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    x.mul_(1.001)
            return made

    with Planted(), torch.no_grad():
        found = call.run_first_step(call, given) if isinstance(call, TrainingStep) else call(*given)
        return [y.numpy() for y in found]


class FaultyTorch(Backend):
    """Torch, operation by operation; the results of the one that the device is called are a thousandth off: of
    "softmax.mul" those of softmax, in a program with a mul; of "each.gelu_backward" those of every such operation that
    torch calls, whoever asks; of "turns.gelu" those of every second one."""

    vendor = "Planted"
    forms = ("torch",)
    imports = ("torch", "torch._dynamo")
    checks = ("forward", "backward")
    #: Whether an operation strikes, one after another, by the device's first word.
    off: ClassVar = {"each": [True], "turns": [True, False]}

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("faultytorch 1", "cpu")

    def build(self, form: Form) -> Program:
        import torch

        given, (name, _, beside) = programs.list_traced_arguments(form), self.device.partition(".")
        if name in self.off:
            off = itertools.cycle(self.off[name])
            return Program(lambda: _each(beside, form.call, given, off), "cpu")
        known = isinstance(form.call, torch.fx.GraphModule)
        program = form.call if known else programs.trace_torch_module(form.call, given)
        struck = not beside or beside in [x.name for x in program.graph.nodes if x.op == "call_function"]

        class Planted(torch.fx.Interpreter):
            def run_node(self, node: Any) -> Any:
                value = super().run_node(node)
                strikes = node.name == name and node.op == "call_function" and struck
                return value * 1.001 if strikes else value

        def run() -> Sequence[Any]:
            with torch.no_grad():
                return [y.numpy() for y in Planted(program).run(*given)]

        return Program(run, "cpu")

    def recipe(self, form: Form) -> ProgramRecipe:
        """Of what is left of a program, whose last result is off."""
        check_form_has_program(form)
        return ProgramRecipe(run_off, {"threads": 1}, (to_arrays,))


def run_off(module: Any, inputs: list, threads: int) -> list:
    """Outputs of a program, each a thousandth too large."""
    return [x * x.dtype.type(1.001) for x in to_arrays(module.program(*module.tensors(inputs)))]
