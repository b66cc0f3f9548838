"""Findings of calls of torch: the run.py of each ends with 1 for what is planted, and with 0 for its sound twin."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from farm.fleet import envs
from farm.reproduction import finding_requirements
from farm.reproduction.finding_folder import CALL, PROGRAM, RUN, FindingCase, FindingDefinition, write_finding_folder
from farm.reproduction.in_torch import OP_DB
from tasks.arrays import torch_tree
from tasks.arrays.tree import TensorSpec, encode_argument_tree, encode_tensor_spec
from tasks.backends import BackendSpec
from tasks.backends.shared.recipe import NoProgram
from tasks.backends.shared.torch_run import to_arrays
from tasks.catalogs import user_definitions
from tasks.judge import policy_files
from tasks.judge.error_metrics import compare_outputs
from tasks.model import Form, Group, Leaf, OpClass
from tasks.packages import TORCH_CATALOG
from tasks.prepare.cases import PreparedSample, prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tests.farm.in_process import exit_code

pytestmark = pytest.mark.filterwarnings("ignore")


def written(
    sample: PreparedSample, group: Group, row: dict[str, Any], leaves: list[Leaf] | None = None
) -> dict[str, bytes]:
    """The files of a case of a prepared sample."""
    backend, policy = BackendSpec.parse("torch-cpu").create(), policy_files.load_policy("error_units")
    row = {"status": "wrong", "kind": "numbers", "error": "", "limit": 32.0, "compute_precision": "", **row}
    row |= {"op_class": sample.op_class.value, "dtype": group.dtype}
    defined = FindingDefinition.of(sample, "")
    if defined is not None and leaves is not None:
        defined = replace(defined, leaves=leaves)
    expected = leaves or sample.expected()
    return write_finding_folder(
        FindingCase("A title.", sample.form("torch"), group, backend, policy, row, expected, None, defined), ["torch"]
    )


def off(leaf: Leaf) -> Leaf:
    """A leaf whose exact results are others."""
    assert leaf.reference is not None
    if leaf.reference.dtype == bool:
        return replace(leaf, reference=np.asarray(~leaf.reference))
    by = 1 if leaf.reference.dtype.kind in "iu" else 1e5
    noise = None if leaf.noise is None else np.minimum(leaf.noise, 1.0)
    return replace(leaf, reference=np.asarray(leaf.reference + np.asarray(by, leaf.reference.dtype)), noise=noise)


@pytest.mark.parametrize(
    ("op", "variant", "check", "dtype", "has"),
    [
        ("torch:nn.functional.softplus", "", "backward", "float32", "autograd.grad"),
        ("torch:nn.functional.softplus", "", "double_backward", "float32", "create_graph=twice"),
        ("torch:cholesky", "", "backward", "float32", "gradcheck_wrapper"),  # whose gradient is not linalg's own
        ("torch:linalg.eigh", "", "backward", "float32", "process(found)"),
        ("torch:sparse.mm", "reduce", "forward", "float32", "sparse"),
        ("torch:to_sparse", "", "forward", "bfloat16", "to_dense"),
        ("torch:as_strided", "", "backward", "float32", "as_strided"),
        ("torch:bfloat16", "", "forward", "float32", "op = torch"),
        ("torch:conj", "", "forward", "complex64", "op = "),
        ("torch:chalf", "", "forward", "float32", "op = "),
        ("torch:view_as_complex", "", "forward", "float16", "op = "),
        ("torch:transpose", "", "forward", "complex32", "given[0].to(torch.complex32)"),
        ("torch:as_strided", "", "forward", "complex32", "as_strided"),
        ("torch:item", "", "forward", "float32", "np.asarray(found)"),
        ("torch:histogramdd", "", "forward", "float32", "op = "),
        ("torch:sort", "", "forward", "float32", "def _define_sort"),
        ("torch:linalg.qr", "", "forward", "float32", "def _define_qr"),
        ("torch:linalg.svd", "", "forward", "float32", "def _define_svd"),
        ("torch:svd", "", "forward", "float32", "def _define_svd"),
        ("torch:linalg.lstsq", "", "forward", "float32", "def _define_lstsq"),
        ("torch:median", "", "forward", "float64", "view(np.int64)"),
        ("torch:uniform", "", "forward", "float32", "def _define_moments"),
        ("torch:tanh", "", "out", "float32", "op = into(op)"),
        ("torch:frexp", "", "out", "float32", "op = into(op)"),
        ("torch:tanh", "", "inplace", "float32", "torch.Tensor.tanh_(x"),
        ("torch:tanh", "", "method", "float32", "op = torch.Tensor.tanh"),
    ],
)
def test_a_finding_of_a_sound_row_shows_nothing(
    op: str, variant: str, check: str, dtype: str, has: str, tmp_path: Path
) -> None:
    group = Group(op, variant, dtype, 3, check=check)
    samples = [x for x in prepare_group(group, tmp_path)[1].samples if x.failure is None]
    every = [written(sample, group, {}) for sample in samples]
    assert every and any(has.encode() in data for files in every for data in files.values())
    assert {exit_code(files) for files in every} == {0}
    for sample in samples:
        leaves = sample.derived() if sample.record.definition else sample.expected()
        first = next(
            (k for k, x in enumerate(leaves) if x.reference is not None and np.isfinite(x.reference).any()), None
        )
        if first is not None and (sample.record.definition or sample.op_class is not OpClass.RANDOM):
            planted = [off(x) if k == first else x for k, x in enumerate(leaves)]
            assert exit_code(written(sample, group, {}, planted)) == 1


def test_a_finding_of_random_numbers_holds_them_to_no_numbers(tmp_path: Path) -> None:
    group = Group("torch:multinomial", "", "float32", 1)
    (sample, *_) = prepare_group(group, tmp_path)[1].samples
    assert exit_code(written(sample, group, {})) == 0
    other = [replace(x, shape=(*x.shape, 1)) for x in sample.expected()]
    assert exit_code(written(sample, group, {"kind": "shape"}, other)) == 1


def test_a_finding_has_the_outputs_of_a_call_as_the_farm_has_them() -> None:
    x = torch.ones(2)
    for found in (1, None, (x, None), [(x, [2 * x]), 3], {"a": x, "b": (2, {"c": x})}, ()):
        mine, theirs = to_arrays(found), torch_tree.list_output_arrays(found)
        assert [(a.dtype, a.tolist()) for a in mine] == [(np.asarray(b).dtype, np.asarray(b).tolist()) for b in theirs]


KERNELS = """
import numpy as np
import tasks
import torch

