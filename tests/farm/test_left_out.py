"""Nothing that a config names falls out of its matrix without a line: check × catalog × backend, and each key by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from farm import lake as lakes
from farm.commands import fuzz
from farm.commands.run import main
from farm.exits import FOUND, OK
from farm.plan import config as configs
from farm.plan.config import Config
from farm.plan.left_out import LeftOut, merge_left_out
from farm.plan.matrix import Matrix, build_matrix
from farm.report.tables.overview import list_headline_lines
from farm.report.tables.view import Report
from farm.work import catalog_lists
from tasks import catalogs, checks
from tasks.backends import BackendSpec
from tasks.cache import default_cache
from tasks.catalogs.base import Entry
from tasks.catalogs.user.catalog import list_kernel_checks
from tasks.catalogs.user.ops import UserOp
from tests.conftest import ROOT

KERNELS = '''
import torch
from torch.autograd import Function


class Cube(Function):
    """x cubed, right in the first and second derivative."""
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Detached(Cube):
    """Its second derivative is half of the right one: autograd is not told of a factor."""
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x.detach()


def cube(x):
    return x**3
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A config of two kernels with a gradient and of one without."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    lines = "".join(
        f"\n      - {{name: {name}, kernel: 'kernels.py:{function}', reference: 'kernels.py:cube', "
        f"reference_framework: torch, dims: {{n: [1, 33]}}, inputs: {{x: [n]}}{gradient}}}"
        for name, function, gradient in (
            ("cube", "Cube", ", gradient: [x]"),
            ("detached", "Detached", ", gradient: [x]"),
            ("plain", "cube", ""),
        )
    )
    path = tmp_path / "farm.yaml"
    path.write_text(
        f"checks: [backward, double_backward]\ncatalogs:\n  - name: user\n    samples: 4\n    kernels:{lines}\n"
        "backends: [torch-cpu, ort-cpu]\n"
    )
    return path


def test_double_backward_of_kernels_of_ones_own_is_run_or_says_unsupported(
    own: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(own), "--results", str(results), "--on", "inline"]) == FOUND
    said = capsys.readouterr().out
    assert "left out: user:plain: no gradient is declared" in said
    rows = lakes.read(results)
    found = {
        key: set(some["status"]) for key, some in rows.groupby(["backend", "check", "op"]) if key[0] == "torch-cpu"
    }
    assert found == {
        ("torch-cpu", "backward", "user:cube"): {"pass"},
        ("torch-cpu", "backward", "user:detached"): {"pass"},
        ("torch-cpu", "double_backward", "user:cube"): {"pass"},
        ("torch-cpu", "double_backward", "user:detached"): {"wrong"},
    }
    there = rows[rows["backend"] == "ort-cpu"]
    assert set(there["status"]) == {"unsupported"}
    assert set(there["error"]) == {f"ort-cpu does not run the {c} check" for c in ("backward", "double_backward")}


def test_the_record_and_the_report_have_what_is_left_out(
    own: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = own.read_text().replace("[torch-cpu, ort-cpu]", "[torch-cpu]").replace("samples: 4", "samples: 1")
    own.write_text(text.replace("checks: [", "checks: [forward, "))
    main([str(own), "--results", str(results), "--on", "inline", "--ops", "cube,plain"])
    (run,) = lakes.run_ids(lakes.open_lake(str(results)))
    record = lakes.read_run(results, run)
    (line,) = record["not_planned"]
    assert json.loads(json.dumps(line)) == {
        "key": "checks",
        "names": ["backward", "double_backward"],
        "why": "no gradient is declared: name its inputs, gradient: [x] (backward=True of the client)",
        "by": "of",
        "of": ["user:plain"],
        "text": "backward, double_backward of user:plain: no gradient is declared: name its inputs, gradient: [x] "
        "(backward=True of the client)",
    }
    assert f"Left out: {line['text']}" in list_headline_lines(Report.of(lakes.read(results), record))


@pytest.mark.parametrize("narrow", [(), ("--backends", "torch-cpu")])
def test_a_check_that_nothing_has_is_a_mistake_of_the_config(
    narrow: Sequence[str], own: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of a command that runs a part of it."""
    own.write_text(own.read_text().replace("checks: [backward, double_backward]", "checks: [forward, roundtrip]"))
    code = main([str(own), "--results", str(results), "--dry-run", "--on", "inline", *narrow])
    said = capsys.readouterr()
    if narrow:
        assert code == OK and "left out: roundtrip of user: no ONNX model" in said.out
    else:
        assert code == 2
        assert f"{own}:1:19: checks: no cell of roundtrip could be planned: user: no ONNX model" in said.err


