"""Structure of inputs: what each kind's samples are, on every machine; what is inferred, and what contradicts a declaration."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.catalogs import user_definitions
from tasks.catalogs.user import kernel_samples
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.draw import structure
from tasks.draw.structure import KINDS, PLAIN, WORDS, StructuredInput
from tasks.judge import policy_files
from tasks.model import FUZZ, Group
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

#: An input of each kind.
INPUTS = {
    "index": StructuredInput("index", (40,), "int64", 0, 70),
    "group": StructuredInput("group", (40,), "int32", 0, 4),
    "segment": StructuredInput("segment", (40,), "int64", 0, 5),
    "offset": StructuredInput("offset", (8,), "int32", 0, 201),
    "length": StructuredInput("length", (40,), "int64", 0, 70),
    "mask": StructuredInput("mask", (4, 40), "bool"),
    "permutation": StructuredInput("permutation", (40,), "int64"),
    "probability": StructuredInput("probability", (3, 40), "float32"),
    "scale": StructuredInput("scale", (40,), "float16"),
    "one_hot": StructuredInput("one_hot", (40, 20), "float32"),
    "sorted": StructuredInput("sorted", (3, 40), "bfloat16"),
    "values": StructuredInput("values", (4, 40), "float32"),
}


def plain(given: StructuredInput) -> np.ndarray:
    values = np.arange(np.prod(given.shape)) * 37 % 101 - 50.0
    return values.reshape(given.shape).astype(structure.get_numpy_dtype(given.dtype))


def test_every_kind_has_an_example_and_every_structure_words() -> None:
    assert INPUTS.keys() == KINDS.keys()
    assert {code for kind in KINDS.values() for code in kind.structures} <= set(WORDS)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_structured_sample_is_of_its_kind(kind: str) -> None:
    """No structure contradicts what the input is declared to be: an index out of range is no sample."""
    given = INPUTS[kind]
    made = 0
    for code in (*KINDS[kind].structures, PLAIN):
        for seed in range(5):
            x = structure.draw_structure(given, code, seed, plain(given))
            if x is None:
                continue
            made += 1
            assert x.shape == given.shape and x.dtype == structure.get_numpy_dtype(given.dtype)
            assert structure.find_structure_contradiction(given, x) == "", (code, seed)
            again = structure.draw_structure(given, code, seed, plain(given))
            assert again is not None and again.tobytes() == x.tobytes()
    assert made >= 5 * (len(KINDS[kind].structures) - 2)


def test_structures_are_what_they_are_called() -> None:
    def made(kind: str, code: str, seed: int = 1) -> np.ndarray:
        found = structure.draw_structure(INPUTS[kind], code, seed, plain(INPUTS[kind]))
        assert found is not None
        return found

    assert len(set(made("index", "all_equal"))) == 1
    assert len(set(made("group", "one_missing"))) == 3
    assert set(made("index", "ends")) == {0, 69}
    assert set(made("index", "block")) == {15, 16, 17, 31, 32, 33, 63, 64, 65}
    assert made("offset", "first_all").tolist() == [0, *[200] * 7]
    assert 0 in np.diff(made("offset", "one_missing"))
    assert made("permutation", "rotated")[:3].tolist() == [1, 2, 3]
    assert not made("mask", "all_false").any() and made("mask", "one_true").sum() == 1
    assert (made("length", "longest") == 69).all() and not made("length", "empty").any()
    row = made("values", "maxima")[0]
    assert np.ptp(np.sort(np.argsort(row)[-10:])) == 9
    rows = np.abs(made("values", "dominant")).max(-1)
    assert rows.max() > 30 * np.sort(rows)[-2]


def test_a_seed_makes_the_same_bytes_in_any_language() -> None:
    """Vectors for an implementation elsewhere: the numbers are those of splitmix64, shifted right by one, modulo the
    bound."""
    assert structure.draw_structure(StructuredInput("index", (6,), "int64", 0, 10), PLAIN, 42).tolist() == [
        6,
        5,
        9,
        2,
        5,
        1,
    ]  # type: ignore[union-attr]
    digest = hashlib.sha256()
    for kind, given in INPUTS.items():
        for code in KINDS[kind].structures:
            x = structure.draw_structure(given, code, 7, plain(given))
            digest.update(b"" if x is None else x.tobytes())
    assert digest.hexdigest()[:16] == "3ad961a708e6276a"


@pytest.mark.parametrize(
    ("name", "given", "kind"),
    [
        ("expert", StructuredInput("", (4,), "int64", 0, 8), "index"),
        ("cu_seqlens", StructuredInput("", (4,), "int32", 0, 8), "offset"),
        ("q_lens", StructuredInput("", (4,), "int32", 0, 8), "length"),
        ("segment_ids", StructuredInput("", (4,), "int32", 0, 8), "segment"),
        ("perm", StructuredInput("", (8,), "int64", 0, 8), "permutation"),
        ("perm", StructuredInput("", (7,), "int64", 0, 8), "index"),
        ("keep", StructuredInput("", (4,), "bool"), "mask"),
        ("probs", StructuredInput("", (4,), "float32"), "probability"),
        ("probs", StructuredInput("", (4,), "float32", -3, 3), "values"),
        ("x", StructuredInput("", (4,), "float32"), "values"),
        ("count", StructuredInput("", (4,), "int64"), "values"),
    ],
)
def test_what_an_input_is_follows_from_dtype_bounds_and_name(name: str, given: StructuredInput, kind: str) -> None:
    assert structure.infer_structure(name, given).kind == kind


@pytest.mark.parametrize(
    ("spec", "key", "says"),
    [
        ({"shape": ["n"], "is": "indx", "dtype": "int64", "below": 3}, "inputs.i.is", "did you mean index?"),
        ({"shape": ["n"], "is": "index", "dtype": "int64"}, "inputs.i.is", "needs a bound: below: SIZE"),
        ({"shape": ["n"], "is": "index", "below": 4}, "inputs.i.is", "whole numbers, e.g. dtype: int64"),
        ({"shape": ["n"], "is": "scale", "dtype": "int64"}, "inputs.i.is", "floating numbers; this input is int64"),
        (
            {"shape": ["n"], "is": "permutation", "dtype": "int64", "below": 4},
            "inputs.i.is",
            "leave out low, high and below",
        ),
        ({"shape": ["n"], "dtype": "int64", "low": 5, "below": 5}, "inputs.i.below", "leaves no value from 5 on"),
        ({"shape": ["n"], "dtype": "int64", "below": 5, "high": 5}, "inputs.i.below", "leave out one of them"),
        (
            {"shape": ["n"], "dtype": "int64", "is": "index", "below": 3, "data": [0, 3]},
            "inputs.i.data",
            "is declared as index, and has values from 0 to 3, not between 0 and 2",
        ),
        (
            {"shape": ["n"], "dtype": "int64", "is": "permutation", "data": [0, 0]},
            "inputs.i.data",
            "does not have each of 0 to 5 once",
        ),
        ({"shape": ["n"], "is": "probability", "data": [0.5]}, "inputs.i.data", "rows that sum to 3, not 1"),
    ],
)
def test_mistakes_of_a_kind_are_one_line(spec: dict[str, Any], key: str, says: str) -> None:
    op = UserOp("op", "k.py:f", "k.py:g", {"x": ["n"], "i": spec}, {"n": [6]})
    found = {".".join(map(str, at)): text for at, text in list_declaration_mistakes(op)}
    assert says in found[key]


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def declare(source: str, **fields: Any) -> None:
        (tmp_path / "k.py").write_text("import numpy as np\nimport torch\n" + source)
        kernel = {"name": "op", "kernel": "k.py:kernel", "reference": "k.py:reference", **fields}
        source_of = {"at": 0, "root": str(tmp_path), "modules": [], "kernels": [kernel]}
        monkeypatch.setattr(user_definitions, "_told", [json.dumps({"deadline_s": 60.0, "sources": [source_of]})])

    return declare


def rows(cache: Path, count: int, distribution: str = "own") -> list[dict[str, Any]]:
    _, made = prepare_group(Group("user:op", "", "float32", count, distribution=distribution), cache)
    backend = BackendSpec.parse("torch-cpu").create()
    runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
    return [done.row.values() for done in runner.run([make_item_of_whole_group(made)])]


MOE = """
def reference(x, w, expert):
    return np.einsum("td,tdk->tk", x, w[expert])

