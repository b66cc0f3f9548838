"""ExecuTorch: torch.export, lowering to a .pte program, and its own runtime; CPU kernels or the XNNPACK delegate."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import TensorSpec, decode_argument_tree, encode_tensor_spec
from tasks.backends.base import Backend, smoke_test
from tasks.backends.shared import artefacts, torch_switches
from tasks.backends.shared.recipe import ProgramRecipe, check_form_has_program
from tasks.backends.shared.torch_run import to_arrays
from tasks.model import Fallback, Form, Program, RuntimeInfo, Unavailable, Unsupported, Vacuous
from tasks.variables import count_compute_threads

#: Counts up whenever this file lowers otherwise than before: part of the key of kept programs.
LOWERING = "1"

#: Rows for which memory is planned where their number is open.
MOST_ROWS = 257

#: Delegates that the partitioner of a device hands nodes to.
DEVICES = {"cpu": "", "xnnpack": "XnnpackBackend"}

#: XNNPACK takes these with weights that are constants of the program alone, as they are in a deployed model:
#: aten op → places of the weights among its arguments.
WEIGHTS = {
    "linear": (1, 2),
    "mm": (1,),
    "addmm": (0, 2),
    "convolution": (1, 2),
    "conv1d": (1, 2),
    "conv2d": (1, 2),
    "conv_transpose2d": (1, 2),
    "batch_norm": (1, 2, 3, 4),
    "prelu": (1,),
    "_prelu_kernel": (1,),
}

#: Kernels that move bytes and compute nothing: beside delegated nodes they are no fallback.
MOVES = (
    "squeeze_copy",
    "unsqueeze_copy",
    "view_copy",
    "permute_copy",
    "transpose_copy",
    "t_copy",
    "expand_copy",
    "slice_copy",
    "select_copy",
    "split_copy",
    "split_with_sizes_copy",
    "clone",
    "_clone_dim_order",
    "alias_copy",
    "detach_copy",
)

#: How lowering says that ExecuTorch has no such operator or kernel.
_NOT_LOWERED = re.compile(
    r"not in Core ATen opset|Missing out variant|not supported|not implemented|unsupported", re.IGNORECASE
)
#: How the runtime says so on stderr (its exceptions have a number alone).
_NO_KERNEL = re.compile(
    r"Missing operator: .*|Unhandled dtype .*|Expect \w+ tensor to be \S+ or \S+, but got.*|"
    r".*(?:not supported|not implemented|[Uu]nsupported).*"
)
#: Where ExecuTorch's log puts the place in its source: "[method.cpp:123] ".
_PLACE = re.compile(r"^.*?\[\w+\.(?:cpp|h):\d+\] ?", re.MULTILINE)


#: A program of one add.
PROBE = Form(
    "torch",
    "Add",
    "float32",
    [np.ones(2, np.float32)],
    call=lambda x: x + x,
    args={"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]},
    kwargs={"$": "dict", "v": []},
)


class ExecuTorch(Backend):
    """``executorch-cpu``: the runtime's CPU kernels. ``executorch-xnnpack``: XNNPACK alone; what its partitioner
    leaves to the CPU kernels is a fallback."""

    takes_threads = True
    vendor = "Meta"
    forms = ("torch",)
    takes = ()
    devices = tuple(DEVICES)
    packages: tuple[str, ...] = ("executorch==1.5.1", "torch==2.13.0", "expecttest", "scipy")
    #: Whether a program takes any number of rows.
    any_rows = False
    #: Whose partitioner takes nodes, and the CPU kernels that may stand beside them.
    taker: str = "XNNPACK"
    moves: tuple[str, ...] = MOVES

    def probe(self) -> RuntimeInfo:
        if self.device not in DEVICES:
            raise Unavailable(f"executorch runs on {', '.join(DEVICES)} here, not on {self.device!r}")
        try:
            import torch

            library = _load_executorch_library()
        except ImportError as error:
            raise Unavailable(f"executorch cannot be imported: {error}") from error
        torch.set_num_threads(count_compute_threads())
        library._unsafe_reset_threadpool(count_compute_threads())
        delegate = DEVICES[self.device]
        if delegate and delegate not in library._get_registered_backend_names():
            raise Unavailable(
                f"this executorch has no {delegate}; it has {', '.join(library._get_registered_backend_names())}"
            )
        # Also imports the compiler, which takes longer than many a case may.
        smoke_test(delegate or "executorch", lambda: self.build(PROBE).run()[0], "one-add program")
        version = metadata.version("executorch")
        versions = f"executorch {version}, torch {torch.__version__}"
        return RuntimeInfo(versions, delegate or "CPU kernels", build=torch_switches.read_torch_commit())

    def build(self, form: Form) -> Program:
        """Export, lower and load one sample.

        Raises Unsupported (not exportable, no such operator in the Core ATen opset, no kernel), Fallback (nodes that
        XNNPACK's partitioner leaves to the CPU kernels), Vacuous (a program without a kernel).
        """
        import torch

        assert form.call is not None
        tensors = self._tensors(form)
        exported, constants = self._export(form, tensors)
        header, program = _split_kept_program(
            artefacts.load_or_make("executorch", self._key(exported), lambda: self._lower(exported))
        )
        if header["unsupported"]:
            raise Unsupported(header["unsupported"])
        self._describe_placement(header)
        method = self._method(program)
        left = [i for i in range(len(tensors)) if i not in constants]

        def runner(form: Form) -> Callable[[], Sequence[Any]]:
            ready = [self._tensors(form)]

            def run() -> Sequence[Any]:
                # A kernel that writes to its inputs spoils no next run.
                given = ready.pop() if ready else self._tensors(form)
                with torch.no_grad():
                    return method([given[i] for i in left])

            return run

        def bind_inputs(arrays: list[Any]) -> Callable[[], Sequence[Any]]:
            if any(arrays[i] is not form.arrays[i] for i in constants):
                raise Unsupported("a weight is a constant of the program")
            return runner(form.with_arrays(arrays))

        where = {self.delegate: header["delegated"], "CPU kernels": header["kernels"]}
        placement = "; ".join(f"{name}: {_format_lowered_counts(nodes)}" for name, nodes in where.items() if nodes)
        flags = f"constant_inputs={','.join(map(str, constants))}" if constants else ""
        return Program(runner(form), placement=placement, flags=flags, given=bind_inputs)

    def any_size(self) -> Backend:
        """Of any number of rows up to MOST_ROWS, where the form says which arrays have them."""
        return self.but(any_rows=True)

    @property
    def delegate(self) -> str:
        """What its partitioner hands nodes to; "" for none."""
        return DEVICES.get(self.device, "")

    def _method(self, program: bytes) -> Callable[[list[Any]], list[np.ndarray]]:
        """A lowered program, loaded, as a function of tensors."""
        loaded = _call_with_stderr(lambda: _load_executorch_library()._load_program_from_buffer(program))
        method = _call_with_stderr(lambda: loaded.load_method("forward"))
        alive = (loaded, program)  # a method points into its program, and the program into its bytes

        def run(given: list[Any]) -> list[np.ndarray]:
            assert alive
            out = _call_with_stderr(lambda: method(given))
            return [torch_tree.make_output_array(torch_tree.dense(x)) for x in out if x is not None]

        return run

    def _describe_placement(self, header: dict[str, Any]) -> None:
        kernels, delegated = header["kernels"], header["delegated"]
        if not kernels and not delegated:
            raise Vacuous("the program runs no kernel")
        if self.delegate and (not delegated or any(name.split(".")[1] not in self.moves for name in kernels)):
            taken = sum(delegated.values())
            raise Fallback(
                f"{self.taker} takes {taken} of {taken + sum(kernels.values())} nodes; the CPU kernels have {_format_lowered_counts(kernels)}"
            )

    def recipe(self, form: Form) -> ProgramRecipe:
        check_form_has_program(form)
        held = list(self._export(form, self._tensors(form))[1])
        settings = {"held": held, "delegate": bool(DEVICES[self.device])}
        return ProgramRecipe(run_program, settings, (to_arrays, export_executorch_module))

    @staticmethod
    def _tensors(form: Form) -> list[Any]:
        """Fresh contiguous tensors of the arguments, in the order of the trees: a program has no other strides."""
        import torch

        leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu")
        found = [
            x
            for x in _list_argument_leaves(
                (decode_argument_tree(form.args, leaf), decode_argument_tree(form.kwargs, leaf))
            )
            if isinstance(x, torch.Tensor)
        ]
        if any(x.layout != torch.strided for x in found):
            raise Unsupported("executorch has no sparse tensors")
        # Not contiguous(): an empty array from numpy has strides of 0, which lowering refuses.
        return [x.clone(memory_format=torch.contiguous_format) for x in found]

    def _export(self, form: Form, tensors: list[Any]) -> tuple[Any, tuple[int, ...]]:
        """(exported program of the tensors alone, places of those that are constants of it). Raises Unsupported."""
        rows = form.batched if self.any_rows else ()
        exported = _export_executorch_program(form, tensors, (), rows)
        if not self.delegate:
            return exported, ()
        constants = tuple(i for i in _find_weight_inputs(exported) if i not in rows)
        return (_export_executorch_program(form, tensors, constants, rows), constants) if constants else (exported, ())

    def _key(self, exported: Any) -> tuple[bytes | str, ...]:
        """Everything that decides a program's bytes: versions, device, the graph with its shapes, its constants."""
        import torch

        graph = exported.graph_module.print_readable(print_output=False, include_stride=True)
        constants = {**exported.state_dict, **exported.constants}
        data = [x for name in sorted(constants) if isinstance(x := constants[name], torch.Tensor)]
        digest = [
            f"{x.dtype} {tuple(x.shape)}".encode() + torch_tree.tensor_to_numpy(x.detach().contiguous()).tobytes()
            for x in data
        ]
        versions = f"{metadata.version('executorch')} {torch.__version__}"
        sizes = str(exported.range_constraints)
        return (LOWERING, versions, self.device, graph, str(exported.graph_signature), sizes, *digest)

    def _lower(self, exported: Any) -> bytes:
        """A program and what is in it (see `_split_kept_program`). Errors other than "has no such operator" are
        raised."""
        from executorch.exir import to_edge_transform_and_lower

        _keep_export_lists()
        try:
            made = to_edge_transform_and_lower(exported, partitioner=self._partitioners())
            kernels, delegated, program = self._pack_lowered(made)
        except Exception as error:
            if not _NOT_LOWERED.search(str(error)):
                raise
            return _join_executorch_file(
                {"unsupported": f"not lowered: {_cut_executorch_error(error)}", "kernels": {}, "delegated": {}}, b""
            )
        return _join_executorch_file({"unsupported": "", "kernels": kernels, "delegated": delegated}, program)

    def _partitioners(self) -> list[Any] | None:
        """What hands nodes to the delegate."""
        if self.device != "xnnpack":
            return None
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        return [XnnpackPartitioner()]

    def _pack_lowered(self, made: Any) -> tuple[dict[str, int], dict[str, int], bytes]:
        """(CPU kernels by name, delegated nodes by name, the bytes that `_method` loads) of what was lowered."""
        program = made.to_executorch()
        return *list_lowered_nodes(program.exported_program()), program.buffer


def _load_executorch_library() -> Any:
    """The runtime's binding itself: the package around it would import the whole compiler (8 s)."""
    import torch  # noqa: F401  its libraries are loaded by it
    from executorch.extension.pybindings import _C

    return _C


def _export_executorch_program(
    form: Form, tensors: list[Any], constants: tuple[int, ...], rows: tuple[int, ...] = ()
) -> Any:
    """torch's exported program of the sample as a function of its tensors; those in ``constants`` are part of it, and
    those in ``rows`` have an open first dimension."""
    import torch

    leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu")
    arguments = decode_argument_tree(form.args, leaf), decode_argument_tree(form.kwargs, leaf)
    assert form.call is not None
    call: Callable[..., Any] = form.call

    class Op(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in constants:
                self.register_buffer(f"constant_{i}", tensors[i])

        def forward(self, *given: Any) -> Any:
            left = iter(given)
            all_of_them = [
                getattr(self, f"constant_{i}") if i in constants else next(left) for i in range(len(tensors))
            ]
            args, kwargs = _replace_argument_tensors(arguments, iter(all_of_them))
            return tuple(torch_tree.list_output_tensors(call(*args, **kwargs)))

    left = [i for i in range(len(tensors)) if i not in constants]
    given = tuple(tensors[i] for i in left)
    sizes = None
    if rows:
        dim = torch.export.Dim("rows", min=1, max=max(MOST_ROWS, len(tensors[rows[0]])))
        sizes = (tuple({0: dim} if i in rows else {} for i in left),)
    try:
        with torch.no_grad():
            made = torch.export.export(Op(), given, strict=False, dynamic_shapes=sizes)
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise
        raise Unsupported(f"not exported: {type(error).__name__}: {_cut_executorch_error(error)}") from None
    if rows and any(
        x.upper < MOST_ROWS for x in made.range_constraints.values()
    ):  # torch's choice of a kernel, asked on the way
        raise Unsupported(f"not exported for {MOST_ROWS} rows: {made.range_constraints}")
    return made


def _find_weight_inputs(exported: Any) -> tuple[int, ...]:
    """Places of the inputs that are weights of ops in WEIGHTS and nothing else; never all of the inputs."""
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder"]

    def is_weight(node: Any) -> bool:
        uses = [
            ({i for i, x in enumerate(user.args) if x is node}, getattr(user.target, "_opname", ""))
            for user in node.users
        ]
        return bool(uses) and all(places and places <= set(WEIGHTS.get(op, ())) for places, op in uses)

    found = tuple(place for place, node in enumerate(inputs) if is_weight(node))
    return found if len(found) < len(inputs) else ()


def list_lowered_nodes(program: Any) -> tuple[dict[str, int], dict[str, int]]:
    """(CPU kernels by name, delegated nodes by name) of a lowered program; views and memory are no kernels."""
    kernels: Counter[str] = Counter()
    delegated: Counter[str] = Counter()
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        if "executorch_call_delegate" in name:
            inside = getattr(program.graph_module, node.args[0].target).original_module.graph_module
            named = [str(getattr(x.target, "_op", x.target)) for x in inside.graph.nodes if x.op == "call_function"]
            delegated.update(x for x in named if "getitem" not in x)
        elif "." in name and not name.startswith("<"):
            kernels[name] += 1
    return dict(kernels), dict(delegated)


def _format_lowered_counts(nodes: dict[str, int]) -> str:
    return ", ".join(f"{n} {op}" for op, n in sorted(nodes.items()))


def _join_executorch_file(header: dict[str, Any], program: bytes) -> bytes:
    return json.dumps(header).encode() + b"\n" + program


def _split_kept_program(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A kept program: a line of JSON (``unsupported``, ``kernels``, ``delegated``), then the .pte's bytes."""
    header, _, program = data.partition(b"\n")
    return json.loads(header), program


@functools.cache
def _keep_export_lists() -> None:
    """Let torch.export keep its list of decomposable operators, which it makes anew five times a program."""
    import torch._export.utils as export_utils

    collect = export_utils._collect_all_valid_cia_ops
    kept = functools.cache(collect)
    for module in list(sys.modules.values()):
        if getattr(module, "_collect_all_valid_cia_ops", None) is collect:
            module._collect_all_valid_cia_ops = kept  # type: ignore[attr-defined]


def _call_with_stderr(action: Callable[[], Any]) -> Any:
    """What ``action`` returns; an exception of the runtime is raised with the words it left on stderr.

    Raises Unsupported where these say that there is no kernel.
    """
    try:
        before = os.fstat(2).st_size
    except OSError:
        before = 0
    try:
        return action()
    except RuntimeError as error:
        try:
            said = os.pread(2, 4000, before).decode(errors="replace")
        except OSError:  # not a file
            said = ""
        text = _PLACE.sub("", said).strip()
        if found := _NO_KERNEL.search(text):
            raise Unsupported(f"{found[0].strip()} ({error})") from None
        raise RuntimeError(f"{error}: {text}" if text else str(error)) from None


def _list_argument_leaves(value: Any) -> Iterator[Any]:
    """Every leaf of an argument tree, in order."""
    if isinstance(value, (list, tuple)):
        for x in value:
            yield from _list_argument_leaves(x)
    elif isinstance(value, dict):
        for x in value.values():
            yield from _list_argument_leaves(x)
    else:
        yield value


def _replace_argument_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    """The argument tree with its tensors, in order, replaced by ``tensors``."""
    import torch

    if type(value) is tuple:
        return tuple(_replace_argument_tensors(x, tensors) for x in value)
    if isinstance(value, list):
        return [_replace_argument_tensors(x, tensors) for x in value]
    if isinstance(value, dict):
        return {k: _replace_argument_tensors(x, tensors) for k, x in value.items()}
    return next(tensors) if isinstance(value, torch.Tensor) else value


def _cut_executorch_error(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def export_executorch_module(module: Any, inputs: list, held: list) -> tuple:
    """(exported program, the tensors it takes); held: places of the inputs that are constants of it."""
    import torch

    given = [x.clone(memory_format=torch.contiguous_format) for x in module.tensors(inputs)]

    class Op(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for k in held:
                self.register_buffer(f"c{k}", given[k])

        def forward(self, *x: Any) -> Any:
            rest = iter(x)
            every = [getattr(self, f"c{k}") if k in held else next(rest) for k in range(len(given))]
            return module.program(*every)

    left = [x for k, x in enumerate(given) if k not in held]
    return torch.export.export(Op(), tuple(left), strict=False), left


def run_program(module: Any, inputs: list, held: list, delegate: bool) -> list:
    """Outputs of a program on ExecuTorch; delegate: lowered to XNNPACK."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.extension.pybindings import _C

    exported, given = export_executorch_module(module, inputs, held)
    partitioner = [XnnpackPartitioner()] if delegate else None
    program = to_edge_transform_and_lower(exported, partitioner=partitioner).to_executorch().buffer
    return to_arrays(_C._load_program_from_buffer(program).load_method("forward")(given))