# --- each key by itself -----------------------------------------------------------------------------------------------

ENTRIES = {
    "torch": [
        Entry("torch:abs", "", ("float32", "int64"), ("forward", "backward")),
        Entry("torch:argmax", "", ("float32", "int64")),
        Entry("torch:exp", "", ("float32", "float16"), ("forward", "backward"), ("own", "exhaustive")),
        Entry("torch:fmod", "", ("float32",), on_devices=(("cuda", "bfloat16"),)),
    ],
    "critical": [Entry("critical:matmul", "", ("float32",))],
}


def lines(**config: Any) -> list[str]:
    whole = {"catalogs": [{"name": "torch"}], "backends": ["torch-cpu"], "dtypes": ["float32"]} | config
    return [str(line) for line in build_matrix(Config.model_validate(whole), ENTRIES).left_out]


def of(**catalog: Any) -> dict[str, Any]:
    return {"catalogs": [{"name": "torch"} | catalog]}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"checks": ["forward", "backward"]}, []),  # what a wildcard names is met by one op
        (of(ops=["a*"], checks=["forward", "backward"]), []),
        (
            of(ops=["abs", "argmax"], checks=["forward", "backward"]),
            ["backward of torch:argmax: no gradient is declared"],
        ),
        (of(ops=["abs", "zz*"]), ["torch:zz*: it matches no op"]),
        (of(ops=["abs", "exp"], exclude=["exp"]), ["torch:exp: the config's ops and exclude leave it out"]),
        (
            {"checks": ["forward", "backward"], "catalogs": [{"name": "torch"}, {"name": "critical"}]},
            ["backward of critical: no gradient is declared"],
        ),
        (
            {"checks": ["forward", "backward"], "dtypes": ["float32", "int64"]},
            ["backward in int64: gradients are of floating dtypes"],
        ),
        ({"dtypes": ["float32", "complex64"]}, ["complex64 of torch: no such dtype is declared"]),
        ({"dtypes": ["float32", "bfloat16"]}, ["bfloat16 of torch: it is computed on cuda alone"]),
        (
            {"dtypes": ["float32", "bfloat16"], "backends": ["torch-cpu", "torch-cuda"]},
            ["bfloat16 on torch-cpu: no op has it on this device"],
        ),
        (
            of(ops=["abs", "exp"], distributions=["own", "exhaustive"]),
            [
                "exhaustive of torch:abs: no samples of the distribution exhaustive, but own; exhaustive is for ops of one "
                "tensor that are functions, and for pairs of 8 bits of ops of two"
            ],
        ),
        (of(distributions=["own", "exhaustive"]), []),
        (
            {"checks": ["forward", "levels"], "backends": ["torch-cpu", "ort-cpu"]},
            ["levels on torch-cpu: it has no levels of optimisation to choose from"],
        ),
        (
            {"checks": ["forward", "build"], "backends": ["torch-cpu", "tensorrtrtx-aot"]},
            [
                "build on torch-cpu: it runs what it builds, so the other checks cover that",
                "forward on tensorrtrtx-aot: it only compiles (check build)",
            ],
        ),
        (
            {"catalogs": [{"name": "torch", "backends": ["torch-*"]}], "backends": ["torch-cpu", "ort-cpu"]},
            ["ort-cpu: no catalog of the config is for it"],
        ),
        (
            {"catalogs": [{"name": "torch"}, {"name": "critical", "backends": ["jax-*"]}]},
            ["critical: it is for none of these backends"],
        ),
        (
            {"catalogs": [{"name": "torch", "checks": ["graph"]}, {"name": "critical"}]},
            ["graph on torch-cpu: its programs cannot be captured in a graph"],
        ),
    ],
)
def test_what_is_named_and_not_planned_has_a_line(config: dict[str, Any], expected: list[str]) -> None:
    assert sorted(lines(**config)) == sorted(expected)


