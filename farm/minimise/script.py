"""The script of a minimal case: the graph in ONNX's own words, the inputs, the call of the runtime, what was to come."""

from __future__ import annotations

import base64
import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from farm.fleet.envs import OWN_PACKAGES
from farm.minimise import beside, network
from farm.minimise.calls import Words, in_words
from farm.minimise.defined import EQUAL, Defined
from farm.reproduce.in_torch import literal, op_lines
from tasks.backends.shared.few_lines import FewLines, NoScript, is_network, is_program, torch_arrays
from tasks.backends.shared.onnx_form import inputs_by_name
from tasks.counterparts.table import FRAMEWORKS
from tasks.judge.plain import allowed, tolerated
from tasks.judge.policy import OWN_TOLERANCE, only_stored
from tasks.model import EPS, Form, Group, Leaf, OpClass, Status, Unsupported, flags, is_complex, is_inexact
from tasks.model.dtypes import LARGEST, NATIVE, SMALLEST_NORMAL, dtype_name, np_dtype
from tasks.model.kind import KIND_PROPERTY
from tasks.model.row import declared_precision

#: Lines beyond which a script is not short: the long one, which has the judge in it, is written then.
MORE = 100
#: Elements up to which an array is written out.
_WRITTEN = 64
#: Elements of which every pair is compared.
_PAIRED = 4096


def short(
    form: Form,
    group: Group,
    expected: Sequence[Leaf],
    row: Mapping[str, Any],
    backend: Any,
    title: str,
    packages: Sequence[str],
    defined: Defined | None = None,
    earlier: Sequence[tuple[Form, Group]] = (),
    times: int = 1,
    deadline_s: float = 60.0,
) -> str:
    """The text of a script that fails as ``row`` does, one of the lake with the rule and the bound of its policy: exit code 1 and the last word "wrong" for numbers, the runtime's own
    exception, crash or hang else. defined: of a result that is defined up to a choice; earlier: cases that are run before it; times: how often it is run, each time in a
    process of its own, where it fails only sometimes; deadline_s: of such a run that hangs. Raises NoScript."""
    writer = _Writer()
    form = replace(form, results=tuple(leaf.dtype for leaf in expected))
    try:
        call, imports, given, form = _begun(form, group, row, writer, backend)
        former = [_begun(*one, {"status": Status.CRASH}, writer, backend) for one in earlier]
    except Unsupported as error:
        raise NoScript(f"no short script: {error}") from None
    once, again = list(call.once), row["kind"] == beside.AGAIN
    lines = list(call.lines) if again else [*once, *call.lines]
    if (how := beside.of(row)) is not None:
        before, lines, judged = how(lines, form, group)
        before = [*once, *before] if again else before
    else:
        before, judged = [], _ending(form, group, expected, row, writer, defined)
    further = [line for one in former for line in (*one[0].imports, *one[1])]
    hangs = deadline_s if row["status"] == Status.TIMEOUT else None
    first, then = beside.sometimes(times, hangs) if times > 1 else ([], [])
    head = [
        f'"""{_plain(title)}"""',
        f"# pip install {shlex.join([*packages, *(x for x in OWN_PACKAGES if x == 'numpy' or writer.exotic)])}",
        *first,
        *call.before,
        *(["import base64"] if writer.packed else []),
        "import numpy as np",
        *(["import onnx", "from onnx import TensorProto, helper, numpy_helper"] if form.model is not None else []),
        *dict.fromkeys((*(["import ml_dtypes"] if writer.exotic else []), *call.imports, *imports, *further)),
        *then,
        "",
    ]
    begun = [line for one in former for line in (*one[2], *one[0].once, *one[0].lines)]
    text = [*head, *begun, *given, *before, *lines, *judged]
    if len(text) > MORE:
        raise NoScript(f"no short script: it would have {len(text)} lines")
    return "\n".join(text) + "\n"


def _begun(
    form: Form, group: Group, row: Mapping[str, Any], writer: _Writer, backend: Any
) -> tuple[FewLines, Sequence[str], list[str], Form]:
    """(the runtime's call, imports, the lines before it, the form as a script has it). Raises NoScript, Unsupported."""
    call = backend.few_lines(form)
    if is_network(form):
        return call, *network.words(form, group), form
    if form.kind not in ("torch", *FRAMEWORKS):
        return call, (), _model(form, writer), form
    whole = form.kind != "torch" or is_program(form)
    words = in_words(form, writer.value) if whole else _call(form, group, Status(row["status"]))
    values = ", ".join(map(writer.value, words.arrays))
    given = [*words.lines, f"arrays = [{values}]", f"call = lambda *x: {words.call}"]
    return call, words.imports, given, replace(form, model=None)


