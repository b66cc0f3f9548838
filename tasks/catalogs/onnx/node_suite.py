"""Catalog "onnx": the node cases of onnx.backend.test, each with its model, inputs and stored expected outputs."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tasks.arrays.layouts import make_array_contiguous
from tasks.arrays.pack import name_numpy_dtype
from tasks.arrays.tree import TensorSpec, flatten_nested_lists
from tasks.catalogs.base import Catalog, Entry, Failure, Sample, spread_sample_indices
from tasks.catalogs.onnx import every_input, pooling, structured_samples
from tasks.catalogs.onnx import float64 as onnx_float64
from tasks.judge import op_classes
from tasks.judge.error_metrics import get_classic_tolerance
from tasks.model import (
    EPS,
    EXHAUSTIVE,
    STRUCTURED,
    Group,
    Leaf,
    OpClass,
    get_numpy_dtype,
    get_wide_dtype,
    is_inexact_dtype,
)
from tasks.operators import table as operators

#: Raised whenever this file changes what a sample is.
CATALOG_VERSION = 3

_CASES = "onnx.backend.test.case.node"


class OnnxNode(Catalog):
    """The node cases (1884 in onnx 1.23) that ONNX ships as its conformance suite.

    An op is "onnx:<OpType>", a variant is a case's name without "test_". The op of a case is that of its only
    node. A case ``<name>_expanded…`` holds the body of a function op instead of the op itself: its op is that
    of the case ``<name>``. The expected outputs are those of a float64 evaluation (see
    `tasks.catalogs.onnx.float64`) with the suite's stored ones as second oracle, or, of exact ops and where there is no
    such evaluation, the stored ones alone (oracle "stored"): in the precision the suite computed them in, with the
    suite's rtol and atol and without a noise floor. A group's seed is ignored.
    """

    name = "onnx"
    forms = ("onnx",)
    imports = (f"{__name__}:_import_node_suite",)

    def version(self) -> str:
        # The suite computes its data with numpy and ml_dtypes when it is imported.
        parts = [f"{x} {importlib.metadata.version(x)}" for x in ("onnx", "numpy", "ml_dtypes")]
        return f"onnx_node {CATALOG_VERSION}, {', '.join(parts)}"

    def entries(self) -> list[Entry]:
        """All cases, sorted by op and variant; takes about 4 s in a process's first call."""
        cases = self._cases()
        found = [
            Entry(
                f"{self.name}:{_find_case_op_type(name, cases)}",
                name.removeprefix("test_"),
                (_find_case_dtype(case),),
                distributions=("own", *(STRUCTURED,) * bool(_find_selecting_inputs(case))),
            )
            for name, case in cases.items()
        ]
        return sorted(found + self._every(), key=lambda x: (x.op, x.variant))

    def _every(self) -> list[Entry]:
        """What is given every input there is: operators, not cases of the suite."""
        return every_input.list_every_input_entries(self.name)

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """The data sets of the one case ``group.variant`` (ONNX stores one), with ``draws`` noise draws where there is
        a float64 evaluation.

        A case that cannot be converted comes with a `Failure` of stage "sample". Raises KeyError for a case that
        this onnx does not have.
        """
        if group.distribution == EXHAUSTIVE:
            yield from every_input.make_every_input_samples(group, draws, skip)
            return
        name = f"test_{group.variant}"
        case = self._case(name, group.op_name)
        if group.distribution == STRUCTURED:
            yield from structured_samples.make_structured_onnx_samples(
                group, case, _read_suite_inputs(case), draws, skip
            )
            return
        for place, index in enumerate(spread_sample_indices(len(case.data_sets), group.samples)):
            if place in skip:
                yield Sample(index)
                continue
            inputs, outputs = case.data_sets[index]
            try:
                yield _make_suite_sample(f"onnx:{group.op_name}", case, index, inputs, outputs, draws)
            except Exception as error:
                yield Sample(index, failure=Failure.of(error, "sample"))

    def _cases(self) -> Mapping[str, Any]:
        """Every case by name."""
        return _list_suite_cases()

    def _case(self, name: str, op_type: str) -> Any:
        """A case of an op. Raises KeyError."""
        return _find_suite_case(name, op_type)