X = {"x": ["n"]}

def twice(x):
    return 2 * x

@tasks.op(reference=twice, inputs=X, dims={"n": [3]})
def right(x):
    return 2 * x

@tasks.op(reference=twice, inputs=X, dims={"n": [3]})
def numbers(x):
    return 3 * x

@tasks.op(reference=twice, inputs=X, dims={"n": [3]})
def mutation(x):
    x += x
    return x.clone()

@tasks.op(reference=lambda x: x, inputs=X, dims={"n": [3]})
def aliasing(x):
    return x

@tasks.op(reference=twice, inputs=X, dims={"n": [3]})
def nondeterministic(x):
    nondeterministic.runs = getattr(nondeterministic, "runs", 0) + 1
    return 2 * x + nondeterministic.runs

@tasks.op(reference=twice, inputs=X, dims={"n": [3]})
def structure(x):
    return None

@tasks.op(reference=twice, inputs=X, dims={"n": [3]}, framework="numpy")
def in_numpy(x):
    return np.multiply(x, 2)

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by=2.0):
        ctx.by = by
        return by * x

    @staticmethod
    def backward(ctx, g):
        return ctx.by * g, None
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(KERNELS)
    own = {"name": "scaled", "kernel": "mine.py:Scaled", "reference": "mine.py:twice", "reference_framework": "torch"}
    own |= {"inputs": {"x": ["n"]}, "dims": {"n": [3]}, "gradient": ["x"]}
    source = {"at": 0, "root": str(tmp_path), "modules": ["mine.py"], "kernels": [own]}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60, "sources": [source]})])


@pytest.mark.parametrize(
    ("op", "check", "kind", "says"),
    [
        ("right", "forward", "numbers", 0),
        ("right", "forward", "mutation", 0),
        ("right", "forward", "aliasing", 0),
        ("right", "forward", "nondeterministic", 0),
        ("right", "forward", "structure", 0),
        ("in_numpy", "forward", "numbers", 0),
        ("scaled", "forward", "numbers", 0),
        ("scaled", "backward", "numbers", 0),
        *((kind, "forward", kind, 1) for kind in ("numbers", "mutation", "aliasing", "nondeterministic", "structure")),
    ],
)
@pytest.mark.usefixtures("kernels")
def test_a_kernel_of_ones_own_is_written_down(op: str, check: str, kind: str, says: Any, tmp_path: Path) -> None:
    group = Group(f"user:{op}", "", "float32", 1, check=check)
    _, made = prepare_group(group, tmp_path / "cache")
    assert exit_code(written(made.samples[0], group, {"kind": kind})) == says
    if says:
        backend = BackendSpec.parse("torch-cpu").create()
        runner = Runner(
            backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None
        )
        (row,) = [done.row.values() for done in runner.run([make_item_of_whole_group(made)])]
        assert (row["status"], row["kind"]) == ("wrong", kind)