def _ending(
    form: Form, group: Group, expected: Sequence[Leaf], row: Mapping[str, Any], writer: _Writer, defined: Defined | None
) -> list[str]:
    """Lines that say whether what came is right; for what raises or dies, that it did not. Raises NoScript."""
    if Status(row["status"]) not in (Status.WRONG, Status.IMPRECISE):
        return ['print("it did not fail:", got)']
    if row["kind"] == KIND_PROPERTY:
        inputs = "feeds.values()" if form.model is not None else "arrays"
        return _broken(row.get("breaks") or "", inputs, expected[0])
    if is_network(form):
        return network.judged(form, expected, row)
    if row["kind"] in ("shape", "dtype") or (defined is None and row["op_class"] in _BY_SHAPE):
        return _described(expected, row["op_class"] or "")
    if defined is None:
        return _judged(expected, row, writer)
    own = {**row, "op_class": OpClass.COMPOSITE, "compute_precision": ""}
    return [*defined.lines(form), *_judged(defined.leaves, own, writer, [EQUAL] * defined.double)]


def _model(form: Form, writer: _Writer) -> list[str]:
    """Lines that make ``model`` and ``feeds``. Raises NoScript."""
    import onnx

    if form.kind != "onnx" or form.model is None:
        raise NoScript(f"no short script: none is known for the form {form.kind!r}")

    feeds = [f'"{name}": {writer.value(x)}' for name, x in inputs_by_name(form).items()]
    return [*_graph(onnx.load_from_string(form.model), writer), f"feeds = {{{', '.join(feeds)}}}"]


def _call(form: Form, group: Group, status: Status) -> Words:
    """The words for a call of one function of torch's, or of one's own. Raises NoScript."""
    seen = itertools.count()

    def written(node: Any) -> str:
        return literal(node, form, lambda *_: f"x[{next(seen)}]")

    args = [*map(written, form.args["v"]), *(f"{name}={written(x)}" for name, x in form.kwargs["v"])]
    made = op_lines(form, group, tried=not status.deadly).splitlines()
    return Words((), tuple(filter(None, made)), torch_arrays(form), f"OP({', '.join(args)})")


class _Writer:
    """Source of arrays; packed, exotic: what it took."""

    def __init__(self) -> None:
        self.packed = self.exotic = False

    def dtype(self, name: str) -> str:
        name = np_dtype(name).name  # complex32 is told as what it travels in
        if name in ("object", "bool"):
            return name
        if name in NATIVE:
            return f"np.{name}"
        self.exotic = True
        return f"ml_dtypes.{name}"

    def value(self, x: Any, any_nan: bool = False) -> str:
        """any_nan: one NaN stands for all."""
        if not isinstance(x, np.ndarray):
            raise NoScript("no short script: an input is no tensor")
        name = dtype_name(x.dtype)
        dtype = self.dtype(name)
        if name == "str":
            return f"np.array({[str(v) for v in x.ravel().tolist()]!r}, object).reshape({x.shape})"
        if x.size > 1 and (x == x.reshape(-1)[0]).all() and not _negative(x):
            return f"np.full({x.shape}, {_number(x.reshape(-1)[0], name)}, {dtype})"
        if x.size > _WRITTEN:
            self.packed = True
            text = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
            return f'np.frombuffer(base64.b64decode("{text}"), {dtype}).reshape({x.shape})'
        if not any_nan and (bits := _odd_nans(x, name)) is not None:
            return f"np.array({_nested(bits, 'uint64')}, np.{bits.dtype.name}).view({dtype})"
        written = _nested(x, name)
        empty = f".reshape({x.shape})" if not x.size else ""
        return f"np.array({written}, {dtype}){empty}"


def _nested(x: np.ndarray, name: str) -> str:
    if x.ndim == 0:
        return _number(x[()], name)
    return f"[{', '.join(_nested(row, name) for row in x)}]"


def _odd_nans(x: np.ndarray, name: str) -> np.ndarray | None:
    """The bits of numbers of which some NaN has others than NumPy's own (TVM's cast makes 0 of one and NaN of another); None
    where there is none."""
    if not is_inexact(name) or name.startswith("complex"):
        return None
    nan = np.isnan(x)
    bits, own = (
        a.view(f"u{x.dtype.itemsize}")
        for a in (np.ascontiguousarray(x).reshape(x.shape), np.full(x.shape, np.nan, x.dtype))
    )
    return bits if (bits != own)[nan].any() else None