def _make_suite_sample(op: str, case: Any, index: int, inputs: list[Any], outputs: list[Any], draws: int) -> Sample:
    model = case.model.SerializeToString(deterministic=True)
    if not case.model.graph.node:
        return Sample(index, model=model, failure=Failure("vacuous", "sample", "Vacuous", "the model has no node"))
    names = [x.name for x in case.model.graph.input]
    if len(names) != len(inputs):
        raise ValueError(f"the graph has {len(names)} inputs ({', '.join(names)}), the data set {len(inputs)}")
    if len(case.model.graph.output) != len(outputs):
        raise ValueError(f"the graph has {len(case.model.graph.output)} outputs, the data set {len(outputs)}")
    arrays: list[np.ndarray] = []
    args = tuple(_encode_suite_argument(x, arrays) for x in inputs)
    transform = any(operators.find_operator(node.op_type).sums == "transform" for node in case.model.graph.node)
    expected = [_make_suite_leaf(x, case.rtol, case.atol, transform) for x in flatten_nested_lists(outputs)]
    random = _is_suite_case_random(case.model.graph, dict(zip(names, inputs)))
    op_class = (
        OpClass.RANDOM
        if random
        else op_classes.find_op_class(op, kwargs=_read_node_attributes(case.model.graph)).op_class
    )
    sample = Sample(index, args, arrays=arrays, expected=expected, op_class=op_class, oracle="stored", model=model)
    try:
        onnx_float64.add_float64_oracle(sample, case, [_make_suite_dense(x) for x in inputs], draws)
    except onnx_float64.NoOracle:
        pass
    return sample


def _read_suite_inputs(case: Any) -> list[Any]:
    """Those of its first data set."""
    return [_make_suite_dense(x) for x in case.data_sets[0][0]]


def _find_selecting_inputs(case: Any) -> list[int]:
    return (
        structured_samples.find_selecting_inputs(case, _read_suite_inputs(case))
        if len(case.model.graph.node) == 1
        else []
    )


def _read_node_attributes(graph: Any) -> dict[str, Any]:
    """Attributes of the only node; none of an expanded function."""
    from onnx import helper

    found = {a.name: helper.get_attribute_value(a) for a in graph.node[0].attribute} if len(graph.node) == 1 else {}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


def _make_suite_dense(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_make_suite_dense(x) for x in value]
    return None if value is None else _to_dense_array(value)