def kernel(x, w, expert):
    y = torch.zeros(x.shape[0], w.shape[-1])
    for e in range(w.shape[0]):
        rows = (expert == e).nonzero().flatten()ROOM
        y[rows] = x[rows] @ w[e]
    return y
"""
ROUTED: dict[str, Any] = {
    "inputs": {"x": ["t", 8], "w": ["e", 8, 4], "expert": {"shape": ["t"], "dtype": "int64", "low": 0, "high": "e"}},
    "dims": {"t": [64, 256], "e": [4, 8]},
    "op_class": "contraction",
}


@pytest.mark.parametrize("distribution", ["own", "regular", FUZZ])
def test_a_kernel_that_is_right_for_even_routing_alone_is_wrong(declare: Any, cache: Path, distribution: str) -> None:
    declare(MOE.replace("ROOM", "[: 3 * x.shape[0] // w.shape[0]]"), **ROUTED)
    found = rows(cache, {"own": 8}.get(distribution, 60), distribution)
    wrong = {row["structure"] for row in found if row["status"] == "wrong"}
    assert wrong and wrong <= {"expert=all_equal", "expert=ends"}
    assert {row["status"] for row in found if not row["structure"]} <= {"pass", "vacuous"}


def test_its_sound_twin_passes(declare: Any, cache: Path) -> None:
    declare(MOE.replace("ROOM", ""), **ROUTED)
    found = [row for name in ("own", "regular", FUZZ) for row in rows(cache, 12, name)]
    assert {row["status"] for row in found} <= {"pass", "vacuous"}
    assert {row["status"] for row in found if row["distribution"] != FUZZ} == {"pass"}


def test_a_structure_that_nobody_declared_is_left_out_where_the_reference_does_not_take_it(
    declare: Any, cache: Path
) -> None:
    """Of rows of which all is masked the reference makes NaN: a kernel may do as it likes there."""
    source = (
        "def reference(x, keep): return (x * keep).sum(-1) / keep.sum(-1)\n"
        "def kernel(x, keep): return (x * keep).sum(-1) / keep.sum(-1).clamp_min(1)"
    )
    inputs = {"x": ["r", "n"], "keep": {"shape": ["r", "n"], "dtype": "bool"}}
    declare(source, inputs=inputs, dims={"r": [2], "n": [40]}, op_class="reduction")
    found = rows(cache, 40)
    assert {row["status"] for row in found} == {"pass"}
    assert {"keep=one_missing", "keep=all_true"} <= {row["structure"] for row in found}
    assert "keep=all_false" not in {row["structure"] for row in found}


def test_a_declared_kind_that_the_reference_contradicts_is_said_in_a_line(declare: Any, cache: Path) -> None:
    source = (
        "def reference(x, n):\n"
        "    if (n == 0).any(): raise ValueError('an empty row')\n"
        "    return x[:, 0] * n\n"
        "def kernel(x, n): return x[:, 0] * n"
    )
    inputs = {"x": ["r", "w"], "n": {"shape": ["r"], "dtype": "int64", "is": "length", "low": 1, "below": "w+1"}}
    given: dict[str, Any] = {"dims": {"r": [4], "w": [9]}, "op_class": "elementary"}
    declare(source, inputs=inputs, **given)
    assert {row["status"] for row in rows(cache, 16)} == {"pass"}
    del inputs["n"]["low"]  # type: ignore[union-attr]
    declare(source, inputs=inputs, **given)
    said = [row["error"] for row in rows(cache, 16) if row["structure"] == "n=empty"]
    assert said and all(
        text.startswith(
            "inputs.n is declared as length, and the reference fails where it is all empty (ValueError: an empty row"
        )
        for text in said
    )


def test_every_sample_of_a_declared_kind_is_of_it() -> None:
    inputs = {
        "p": {"shape": ["n"], "dtype": "int64", "is": "permutation"},
        "q": {"shape": [2, "n"], "is": "probability"},
    }
    op = UserOp("op", "", "", inputs, {"n": [5, 33]})
    for distribution in ("own", "regular", "boundary", "adversarial", "nan"):
        for index in range(4):
            made = kernel_samples.make_sample_arrays(
                op, {"n": 33}, Group("user:op", "", "float32", 9, distribution=distribution), index
            )
            assert kernel_samples.explain_values_outside(op, {"n": 33}, made) == ""
    made["p"][0] = made["p"][1]
    assert kernel_samples.explain_values_outside(op, {"n": 33}, made).startswith(
        "p is declared as permutation, and does not have each"
    )