def _negative(x: Any) -> bool:
    """Whether a part of some number has the sign of the negative ones, be it a zero's."""
    parts = np.asarray(x, np.complex128)
    return bool((np.signbit(parts.real) | np.signbit(parts.imag)).any())


def _number(value: Any, name: str) -> str:
    """A number that is the same again in its dtype."""
    if name == "bool" or not is_inexact(name):
        return str(value.item() if hasattr(value, "item") else value)
    if name.startswith("complex"):
        z = complex(value)
        plain = np.isfinite(z) and not _negative(z)  # Python reads -1-0j as -1+0j
        return repr(z) if plain else f"complex({_number(z.real, 'float64')}, {_number(z.imag, 'float64')})"
    number = float(value)
    if not math.isfinite(number):
        return "np.nan" if number != number else "np.inf" if number > 0 else "-np.inf"
    short = str(value)
    return repr(float(short)) if name in ("float16", "float32") and type(value)(float(short)) == value else repr(number)


def _graph(model: Any, writer: _Writer) -> list[str]:
    """Lines that make the ModelProto."""
    from onnx import numpy_helper

    graph = model.graph
    if any(a.HasField("g") or a.graphs or a.HasField("t") for node in graph.node for a in node.attribute):
        return _packed(model, writer)
    nodes = [f"    {_node(node)}," for node in graph.node]
    inputs, outputs = (", ".join(map(_value_info, values)) for values in (graph.input, graph.output))
    weights = [
        f'numpy_helper.from_array({writer.value(np.asarray(numpy_helper.to_array(x)))}, "{x.name}")'
        for x in graph.initializer
    ]
    held = [f"weights = [{', '.join(weights)}]"] if weights else []
    opsets = ", ".join(f'helper.make_opsetid("{x.domain}", {x.version})' for x in model.opset_import)
    return [
        *(["nodes = [", *nodes, "]"] if len(nodes) > 1 else [f"nodes = [{nodes[0].strip(' ,')}]"]),
        f"inputs = [{inputs}]",
        f"outputs = [{outputs}]",
        *held,
        f'graph = helper.make_graph(nodes, "minimal", inputs, outputs{", weights" if held else ""})',
        f"model = helper.make_model(graph, opset_imports=[{opsets}], ir_version={model.ir_version})",
        "onnx.checker.check_model(model)",
    ]


def _packed(model: Any, writer: _Writer) -> list[str]:
    writer.packed = True
    text = base64.b64encode(model.SerializeToString()).decode()
    return [f'model = onnx.load_from_string(base64.b64decode("{text}"))', "onnx.checker.check_model(model)"]


def _node(node: Any) -> str:
    from onnx import helper

    given = [f"{list(node.input)!r}", f"{list(node.output)!r}"]
    if node.domain not in ("", "ai.onnx"):
        given.append(f'domain="{node.domain}"')
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        value = value.decode() if isinstance(value, bytes) else value
        if not isinstance(value, (int, float, str)):
            value = [x.decode() if isinstance(x, bytes) else x for x in value]
        elif isinstance(value, float):
            value = float(str(np.float32(value)))
        given.append(f"{attribute.name}={value!r}")
    return f'helper.make_node("{node.op_type}", {", ".join(given)})'


def _value_info(value: Any) -> str:
    from onnx import TensorProto

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        raise NoScript("no short script: an input or output is no tensor")
    name = TensorProto.DataType.Name(kind.elem_type)
    shape = [getattr(x, x.WhichOneof("value") or "", None) for x in kind.shape.dim]
    told = repr(shape) if kind.HasField("shape") else "None"
    return f'helper.make_tensor_value_info("{value.name}", TensorProto.{name}, {told})'


#: Whether results y of inputs x break what mathematics promises, by the first words of `tasks.judge.properties.broken`.
_BREAKS = {
    "not rising": "(x[:, None] < x) & (y[:, None] - y > place)",
    "not falling": "(x[:, None] < x) & (y - y[:, None] > place)",
    "not odd": "(x[:, None] == -x) & (np.abs(y[:, None] + y) > 0)",
    "not even": "(x[:, None] == -x) & (np.abs(y[:, None] - y) > 0)",
}