def test_an_op_that_one_listing_of_its_catalog_has_is_not_left_out_by_another() -> None:
    catalogs = [{"name": "torch", "ops": ["abs", "exp"]}, {"name": "torch", "ops": ["abs"]}]
    whole = Config.model_validate({"catalogs": catalogs, "backends": ["torch-cpu"], "dtypes": ["float32"]})
    assert not build_matrix(whole, ENTRIES, ["exp"]).left_out
    left = [str(line) for line in build_matrix(whole, ENTRIES, ["abs", "fmod"]).left_out]
    assert left == ["torch:fmod: the config's ops and exclude leave it out"]


def test_a_default_names_nothing() -> None:
    whole = {"catalogs": [{"name": "critical"}], "backends": ["torch-cpu"]}  # float16 and bfloat16 are nobody's words
    assert not build_matrix(Config.model_validate(whole), ENTRIES).left_out


def test_lines_with_one_reason_are_one() -> None:
    many = [LeftOut("checks", (check,), "why", "of", (f"torch:op{n}",)) for n in range(40) for check in ("out", "amp")]
    assert list(map(str, merge_left_out(many))) == ["out, amp of torch:op0, torch:op1, torch:op2 and 37 more: why"]
    assert len(merge_left_out(many)[0].record()["of"]) == 40


def test_what_a_fuzzing_run_does_not_do_is_told(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "checks: [forward, backward]\ncatalogs: [{name: fuzz, dtypes: [float32], distributions: [own, nan]}, critical]\n"
        "backends: [ort-cpu, torch-cpu]\nskip: [{backends: [torch-cpu], reason: not now}]\n"
    )
    assert fuzz.main([str(path), "--cases", "4", "--ops", "Abs", "--on", "inline", "--results", str(results)]) in (
        OK,
        FOUND,
    )
    said = capsys.readouterr().out
    assert "left out: critical: farm fuzz generates cases, farm run runs these" in said
    assert "left out: backward of fuzz: generated cases have the check forward alone" in said
    assert "left out: nan of fuzz: generated cases have values of their own" in said
    assert "no case on torch-cpu: it has none of the ops" in said
    (run,) = lakes.run_ids(lakes.open_lake(str(results)))
    assert len(lakes.read_run(results, run)["not_planned"]) == 3
    path.write_text(path.read_text().replace("[forward, backward]", "[backward]"))
    assert fuzz.main([str(path), "--cases", "4", "--on", "inline", "--results", str(results)]) == 2
    assert "checks: backward: generated cases have the check forward alone" in capsys.readouterr().err


# --- check × catalog × backend
# ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def entries() -> dict[str, list[Entry]]:
    """The list of every catalog; of those whose ops a config brings, one with everything and one with nothing
    special."""
    plain = UserOp("plain", "k:x", "k:y", {"x": [1]})
    smooth = UserOp("smooth", "k:x", "k:y", {"x": [1]}, gradient=["x"])
    brought = {
        "nodes": [Entry("nodes:Conv", "a", ("float32",))],
        "user": [Entry(f"user:{op.name}", "", ("float32",), list_kernel_checks(op)) for op in (plain, smooth)],
    }
    return {
        name: brought.get(name) or catalog_lists.list_entries_here(name, default_cache(), inline=True)
        for name in catalogs.BUILT_IN
    }


