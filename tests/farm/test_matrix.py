"""The matrix: which cells a config plans, how many samples each gets, and why one is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.plan.config import Config, ConfigError, load_config
from farm.plan.matrix import Matrix, build_matrix
from farm.plan.patterns import list_pattern_names, make_pattern_matcher
from tasks.catalogs.base import Entry

F = ("float32", "float16", "int64")
ENTRIES = {
    "torch": [
        Entry("torch:abs", "", F),
        Entry("torch:add", "", F),
        Entry("torch:nn.functional.gelu", "", ("float32",)),
        Entry("torch:std_mean", "", F),
        Entry("torch:std_mean", "unbiased", F),
        Entry("torch:svd", "", ("float32",)),
    ],
    "onnx": [
        Entry("onnx:Add", "add_bcast", ("float32",)),
        Entry("onnx:Add", "add_uint8", ("uint8",)),
        Entry("onnx:Abs", "abs", ("float32",)),
    ],
}


def matrix(*, ops: tuple[str, ...] = (), **config: Any) -> Matrix:
    config = {"catalogs": [{"name": "torch"}], "backends": ["torch-cpu"], "dtypes": ["float32"]} | config
    return build_matrix(Config.model_validate(config), ENTRIES, ops)


def labels(m: Matrix) -> list[str]:
    return [g.label for g in m.groups]


def torch_ops(*ops: str, **more: Any) -> list[str]:
    return labels(matrix(catalogs=[{"name": "torch", "ops": list(ops), **more}]))


def test_a_dtype_that_no_cpu_computes_is_asked_of_devices_alone() -> None:
    there = (("cuda", "float16"), ("", "float16"), ("mps", "bfloat16"))
    entries = {"torch": [Entry("torch:fmod", "", ("float32",), on_devices=there), Entry("torch:abs", "", F)]}
    asked = {"catalogs": [{"name": "torch"}], "dtypes": ["float32", "float16", "bfloat16"]}
    backends = ["torch-cpu", "torch-cuda", "ort-cpu", "ort-cuda", "ort-qnn", "torch-mps"]
    both = build_matrix(Config.model_validate(asked | {"backends": backends}), entries)
    of = {(g.label, g.dtype): both.wanted[i].tolist() for i, g in enumerate(both.groups)}
    assert of["torch:fmod", "float16"][:4] == [0, 8, 0, 8] and of["torch:fmod", "float32"] == [8] * 6
    assert of["torch:fmod", "bfloat16"] == [0, 0, 0, 0, 0, 8]
    assert of["torch:abs", "float16"] == [8] * 6
    alone = build_matrix(Config.model_validate(asked | {"backends": ["torch-cpu"]}), entries)
    assert ("torch:fmod", "float16") not in {(g.label, g.dtype) for g in alone.groups}


def test_everything() -> None:
    m = matrix(dtypes=["float32", "int64"])
    assert m.count_cells() == 6 + 4
    assert {g.dtype for g in m.groups} == {"float32", "int64"}
    assert all(g.samples == 8 for g in m.groups) and (m.wanted == 8).all() and not m.skipped
    assert len({(g.label, g.dtype) for g in m.groups}) == len(m.groups)


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (("abs",), ["torch:abs"]),
        (("torch:abs",), ["torch:abs"]),
        (("a*",), ["torch:abs", "torch:add"]),
        (("nn.functional.*",), ["torch:nn.functional.gelu"]),
        (("torch:nn.*",), ["torch:nn.functional.gelu"]),
        (("std_mean",), ["torch:std_mean", "torch:std_mean.unbiased"]),
        (("std_mean.unbiased",), ["torch:std_mean.unbiased"]),
        (("torch:std_mean.unbiased",), ["torch:std_mean.unbiased"]),
        (("s[tv]d",), ["torch:svd"]),
        (("ab?",), ["torch:abs"]),
        (("abs", "svd"), ["torch:abs", "torch:svd"]),
        (("ABS*",), []),
        (("*:abs",), ["torch:abs"]),
        (("bs*",), []),
    ],
)
def test_globs(globs: tuple[str, ...], expected: list[str]) -> None:
    assert torch_ops(*globs) == expected


def test_exclusions() -> None:
    assert torch_ops("*", exclude=["a*", "std_mean.*"]) == ["torch:nn.functional.gelu", "torch:std_mean", "torch:svd"]
    assert torch_ops("*", exclude=["std_mean"]) == torch_ops("abs", "add", "nn.*", "svd")
    assert torch_ops("*", exclude=["*"]) == []


@pytest.mark.parametrize(
    ("pattern", "near"), [("abss", "abs"), ("torch:ad", "torch:add"), ("std_mean.unbised", "std_mean.unbiased")]
)
@pytest.mark.parametrize("key", ("ops", "exclude"))
def test_an_op_that_is_not_there_is_told_with_the_nearest(key: str, pattern: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"no op '{pattern}'.*{near}"):
        matrix(catalogs=[{"name": "torch", key: [pattern]}])


def test_a_pattern_that_matches_nothing_is_no_error() -> None:
    assert torch_ops("zz*", "abs") == ["torch:abs"]


def test_dtypes_of_a_catalog_win_over_those_of_the_run() -> None:
    m = matrix(catalogs=[{"name": "torch", "ops": ["abs"], "dtypes": ["int64"]}, {"name": "onnx", "dtypes": ["*"]}])
    assert [(g.label, g.dtype) for g in m.groups] == [
        ("torch:abs", "int64"),
        ("onnx:Add.add_bcast", "float32"),
        ("onnx:Add.add_uint8", "uint8"),
        ("onnx:Abs.abs", "float32"),
    ]
    assert {g.dtype for g in matrix(dtypes=["*"]).groups} == set(F)


def test_samples_by_backend() -> None:
    m = matrix(
        catalogs=[
            {"name": "torch", "ops": ["abs"], "samples": 5, "samples_for": {"ort-*": 2, "ort-cpu": 9, "openvino-*": 0}}
        ],
        backends=["torch-cpu", "ort-cpu", "openvino-cpu"],
    )
    assert m.wanted.tolist() == [[5, 2, 0]]  # the first glob that matches counts
    assert m.count_cells() == 2
    assert m.groups[0].samples == 5  # what is prepared is the most that any backend takes


def test_backends_of_a_catalog() -> None:
    m = matrix(
        catalogs=[
            {"name": "torch", "ops": ["abs"]},
            {"name": "onnx", "ops": ["Abs"], "backends": ["ort-*", "openvino-*"]},
        ],
        backends=["torch-cpu", "ort-cpu"],
    )
    assert labels(m) == ["torch:abs", "onnx:Abs.abs"]
    assert m.wanted.tolist() == [[8, 8], [0, 8]]
    nobody = matrix(catalogs=[{"name": "onnx", "backends": ["ort-*"]}], backends=["torch-cpu"])
    assert (nobody.count_cells(), nobody.groups, nobody.wanted.shape) == (0, [], (0, 1))


def test_skips_name_cell_and_reason_and_are_not_planned() -> None:
    m = matrix(
        dtypes=["float32", "float16"],
        backends=["torch-cpu", "ort-cpu"],
        catalogs=[{"name": "torch", "ops": ["abs", "add"]}],
        skip=[
            {"ops": ["torch:abs"], "dtypes": ["float16"], "backends": ["ort-*"], "reason": "ticket 7"},
            {"ops": ["a*"], "backends": ["torch-cpu"], "dtypes": ["float32"], "reason": "slow"},
            {"ops": ["abs"], "reason": "everywhere"},
        ],
    )
    said = [(m.groups[g].label, m.groups[g].dtype, m.backends[b].name, why) for g, b, why in m.skipped]
    assert said == [
        ("torch:abs", "float16", "ort-cpu", "ticket 7"),
        ("torch:abs", "float32", "torch-cpu", "slow"),
        ("torch:add", "float32", "torch-cpu", "slow"),
        ("torch:abs", "float32", "ort-cpu", "everywhere"),
        ("torch:abs", "float16", "torch-cpu", "everywhere"),
    ]
    assert m.count_cells() == 2 * 2 * 2 - len(said)
    assert all(m.wanted[g, b] == 0 for g, b, _ in m.skipped)


def test_a_skip_of_a_variant_leaves_the_others() -> None:
    m = matrix(catalogs=[{"name": "torch", "ops": ["std_mean"]}], skip=[{"ops": ["std_mean.unbiased"], "reason": "r"}])
    assert [m.groups[g].label for g, _, _ in m.skipped] == ["torch:std_mean.unbiased"]
    assert m.count_cells() == 1


def test_what_was_never_planned_is_not_skipped() -> None:
    m = matrix(
        catalogs=[{"name": "onnx", "backends": ["ort-*"]}],
        backends=["torch-cpu", "ort-cpu"],
        skip=[{"backends": ["torch-*"], "reason": "r"}],
    )
    assert m.skipped == []


def test_narrowing_from_the_command_line() -> None:
    assert labels(matrix(ops=("torch:a*",))) == ["torch:abs", "torch:add"]
    assert labels(matrix(ops=("abs", "std_mean.unbiased"))) == ["torch:abs", "torch:std_mean.unbiased"]
    assert matrix(ops=("nothing",)).count_cells() == 0


def test_seed_is_part_of_the_case() -> None:
    m = matrix(seed=5, catalogs=[{"name": "torch", "ops": ["abs"]}])
    assert m.groups[0].case_id(3) == "forward/torch:abs/float32/3@5"
    assert matrix().groups[0].case_id(3) == "forward/torch:abs/float32/3"


def test_case_ids_are_unique() -> None:
    m = matrix(
        catalogs=[{"name": "torch", "dtypes": ["*"]}, {"name": "onnx", "dtypes": ["*"]}],
        backends=["torch-cpu", "ort-cpu"],
    )
    ids = [g.case_id(s) for g in m.groups for s in range(3)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("ops", (["*"], ["abs"]))
def test_a_catalog_listed_twice_plans_no_case_twice(ops: list[str]) -> None:
    m = matrix(catalogs=[{"name": "torch"}, {"name": "torch", "ops": ops, "samples": 2}])
    ids = [g.case_id(0) for g in m.groups]
    assert len(set(ids)) == len(ids)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["abs", "a*", "torch:*", "*.gelu", "std_mean.unbiased", "[!a]*", "*"]), max_size=3))
def test_a_matcher_is_any_of_its_globs(globs: list[str]) -> None:
    from fnmatch import fnmatchcase

    for entry in ENTRIES["torch"]:
        assert make_pattern_matcher(globs)(list_pattern_names(entry)) == any(
            fnmatchcase(n, g) for n in list_pattern_names(entry) for g in globs
        )


def test_a_million_cells_are_numbers_not_objects() -> None:
    entries = {"torch": [Entry(f"torch:op{i}", "", ("float32",)) for i in range(20000)]}
    config = Config.model_validate(
        {"catalogs": ["torch"], "backends": [{"name": f"b{i}", "like": "torch-cpu"} for i in range(50)]}
    )
    m = build_matrix(config, entries)
    assert m.count_cells() == 10**6 and m.wanted.dtype == np.int32


def test_the_build_check_is_planned_for_compilers_alone() -> None:
    m = matrix(
        checks=["forward", "build"],
        catalogs=[{"name": "torch", "ops": ["abs"], "samples_for": {"tensorrtrtx-*": 3}}],
        backends=["torch-cpu", "tensorrtrtx-aot"],
        dtypes=["float32", "int64"],
    )
    assert [(g.check, g.dtype) for g in m.groups] == [
        ("forward", "float32"),
        ("build", "float32"),
        ("forward", "int64"),
        ("build", "int64"),
    ]
    assert m.wanted.tolist() == [[8, 0], [0, 3]] * 2
    assert {g.samples for g in m.groups} == {8}  # so that both are prepared in one pack
    alone = matrix(checks=["forward", "build"])
    assert {g.check for g in alone.groups} == {"forward"} and alone.count_cells() == 6


def test_gradients_are_not_planned_for_what_only_builds() -> None:
    entries = {"torch": [Entry("torch:abs", "", F, ("forward", "backward"))]}
    config = {
        "catalogs": [{"name": "torch"}],
        "backends": ["torch-cpu", "tensorrtrtx-aot"],
        "checks": ["backward", "build"],
    }
    m = build_matrix(Config.model_validate(config | {"dtypes": ["float32", "int64"]}), entries)
    assert [(g.check, g.dtype, *w) for g, w in zip(m.groups, m.wanted.tolist())] == [
        ("backward", "float32", 8, 0),
        ("build", "float32", 0, 8),
        ("build", "int64", 0, 8),
    ]


def test_a_catalog_may_have_checks_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "checks: [forward]\ndtypes: [float32]\nbackends: [ort-cpu]\n"
        "catalogs:\n- {name: onnx, ops: [Abs]}\n- {name: models, ops: [magika], checks: [forward, replay]}\n"
    )
    config = load_config(tmp_path / "c.yaml")
    assert config.all_checks == ["forward", "replay"]
    entries = {"onnx": [Entry("onnx:Abs", "", ("float32",))], "models": [Entry("models:magika", "", ("float32",))]}
    planned = {(group.op, group.check) for group in build_matrix(config, entries).groups}
    assert planned == {("onnx:Abs", "forward"), ("models:magika", "forward"), ("models:magika", "replay")}
    (tmp_path / "c.yaml").write_text("backends: [ort-cpu]\ncatalogs: [{name: models, checks: [forwards]}]\n")
    with pytest.raises(ConfigError, match=r"c.yaml:2:\d+: checks: unknown check 'forwards'.+forward"):
        load_config(tmp_path / "c.yaml")


def test_levels_are_asked_only_of_backends_that_have_some() -> None:
    both = matrix(checks=["forward", "levels"], backends=["torch-cpu", "ort-cpu"])
    asked = {
        (g.check, spec.name) for g, row in zip(both.groups, both.wanted) for spec, n in zip(both.backends, row) if n
    }
    assert asked == {("forward", "torch-cpu"), ("forward", "ort-cpu"), ("levels", "ort-cpu")}