def _broken(said: str, inputs: str, leaf: Leaf) -> list[str]:
    """Lines that say whether what came breaks the promise that a row was ``said`` to break. Raises NoScript."""
    if (what := said.partition(":")[0]) not in _BREAKS or math.prod(leaf.shape) > _PAIRED:
        raise NoScript(f"no short script: only the long script shows it ({said})")
    eps, smallest = EPS[leaf.dtype], SMALLEST_NORMAL[leaf.dtype]
    return [
        f"# {said}",
        f"x, y = (np.asarray(v).astype(np.float64).ravel() for v in (*{inputs}, got[0]))",
        *[f"place = {eps!r} * np.maximum(np.abs(y), {smallest!r})  # one place off is no disorder"]
        * ("place" in _BREAKS[what]),
        'print("given", x[:8], "got", y[:8])',
        f'raise SystemExit("wrong" if np.any({_BREAKS[what]}) else 0)',
    ]


#: Classes of which no number is to be one number.
_BY_SHAPE = (OpClass.RANDOM, OpClass.UNINITIALISED)


def _described(expected: Sequence[Leaf], op_class: str) -> list[str]:
    """Lines that say whether what came has the shapes and dtypes that it is to have, and of random numbers that all are finite
    whose reference is."""
    finite = [
        k
        for k, leaf in enumerate(expected)
        if op_class == OpClass.RANDOM and is_inexact(leaf.dtype)
        if leaf.reference is None or np.isfinite(leaf.reference).all()
    ]
    odd = f" or not all(np.isfinite(got[k].astype(complex)).all() for k in {finite})" * bool(finite)
    return [
        f"expected = {[(np_dtype(leaf.dtype).name, tuple(leaf.shape)) for leaf in expected]}",
        "found = [(str(a.dtype), a.shape) for a in map(np.asarray, got)]",
        'print("expected", expected, "got", found)',
        f'raise SystemExit("wrong" if found != expected{odd} else 0)',
    ]


def _judged(
    expected: Sequence[Leaf], row: Mapping[str, Any], writer: _Writer, between: Sequence[str] = ()
) -> list[str]:
    """Lines that compare what came with what is expected, number by number; between: lines after the expected results."""
    told = []
    for leaf in expected:
        if leaf.reference is None:
            raise NoScript("no short script: an output is defined only by its shape")
        most = _allowed(leaf, row)
        told.append(
            f"({writer.dtype(leaf.dtype)}, {writer.value(leaf.reference, any_nan=True)}, {_bound(most, writer)})"
        )
    listed = [f"expected = [{told[0]}]"] if len(told) == 1 else ["expected = [", *(f"    {x}," for x in told), "]"]
    lines = ["# dtype, exact result, largest difference allowed", *listed]
    excused = "".join(
        [
            " | np.iscomplexobj(a) & ~(np.isfinite(a) | np.isfinite(y.astype(dtype)))"
            * any(is_complex(leaf.dtype) for leaf in expected),  # whichever part is not
            " | np.isinf(most)" * any(np.isinf(_allowed(leaf, row)).any() for leaf in expected if leaf.dtype != "str"),
        ]
    )
    # Within an absolute bound the exact result is not always rounded to what it is in its dtype.
    rounded = "(a == y.astype(dtype))" + " & (~np.isfinite(a) | (a == y))" * (row.get("rule") == "absolute")
    numbers = [  # NaN is right where NaN is expected, and no largest difference allows for an infinity out of place
        *_at_border(expected, declared_precision(row)),
        # Where no difference is allowed, "a == y" alone decides: float64 takes large integers for the same.
        "    near = same and (np.abs(np.subtract(a, y, dtype=np.result_type(y, float))) <= most) & (most > 0)",
        f"    far = ~(near & (np.isfinite(a) == np.isfinite(y)) | {rounded} | (a != a) & (y != y)"
        f"{excused}) if same else True",
    ]
    compared = numbers if all(leaf.dtype != "str" for leaf in expected) else ["    far = a != y if same else True"]
    return [
        *lines,
        *between,
        "wrong = len(got) != len(expected)",
        "for (dtype, y, most), a in zip(expected, map(np.asarray, got)):",
        "    same = a.shape == y.shape and a.dtype == dtype",
        *compared,
        '    print("expected", np.dtype(dtype), y.shape, y.ravel()[:8], "got", a.dtype, a.shape, a.ravel()[:8])',
        "    wrong |= bool(np.any(far))",
        'raise SystemExit("wrong" if wrong else 0)',
    ]