def whole(entries: dict[str, list[Entry]]) -> tuple[Matrix, list[str]]:
    """Everything that is built in: all checks of all catalogs on all backends that have a name."""
    names = configs.list_backend_names()
    listed = [
        {
            "name": name,
            "dtypes": ["*"],
            "samples": 1,
            "distributions": sorted({d for e in some for d in e.distributions}),
        }
        for name, some in entries.items()
    ]
    config = Config.model_validate({"checks": list(checks.BUILT_IN), "catalogs": listed, "backends": names})
    return build_matrix(config, entries), names


def explained(matrix: Matrix, entries: dict[str, list[Entry]]) -> Iterator[tuple[str, str, str]]:
    """Check, catalog and backend of each line, "" for all."""
    for line in matrix.left_out:
        for name in line.names:
            if line.key == "catalogs":
                yield "", name, ""
            elif line.key == "backends":
                yield "", "", name
            elif line.key == "checks" and line.by == "on":
                yield from ((name, "", backend) for backend in line.of)
            elif line.key == "checks" and line.by == "of":
                yield from ((name, catalog, "") for catalog in line.of if catalog in entries)


def test_every_check_of_every_catalog_on_every_backend_is_planned_or_unsupported_or_has_a_line(
    entries: dict[str, list[Entry]],
) -> None:
    matrix, names = whole(entries)
    assert all(line.why for line in matrix.left_out) and len(matrix.left_out) < 40
    kinds: dict[tuple[str, str], list[int]] = {}
    for g, group in enumerate(matrix.groups):
        kinds.setdefault((group.check, group.catalog), []).append(g)
    given = {kind: (matrix.wanted[of] > 0).any(axis=0) for kind, of in kinds.items()}
    there = {(*kind, names[b]) for kind, some in given.items() for b in some.nonzero()[0].tolist()}
    told = set(explained(matrix, entries))
    backends = {name: BackendSpec.parse(name).create() for name in names}
    table: dict[tuple[str, str, str], str] = {}
    for check in checks.BUILT_IN:
        for catalog in entries:
            for name, backend in backends.items():
                key = (check, catalog, name)
                line = told & {(check, catalog, ""), (check, "", name), ("", catalog, ""), ("", "", name)}
                if key in there:
                    assert not line, f"{key} is planned, and a line says that it is not: {line}"
                    runs = checks.get_check(check).needs in backend.checks  # else `Runner` says so in the row
                    table[key] = "planned" if runs else "unsupported"
                else:
                    assert line, f"{key} is neither planned nor has it a line"
                    table[key] = "left out"
    assert len(table) == len(checks.BUILT_IN) * len(entries) * len(names)
    assert table["double_backward", "user", "torch-cpu"] == "planned"
    assert table["double_backward", "user", "inductor-cpu"] == "unsupported"
    assert table["double_backward", "critical", "torch-cpu"] == "planned"
    assert table["double_backward", "onnx", "torch-cpu"] == "left out"
    assert table["levels", "torch", "torch-cpu"] == "left out"
    assert table["build", "critical", "tensorrtrtx-aot"] == "planned"


def test_the_configs_that_are_shipped_leave_little_out_and_no_check(entries: dict[str, list[Entry]]) -> None:
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        config = configs.load_config(path)
        if not {c.name for c in config.catalogs} & {"user", "nodes"}:
            matrix = build_matrix(config, entries)
            assert not matrix.without_cells(config.all_checks), path
            assert len(matrix.left_out) <= 8, [str(line) for line in matrix.left_out]
            if path.stem in ("quick", "full", "first_contact"):
                assert len(matrix.left_out) <= 1, [str(line) for line in matrix.left_out]
