"""A network that is also a file of another framework: what the file's runtime is given, in the order of the file's own names."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import catalogs
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Catalog, Sample
from tasks.catalogs.models import judged, wheels
from tasks.catalogs.models.own import Own
from tasks.model import Group, Leaf, OpClass, Unsupported
from tasks.prepare import cases


class Tiny(Catalog):
    name = "tiny"
    forms = ("onnx",)

    def version(self) -> str:
        return "1"

    def samples(self, group: Group, draws: int, skip: Any = ()) -> Iterator[Sample]:
        arrays = [np.full(2, 3, np.float32), np.full(2, 5, np.float32)]
        yield Sample(
            0,
            (TensorSpec(0), TensorSpec(1)),
            arrays=arrays,
            expected=[Leaf("float32", (2,), x.astype(np.float64)) for x in (*arrays, arrays[0])],
            op_class=OpClass.MODEL,
            model=b"an onnx model",
            files={"tflite": b"a flatbuffer"},
            ranks=(judged._ranks(["weight", "image"]), judged._ranks(["note", "onset", "contour"])),
        )


def test_a_file_s_inputs_and_outputs_are_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tiny()
    monkeypatch.setattr(catalogs, "get", lambda name: made)
    monkeypatch.setattr(catalogs, "installed", lambda name: made)
    cases._catalog_version.cache_clear()
    (sample,) = cases.prepare(Group("tiny:net", "", "float32", 1), tmp_path)[1].samples
    form = sample.form("tflite")
    assert form.model == b"a flatbuffer"
    assert [x[0] for x in form.arrays] == [5, 3]  # image, weight
    served = ["contour", "note", "onset"]
    assert [served[k] for k in form.order] == ["note", "onset", "contour"]
    plain = sample.form("onnx")
    assert (plain.model, [x[0] for x in plain.arrays], plain.order) == (b"an onnx model", [3, 5], ())
    with pytest.raises(Unsupported, match="no saved_model form"):
        sample.form("saved_model")


def test_a_folder_is_the_same_bytes_whenever_it_is_packed(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"graph")
    (folder / "variables" / "variables.index").write_bytes(b"index")
    own = Own("net", str(folder), (), str(tmp_path))
    packed = own.files_in(tmp_path)["saved_model"]
    assert packed == wheels.packed({"variables/variables.index": b"index", "saved_model.pb": b"graph"})
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert sorted(archive.namelist()) == ["saved_model.pb", "variables/variables.index"]
    assert not Own("net", str(folder / "saved_model.pb"), (), str(tmp_path)).files_in(tmp_path)