def _at_border(expected: Sequence[Leaf], precision: str) -> list[str]:
    """The lines that make an infinity at the border of overflow finite, as the judge does; none where there is no such element.
    Raises NoScript."""
    near = {leaf.dtype for leaf in expected if _reach(leaf) >= LARGEST.get(leaf.dtype, np.inf) / 2}
    narrow = LARGEST.get(precision, np.inf)
    if any(_reach(leaf) >= narrow / 2 for leaf in expected if narrow < LARGEST.get(leaf.dtype, 0.0)):
        raise NoScript("no short script: a result is at the edge of what the declared precision holds")
    if len(near) > 1:
        raise NoScript("no short script: results of several dtypes are at the edge of overflow")
    return [
        line
        for beyond in (LARGEST[dtype] * (1 + EPS[dtype]) for dtype in near)
        if np.isfinite(beyond)
        for line in (
            "    edge = same and np.isinf(a) & np.isfinite(y.astype(dtype))",
            f"    a = np.where(edge, np.copysign(np.float64({beyond!r}), a), a) if same else a",
        )
    ]


def _reach(leaf: Leaf) -> float:
    """The largest finite size that a real result of a leaf may have: of complex ones any that is not finite is like another."""
    if leaf.reference is None or not is_inexact(leaf.dtype) or is_complex(leaf.dtype) or not leaf.reference.size:
        return 0.0
    with np.errstate(all="ignore"):
        sizes = np.abs(leaf.reference) + (0.0 if leaf.noise is None else leaf.noise)
        return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))


def _bound(most: np.ndarray, writer: _Writer) -> str:
    if not most.size or (most == most.reshape(-1)[0]).all():
        return _number(most.reshape(-1)[0], "float64") if most.size else "0"
    told = np.vectorize(lambda v: float(f"{v * 1.005:.3g}"))(most)  # in three digits, and never less
    return writer.value(told).replace(", np.float64", "")


def _allowed(leaf: Leaf, row: Mapping[str, Any]) -> np.ndarray:
    """The largest difference that the judge leaves to each element: by the limit of a row, by the classic tolerance where a stored
    result is all there is, or by the case's own tolerance. Raises NoScript."""
    op_class, oracle = OpClass(row["op_class"] or OpClass.COMPOSITE), str(row.get("oracle") or "")
    precision = declared_precision(row)
    ruled = row["limit"] is None
    most = _by_rule(leaf, op_class, row) if ruled else allowed(leaf, op_class, _limit(row), precision)
    if leaf.reference is None or leaf.dtype == "str":
        return most
    with np.errstate(all="ignore"):
        size = np.where(np.isfinite(leaf.reference), np.abs(leaf.reference), 0.0)
        if ruled:
            pass  # of a tolerance of its own a rule says what it says of any
        elif only_stored(oracle, op_class) or oracle.endswith(OWN_TOLERANCE):
            most = tolerated(leaf, op_class, precision)
        if leaf.dtype in flags.flushed(row.get("flags")):  # 0 is right for what is subnormal
            most = np.maximum(most, np.where(size < SMALLEST_NORMAL[leaf.dtype], size, 0.0))
    return most


def _by_rule(leaf: Leaf, op_class: OpClass, row: Mapping[str, Any]) -> np.ndarray:
    """The largest difference that a policy without limits leaves to each element (`tasks.judge.policy.Policy`). Raises NoScript."""
    y, rule = np.asarray(leaf.reference), row.get("rule")
    if rule not in ("classic", "absolute") or leaf.reference is None:
        _limit(row)
    if leaf.dtype == "str":
        return np.zeros(y.shape)
    if leaf.noise is not None and not np.isfinite(leaf.noise).all():
        raise NoScript("no short script: rounding's effect on a result has no bound, and the policy no limit")
    if rule == "absolute" and not is_inexact(leaf.dtype) and row["bound"] <= 1:
        return np.zeros(y.shape)  # integers are equal, or one apart
    if rule == "classic":
        return tolerated(leaf, op_class, declared_precision(row))
    return np.where(np.isfinite(y), np.nextafter(row["bound"], 0.0), 0.0)


def _limit(row: Mapping[str, Any]) -> float:
    """The limit of a row. Raises NoScript where its policy has none."""
    if row["limit"] is None:
        raise NoScript("no short script: no limit judges it")
    return float(row["limit"])


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")
