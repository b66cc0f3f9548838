"""TOSA: Arm's operator set, by ExecuTorch's lowering to it, computed by Arm's reference model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np

from tasks.backends.base import importing, smoke_test
from tasks.backends.executorch import PROBE, ExecuTorch, export_executorch_module, list_lowered_nodes
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_program
from tasks.backends.shared.torch_run import to_arrays
from tasks.model import Form, RuntimeInfo, get_numpy_dtype

#: The profile that is lowered to: floating point, with bfloat16.
PROFILE = "TOSA-1.0+FP+bf16"


class Tosa(ExecuTorch):
    """``tosa-cpu``: the reference model of Arm's TOSA. What the lowering does not hand to it is a fallback: nothing
    else computes."""

    takes_threads = False
    vendor = "Arm"
    devices, closed = ("cpu",), True
    emulated = True
    packages = (*ExecuTorch.packages, "tosa-tools==2026.8.0")
    delegate = "TOSA reference model"
    taker, moves = "TOSA", ()

    def probe(self) -> RuntimeInfo:
        """Lower an add and run it. Raises Unavailable."""
        with importing("tosa-tools"):
            import torch
            import tosa_reference_model  # noqa: F401

        torch.set_num_threads(1)
        smoke_test("TOSA reference model", lambda: self.build(PROBE).run()[0], "one-add program")
        versions = f"tosa-tools {metadata.version('tosa-tools')}, executorch {metadata.version('executorch')}"
        return RuntimeInfo(versions, f"reference model, {PROFILE}")

    def _key(self, exported: Any) -> tuple[bytes | str, ...]:
        return PROFILE, metadata.version("tosa-tools"), *super()._key(exported)

    def _partitioners(self) -> list[Any]:
        from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
        from executorch.backends.arm.tosa.partitioner import TOSAPartitioner

        return [TOSAPartitioner(TosaCompileSpec(PROFILE))]

    def _pack_lowered(self, made: Any) -> tuple[dict[str, int], dict[str, int], bytes]:
        """The bytes: a line of JSON (inputs: places of the program's tensors; outputs: [place, dtype, shape] of the
        delegate's results), then the TOSA flatbuffer. None where there is not one delegate that computes all of it."""
        program = made.exported_program()
        _, delegated = list_lowered_nodes(program)
        # Not lowered further: their targets are of the edge dialect, each around one of torch's.
        kernels = Counter(str(x.target._op) for x in program.graph.nodes if hasattr(x.target, "_op"))
        calls = [x for x in program.graph.nodes if "executorch_call_delegate" in str(x.target)]
        inputs = list(program.graph_signature.user_inputs)
        results = list(program.graph.output_node().args[0])
        if kernels or len(calls) != 1 or any(x.name in inputs for x in results):
            return dict(kernels), delegated, b""
        [call] = calls
        lowered = getattr(program.graph_module, call.args[0].target)
        graph = bytes(lowered.processed_bytes)
        taken = _list_tosa_inputs(
            graph
        )  # what no node uses after the lowering's passes is none: of isreal, which is a constant, nothing
        names = lowered.original_module.graph_signature.user_inputs
        header = {
            "inputs": [inputs.index(x.name) for x, name in zip(call.args[1:], names) if name in taken],
            "outputs": [
                [x.args[1], str(x.meta["val"].dtype).removeprefix("torch."), list(x.meta["val"].shape)] for x in results
            ],
        }
        return {}, delegated, json.dumps(header).encode() + b"\n" + graph

    def _method(self, program: bytes) -> Callable[[list[Any]], list[np.ndarray]]:
        import torch
        import tosa_reference_model

        line, _, graph = program.partition(b"\n")
        header = json.loads(line)

        def run(given: list[Any]) -> list[np.ndarray]:
            tensors = [given[i] for i in header["inputs"]]
            arrays = [(x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy() for x in tensors]
            found, status = tosa_reference_model.run(
                graph, arrays, verbosity="LOW", initialize_variable_tensor_from_numpy=True
            )
            if status != tosa_reference_model.GraphStatus.TOSA_VALID:
                raise RuntimeError(f"the reference model says {status} of the graph that was lowered")
            return [_read_tosa_result(found[i], get_numpy_dtype(dtype), shape) for i, dtype, shape in header["outputs"]]

        return run

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_program(form)
        held = list(self._export(form, self._tensors(form))[1])
        return ProgramRecipe(run_program, {"held": held, "profile": PROFILE}, (to_arrays, export_executorch_module))


def _read_tosa_result(found: np.ndarray, dtype: np.dtype[Any], shape: list[int]) -> np.ndarray:
    """A result in the program's dtype, of which the reference model knows the bits alone; one of another size as it is,
    which is for the judge to say."""
    if found.dtype.itemsize != dtype.itemsize:
        return found.view(get_numpy_dtype("bfloat16")) if found.dtype.kind == "V" else found
    return np.frombuffer(np.ascontiguousarray(found).tobytes(), dtype).reshape(shape)


def _list_tosa_inputs(graph: bytes) -> set[str]:
    """Names of a TOSA flatbuffer's inputs."""
    from tosa.TosaGraph import TosaGraph

    block = TosaGraph.GetRootAs(graph, 0).Regions(0).Blocks(0)
    return {block.Inputs(place).decode() for place in range(block.InputsLength())}


def run_program(module: Any, inputs: list, held: list, profile: str) -> list:
    """Outputs of a program that is lowered to TOSA, by its reference model."""
    import tosa_reference_model
    from executorch.backends.arm.tosa.compile_spec import TosaCompileSpec
    from executorch.backends.arm.tosa.partitioner import TOSAPartitioner
    from executorch.exir import to_edge_transform_and_lower

    exported, given = export_executorch_module(module, inputs, held)
    edge = to_edge_transform_and_lower(exported, partitioner=[TOSAPartitioner(TosaCompileSpec(profile))])
    graph = edge.exported_program().graph_module.lowered_module_0.processed_bytes
    return list(tosa_reference_model.run(graph, to_arrays(given), verbosity="LOW")[0])