@pytest.mark.parametrize(("op", "says"), [("right", 0), ("numbers", 1)])
@pytest.mark.parametrize("package", ["farm", "tasks"])
def test_a_finding_calls_the_kernel_whatever_decorates_it(
    package: str, op: str, says: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, where neither the farm nor tasks is: what stands in for them leaves the kernel as it
    is."""
    source = f"""
import {package}

@{package}.op(reference=lambda x: 2 * x, inputs={{"x": ["n"]}}, dims={{"n": [3]}})
def right(x):
    return 2 * x

@{package}.op(reference=lambda x: 2 * x, inputs={{"x": ["n"]}}, dims={{"n": [3]}})
def numbers(x):
    return 3 * x

if False:
    {package}.fuzz(right)
"""
    (tmp_path / "decorated.py").write_text(source)
    given = {"at": 0, "root": str(tmp_path), "modules": ["decorated.py"], "kernels": []}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60, "sources": [given]})])
    group = Group(f"user:{op}", "", "float32", 1)
    _, made = prepare_group(group, tmp_path / "cache")
    folder = tmp_path / "finding"
    folder.mkdir()
    for name, data in written(made.samples[0], group, {"kind": "numbers"}).items():
        (folder / name).write_bytes(data)
    done = subprocess.run([sys.executable, "-I", folder / "run.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == says and "got float32 (3,)" in done.stdout, done.stdout + done.stderr


def test_findings_of_kernels_of_arrays_and_of_those_that_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is sound: two outputs in NumPy, and an input that it may write to."""
    source = """
import numpy as np
import tasks

X = {"x": ["n"]}

@tasks.op(reference=lambda x: (2 * x, 3 * x), inputs=X, dims={"n": [3]}, framework="numpy", dtypes=["float32", "bfloat16"])
def two(x):
    return np.multiply(x, 2), np.multiply(x, 3)

@tasks.op(reference=lambda x, by: by * x, inputs=X, dims={"n": [3]}, mutates=["x"], kwargs={"by": 2})
def spends(x, by):
    y = by * x
    x.zero_()
    return y

@tasks.op(reference=lambda x: 2 * x, inputs=X, dims={"n": [3]}, framework="numpy")
def nothing(x):
    return None
"""
    (tmp_path / "theirs.py").write_text(source)
    given = {"at": 0, "root": str(tmp_path), "modules": ["theirs.py"], "kernels": []}
    monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60, "sources": [given]})])

    def code(op: str, dtype: str = "float32", **row: Any) -> int:
        group = Group(f"user:{op}", "", dtype, 1)
        return exit_code(written(prepare_group(group, tmp_path / "cache")[1].samples[0], group, row))

    assert code("two") == 0 and code("two", kind="structure") == 0
    assert code("nothing", kind="structure") == 1
    with pytest.raises(NoProgram, match="dtype that numpy lacks"):
        code("two", "bfloat16")
    for kind in ("mutation", "nondeterministic", "numbers"):
        assert code("spends", kind=kind) == 0


@pytest.mark.parametrize(
    ("got", "exact", "says"),
    [
        (np.inf, 7e6, 0),
        (65504, 65530, 0),
        (65472, 65525, 0),
        (np.inf, 65500, 0),
        (np.inf, 4e4, 1),
        (np.inf, 100.0, 1),
        (-np.inf, 7e6, 1),
        (65504, 7e6, 1),
    ],
)
def test_at_the_border_of_overflow_a_finding_shows_what_the_judge_does(got: float, exact: float, says: Any) -> None:
    x = np.array([1.0, got], np.float16)
    tree = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]}
    form = Form("torch", "torch:clone", "float16", [x], call=torch.clone, args=tree, kwargs=encode_argument_tree({}))
    leaf = Leaf("float16", (2,), np.array([1.0, exact]))
    row = {
        "status": "wrong",
        "kind": "numbers",
        "op_class": "composite",
        "limit": 32.0,
        "error": "",
        "dtype": "float16",
    }
    backend, policy = BackendSpec.parse("torch-cpu").create(), policy_files.load_policy("error_units")
    group = Group("torch:clone", "", "float16", 1)
    case = FindingCase("A title.", form, group, backend, policy, row | {"compute_precision": ""}, [leaf])
    assert exit_code(write_finding_folder(case, ["torch"])) == says
    judged = compare_outputs([x], [leaf], OpClass.COMPOSITE)
    off = judged.nonfinite > 0 or (judged.error_units or 0.0) > 32
    assert off == (says == 1)