def _encode_suite_argument(value: Any, arrays: list[np.ndarray]) -> Any:
    """``value`` as a tree node, its tensors appended to ``arrays``."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_encode_suite_argument(x, arrays) for x in value]
    arrays.append(_to_dense_array(value))
    return TensorSpec(len(arrays) - 1)


def _make_suite_leaf(value: Any, rtol: float, atol: float, transform: bool) -> Leaf:
    array = _to_dense_array(value)
    dtype = name_numpy_dtype(array.dtype)
    if transform and array.size:
        atol = max(atol, 8 * EPS[dtype] * float(np.abs(array.astype(np.float64)).max()))
    if not is_inexact_dtype(dtype):
        rtol = atol = 0.0  # the suite's are for floating outputs: an integer beyond 1000 could be another one
    if dtype in ("float16", "bfloat16"):
        # The suite computed the stored output in 16 bits itself: it is off by roundings of its own.
        rtol = max(rtol, 4 * EPS[dtype])
    own = get_classic_tolerance(dtype)  # the suite's are made for float32
    rtol, atol = max(rtol, own[0]), max(atol, own[1])
    # Exact for every dtype: float64 and complex128 hold all values of the narrower ones.
    reference = array if get_wide_dtype(dtype) == dtype else array.astype(get_wide_dtype(dtype))
    return Leaf(dtype, array.shape, reference, None, rtol, atol)


def _to_dense_array(value: Any) -> np.ndarray:
    """A numpy scalar, array or TensorProto as a contiguous array of a dtype of the farm; text as objects of str.

    Raises TypeError for anything else.
    """
    if hasattr(value, "data_type"):
        from onnx import numpy_helper

        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"a {type(value).__name__} is no tensor")
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        text = [x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]
        filled = np.empty(len(text), dtype=object)
        filled[:] = text
        return filled.reshape(array.shape)
    get_numpy_dtype(name_numpy_dtype(array.dtype))
    return make_array_contiguous(array)


def _find_case_dtype(case: Any) -> str:
    """Dtype name of the first floating input, else of the first input, else of the first output."""
    inputs, outputs = case.data_sets[0]
    first = [_find_value_dtype(x) for x in flatten_nested_lists(inputs) if x is not None]
    floating = [x for x in first if get_wide_dtype(x) != x or x in ("float64", "complex128")]
    return (
        floating
        or first
        or [_find_value_dtype(x) for x in flatten_nested_lists(outputs) if x is not None]
        or ["float32"]
    )[0]


def _find_value_dtype(value: Any) -> str:
    if hasattr(value, "data_type"):
        from onnx import helper

        return name_numpy_dtype(np.dtype(helper.tensor_dtype_to_np_dtype(value.data_type)))
    return name_numpy_dtype(value.dtype)


def _is_suite_case_random(graph: Any, inputs: dict[str, Any]) -> bool:
    """True if a node draws at random. Dropout does so only in training mode with a ratio above 0."""
    for node in graph.node:
        if operators.find_operator(node.op_type).draws:
            return True
        if node.op_type == "Dropout" and len(node.input) > 2:
            given = [inputs.get(x) for x in node.input[1:3]]
            ratio = 0.5 if given[0] is None else float(_to_dense_array(given[0]))
            if given[1] is not None and bool(_to_dense_array(given[1])) and ratio > 0:
                return True
        for attribute in node.attribute:
            graphs = ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)
            if any(_is_suite_case_random(x, {}) for x in graphs):
                return True
    return False


def _find_case_op_type(name: str, cases: Mapping[str, Any]) -> str:
    whole = name.partition("_expanded")[0]
    return str(cases[whole if whole in cases else name].model.graph.node[0].op_type)


# -- the suite: it has no files; importing a module of it computes that module's cases ------------------------


def _find_suite_case(name: str, op_type: str) -> Any:
    """The case ``name``, importing only the module named after its op if that holds it (10 ms for 4 s)."""
    wanted = _make_suite_key(op_type)
    # Range is in rangeop.
    near = (module for module in _list_suite_modules() if _make_suite_key(module.rpartition(".")[2]).startswith(wanted))
    for module in sorted(near, key=len):
        if (found := _load_suite_modules((module,)).get(name)) is not None:
            return found
    try:
        return _list_suite_cases()[name]
    except KeyError:
        raise KeyError(f"onnx {importlib.metadata.version('onnx')} has no node case {name!r}") from None


def _make_suite_key(name: str) -> str:
    return name.replace("_", "").lower()


@lru_cache(maxsize=1)
def _list_suite_modules() -> tuple[str, ...]:
    return tuple(x.name for x in pkgutil.walk_packages(_import_node_suite().__path__, f"{_CASES}."))


@lru_cache(maxsize=1)
def _list_suite_cases() -> dict[str, Any]:
    return _load_suite_modules(_list_suite_modules())


@lru_cache(maxsize=1)
def _import_node_suite() -> Any:
    """The package of the suite, without what it does beside computing cases: it collects the source of each for onnx's
    documentation, a sixth of the time."""
    from onnx.backend.test.case import base

    base.process_snippet = lambda op_name, name, export: (name, "")
    pooling.install_fast_pooling()
    return importlib.import_module(_CASES)


#: Cases loaded so far, by name.
_loaded: dict[str, Any] = {}


def _load_suite_modules(modules: tuple[str, ...]) -> dict[str, Any]:
    """Import ``modules`` of the suite and return all cases loaded so far, by name."""
    suite = _import_node_suite()
    # The suite seeds numpy's global generator before every function and computes infinities on purpose.
    state = np.random.get_state()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for module in modules:
                importlib.import_module(module)
    finally:
        np.random.set_state(state)
    _loaded.update((x.name, x) for x in suite._NodeTestCases[len(_loaded) :])
    return _loaded
