"""Which nodes of an ONNX model compute shapes: ONNX Runtime puts those on the CPU by design, beside a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tasks.backends.shared import onnx_graph
from tasks.operators import table as operators

#: Providers that leave them there (`GetCpuPreferredNodes` in onnxruntime/core/framework/fallback_cpu_capability.cc):
#: what reads a shape runs on the CPU, and to copy a few integers there and back would cost more than to compute them.
PROVIDERS = ("CUDAExecutionProvider", "ROCMExecutionProvider", "DmlExecutionProvider", "CANNExecutionProvider")
CPU = "CPUExecutionProvider"


def count_shape_arithmetic(model: bytes) -> Counter[str]:
    """How many nodes of each op take what Shape or Size gave, and beside it constants alone, those two included."""
    graph = onnx_graph.read_onnx_graph(model)
    made = {name for node in graph.nodes for name in node.outputs} | {x.name for x in graph.inputs}
    fixed = {name for node in graph.nodes if node.op == "Constant" for name in node.outputs}
    sizes: set[str] = set()
    found = Counter[str]()
    for node in graph.nodes:  # ONNX has them in the order of what they need
        given = [name for name in node.inputs if name and name in made and name not in fixed]
        if operators.find_operator(node.op).acts == "size" or (
            operators.find_operator(node.op).of_sizes and given and sizes.issuperset(given)
        ):
            sizes.update(node.outputs)
            found[node.op] += 1
    return found


def is_node_left_to_cpu(provider: str, nodes: Mapping[str, Counter[str]], model: bytes) -> bool:
    """Whether all that is not the provider's of a session's ``nodes`` (ops by provider) is what it leaves by design."""
    if provider not in PROVIDERS or not nodes.get(provider) or not set(nodes) <= {provider, CPU}:
        return False
    return not nodes.get(CPU, Counter()) - count_shape_arithmetic(model)