def test_a_finding_of_a_batch_has_other_rows_in_it() -> None:
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    tree = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]}
    form = Form(
        "torch",
        "torch:clone",
        "float32",
        [x],
        call=torch.clone,
        args=tree,
        kwargs=encode_argument_tree({}),
        batched=(0,),
    )
    row = {"status": "wrong", "kind": "batch", "op_class": "composite", "limit": 32.0, "dtype": "float32"}
    row |= {"error": "output 0 differs (…)", "flags": "batches=2,17 programs=one row=8/17", "compute_precision": ""}
    backend, policy = BackendSpec.parse("torch-cpu").create(), policy_files.load_policy("error_units")
    case = FindingCase("A title.", form, Group("torch:clone", "", "float32", 1), backend, policy, row, [])
    files = write_finding_folder(case, ["torch"])
    assert exit_code(files) == 0
    text = files[PROGRAM].decode()
    planted = text.replace("op = torch.clone", "op = lambda x: 2 * x + 1e-3 * (x - x.amax(0))")
    assert planted != text and exit_code({**files, PROGRAM: planted.encode()}) == 1


def test_a_plug_in_that_is_installed_beside_torch_is_imported_and_among_what_a_finding_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_npu.py").touch()
    info = tmp_path / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec, group = BackendSpec.parse("torch-npu"), Group("torch:clone", "", "float32", 1)
    case: Any = SimpleNamespace(spec=spec, environment=envs.find_environment(spec), group=group, cache=tmp_path)
    assert case.environment is None
    named = [x.partition("==")[0] for x in finding_requirements.list_finding_requirements(case)]
    assert named[:2] == ["torch", "torch-npu"] and not {*TORCH_CATALOG} & {*named}
    tree, x = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]}, np.ones(2, np.float32)
    form = Form("torch", "torch:clone", "float32", [x], call=torch.clone, args=tree, kwargs=encode_argument_tree({}))
    row = {"status": "error", "kind": "", "op_class": "exact", "limit": 0.5, "error": "", "dtype": "float32"}
    case = FindingCase("A title.", form, group, spec.create(), policy_files.load_policy("error_units"), row, [])
    lines = write_finding_folder(case, ["torch"])[RUN].decode().splitlines()
    assert lines.index("import torch") < lines.index("import torch_npu")


def test_a_call_of_a_build_that_no_package_brings_names_it() -> None:
    tree, x = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]}, np.ones(2, np.float32)
    form = Form("torch", "torch:clone", "float32", [x], call=torch.clone, args=tree, kwargs=encode_argument_tree({}))
    row = {"status": "error", "kind": "", "op_class": "exact", "limit": 0.5, "error": "", "dtype": "float32"}
    row["runtime_version"] = "torch 2.9.0a0+git1234abc"
    backend, policy = BackendSpec.parse("torch-cpu").create(), policy_files.load_policy("error_units")
    case = FindingCase("A title.", form, Group("torch:clone", "", "float32", 1), backend, policy, row, [])
    first = [write_finding_folder(case, x)[CALL].splitlines()[0] for x in (["torch==2.13.0"], [])]
    assert first == [b"import torch  # torch==2.13.0", b"import torch  # torch 2.9.0a0+git1234abc"]


def test_a_finding_that_takes_torchs_test_database_takes_what_that_does(tmp_path: Path) -> None:
    group = Group("torch:cholesky", "", "float32", 1, check="backward")
    files = written(prepare_group(group, tmp_path)[1].samples[0], group, {})
    assert {x.partition("==")[0] for x in finding_requirements.pin_import_requirements(files)} == {
        "torch",
        *TORCH_CATALOG,
    }
    plain = {PROGRAM: files[PROGRAM].replace(OP_DB.encode(), b"torch")}
    assert {x.partition("==")[0] for x in finding_requirements.pin_import_requirements(plain)} == {"torch"}


@pytest.mark.parametrize(
    ("version", "packages"), [("torch 2.9.0+cu130, AVX512", ["torch==2.9.0+cu130"]), ("torch 2.9.0a0+git1234abc", [])]
)
def test_what_computed_in_an_interpreter_that_is_there_is_named(version: str, packages: list[str]) -> None:
    """Its release where an index has it, and the interpreter, which has what none has."""
    spec = replace(BackendSpec.parse("torch-cpu", python="/opt/torch/bin/python"), launcher=("ssh", "board"))
    stored = {"runtime_version": version}
    case: Any = SimpleNamespace(
        spec=spec, environment=envs.find_environment(spec), group=Group("torch:clone", "", "float32", 1)
    )
    case.stored = case.row = stored
    assert [x for x in finding_requirements.list_finding_requirements(case) if x.startswith("torch")] == packages
    assert finding_requirements.describe_interpreter_of_case(case) == " It ran in ssh board /opt/torch/bin/python."
