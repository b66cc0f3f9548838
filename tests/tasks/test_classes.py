"""The table of classes: every op of the catalogs has its place, and only they have."""

from __future__ import annotations

import functools

import onnx
import pytest

import tasks.catalogs as catalogs
from tasks.catalogs.torch.opinfo import _load_op_db
from tasks.catalogs.torch.samples import is_op_seeded
from tasks.judge import definitions
from tasks.judge import op_classes as classes
from tasks.model import OpClass

#: Ops that nobody has placed: judged as composite. Those of torch's that draw random numbers need no place: it is found
#: by drawing.
UNPLACED: set[str] = set()


@functools.cache
def entries(catalog: str) -> tuple[tuple[str, str], ...]:
    return tuple((entry.op, entry.variant) for entry in catalogs.get_catalog(catalog).entries())


@pytest.mark.parametrize("catalog", [*classes.TABLE, classes.ONNX])
def test_every_op_is_placed_or_listed(catalog: str) -> None:
    found = {
        (op, variant) for op, variant in entries(catalog) if classes.find_op_class(op, variant) is classes.UNPLACED
    }
    drawn = {
        at for at in found if catalog == "torch" and is_op_seeded(_load_op_db()[at[0].partition(":")[2], at[1]].op)
    }
    assert {op for op, _ in found - drawn} == {op for op in UNPLACED if op.startswith(f"{catalog}:")}


@pytest.mark.parametrize("catalog", [*classes.TABLE, classes.ONNX])
def test_every_name_is_that_of_an_op(catalog: str) -> None:
    known = {op for op, _ in entries(catalog)} | {f"{op}.{variant}" for op, variant in entries(catalog)}
    known |= {
        f"onnx:{schema.name}" for schema in onnx.defs.get_all_schemas()
    }  # some draw numbers: no case of the suite asks for them
    named = {f"{catalog}:{name}" for _, names in classes.list_op_class_lines(catalog) for name in names.split()}
    assert not named - known


def test_every_place_has_its_reason_and_every_choice_its_definition() -> None:
    for catalog in (*classes.TABLE, classes.ONNX):
        for placement, names in classes.list_op_class_lines(catalog):
            assert placement.why and names
            assert placement.op_class is not OpClass.CHOICE or placement.definition
            assert not placement.definition or placement.definition in definitions.DEFINITIONS


def test_a_name_given_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = classes.Placement(OpClass.EXACT, "why")
    monkeypatch.setattr(classes, "TABLE", {"torch": [(placement, "abs"), (placement, "neg abs")]})
    classes._index_class_placements.cache_clear()
    try:
        with pytest.raises(ValueError, match="torch:abs is placed twice"):
            classes.find_op_class("torch:neg")
    finally:
        monkeypatch.undo()
        classes._index_class_placements.cache_clear()


@pytest.mark.parametrize(
    ("op", "variant", "kwargs", "dtype", "op_class"),
    [
        ("torch:add", "", {}, "float32", OpClass.ELEMENTARY),
        ("torch:add", "", {"alpha": 2}, "float32", OpClass.COMPOSITE),
        ("torch:mul", "", {}, "complex64", OpClass.COMPOSITE),
        ("torch:round", "", {}, "float32", OpClass.EXACT),
        ("torch:round", "decimals_3", {"decimals": 3}, "float32", OpClass.COMPOSITE),
        ("torch:div", "floor_rounding", {"rounding_mode": "floor"}, "float32", OpClass.DISCONTINUOUS),
        ("torch:div", "no_rounding_mode", {}, "float32", OpClass.ELEMENTARY),
        ("torch:nn.functional.grid_sample", "", {"mode": "nearest"}, "float32", OpClass.DISCONTINUOUS),
        ("torch:nn.functional.grid_sample", "", {"mode": "bilinear"}, "float32", OpClass.COMPOSITE),
        ("torch:index_put", "", {"accumulate": True}, "float32", OpClass.COMPOSITE),
        ("torch:index_put", "", {"accumulate": False}, "float32", OpClass.EXACT),
        ("torch:abs", "", {}, "float32", OpClass.EXACT),
        ("torch:abs", "", {}, "complex64", OpClass.COMPOSITE),
        ("torch:no.such.op", "", {}, "float32", OpClass.COMPOSITE),
    ],
)
def test_what_an_op_is_depends_on_variant_arguments_and_dtype(
    op: str, variant: str, kwargs: dict[str, object], dtype: str, op_class: OpClass
) -> None:
    assert classes.find_op_class(op, variant, kwargs, dtype).op_class is op_class
