"""A prepared sample as its pack has it: what is written is read again, older packs are, and those of a later farm say so."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays.pack import ArrayPack, PackError
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Failure, Sample
from tasks.model import Group, Leaf, Oracle
from tasks.prepare.cases import PreparedGroup, save_sample_alone
from tasks.prepare.record import LeafRecord, SampleRecord

GROUP = Group("user:f", "", "float32", 1)
X = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)


def full() -> Sample:
    """A sample of which nearly every field says something."""
    y = X.astype(np.float64)
    floors: Any = {name: y * k for k, name in enumerate(("noise", "of_products", "jumps", "kept", "ties"), 1)}
    leaf = Leaf("float32", (2, 3), y, rtol=0.1, atol=0.2, meaning="logits", shared=0.5, **floors)
    return Sample(
        3,
        (TensorSpec(0),),
        {"dim": -1},
        arrays=[X],
        expected=[leaf, Leaf("int64", (2,), None)],
        on_device=[("float16", (2, 3)), ("int64", (2,))],
        others=[Oracle("second", [y, np.zeros(2)], rounded=True)],
        wrt=(0,),
        coarse={"bfloat16": [y]},
        uncast=[y + 1],
        names=("a", "b"),
        products=True,
        state={"weight": X},
        alike="digest",
        writes=True,
        written=("weight",),
        takes=False,
        model=b"model",
        files={"tflite": b"file"},
        ranks=([0], [1, 0]),
        columns={"layout": "strided"},
        failure=Failure("invalid", "reference", "ValueError", "no"),
    )


def stored(tmp_path: Path) -> dict[str, Any]:
    """The JSON of `full` in a pack."""
    path = tmp_path / "x.pack"
    save_sample_alone(path, GROUP, full())
    found: dict[str, Any] = json.loads(json.dumps(ArrayPack(path).header["samples"][0]))
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    save_sample_alone(tmp_path / "x.pack", GROUP, made := full())
    sample = PreparedGroup(tmp_path / "x.pack").samples[0]
    again = sample.again()
    leaf, own = sample.expected(of_products=True)[0], made.expected[0]
    for field in fields(Leaf):
        assert np.array_equal(getattr(leaf, field.name), getattr(own, field.name)), field.name
    assert sample.expected()[0].of_products is None and sample.expected()[1].reference is None
    names = "index kwargs wrt names alike writes written takes model failure columns".split()
    record = sample.record
    assert {x: getattr(again, x) for x in names if x not in ("wrt", "names")} == {
        x: getattr(made, x) for x in names if x not in ("wrt", "names")
    }
    assert (tuple(record.wrt), tuple(record.names), record.ranks) == (made.wrt, made.names, [[0], [1, 0]])
    assert [x.dtype for x in sample.on("cuda").expected()] == ["float16", "int64"]
    assert np.array_equal(sample.coarse()["bfloat16"][0], X) and np.array_equal(sample.state()["weight"], X)
    assert record.others[0].name == "second" and sample.other(0, sample.expected())[0].reference is not None


def test_it_is_json_with_the_names_of_the_fields(tmp_path: Path) -> None:
    values = stored(tmp_path)
    assert values.keys() <= {x.name for x in fields(SampleRecord)}
    assert values["expected"][0].keys() <= {x.name for x in fields(LeafRecord)}
    assert SampleRecord.read(values).values() == values


def test_what_holds_its_default_is_not_written(tmp_path: Path) -> None:
    save_sample_alone(tmp_path / "x.pack", GROUP, Sample(0, arrays=[X], expected=[Leaf("float32", X.shape, X)]))
    values = ArrayPack(tmp_path / "x.pack").header["samples"][0]
    needed = {x.name for x in fields(SampleRecord) if x.default is MISSING and x.default_factory is MISSING}
    assert values.keys() == needed
    assert values["expected"][0] == {"dtype": "float32", "shape": list(X.shape), "reference": 1}
    assert PreparedGroup(tmp_path / "x.pack").samples[0].record.coarse == {}


def test_a_key_that_came_later_has_a_default_in_an_older_pack(tmp_path: Path) -> None:
    values = stored(tmp_path)
    for name in ("takes", "coarse", "state", "twins"):
        values.pop(name, None)
    del values["expected"][0]["ties"]
    record = SampleRecord.read(values)
    assert (record.takes, record.coarse, record.state, record.twins) == (True, {}, {}, 0)
    assert record.expected[0].ties is None


def test_a_pack_of_a_later_farm_and_a_damaged_one_say_so(tmp_path: Path) -> None:
    values = stored(tmp_path)
    with pytest.raises(PackError, match="'shadow', which this farm does not know: .* update, or prepare it again"):
        SampleRecord.read({**values, "shadow": 1})
    with pytest.raises(
        PackError, match="op class 'later', which this farm does not know: .* update, or prepare it again"
    ):
        SampleRecord.read({**values, "op_class": "later"})
    with pytest.raises(PackError, match="no 'oracle': it is damaged"):
        SampleRecord.read({k: v for k, v in values.items() if k != "oracle"})
