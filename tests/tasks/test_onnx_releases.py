"""Node suites of older releases of ONNX: read out of a wheel, with today's stored outputs as a further oracle."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks import catalogs
from tasks.backends import BackendSpec
from tasks.catalogs.base import CatalogError
from tasks.catalogs.models.wheels import PinnedWheel
from tasks.catalogs.onnx import node_suite, releases
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare import cases
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group

FOLDER = "onnx/backend/test/data/node"
FILE = "onnx-0.1.0-py3-none-any.whl"


def case(archive: zipfile.ZipFile, name: str, model: Any, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    archive.writestr(f"{FOLDER}/{name}/model.onnx", model.SerializeToString())
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for k, array in enumerate(arrays):
            tensor = numpy_helper.from_array(array, f"{kind}_{k}")
            archive.writestr(f"{FOLDER}/{name}/test_data_set_0/{kind}_{k}.pb", tensor.SerializeToString())


def model(op: str, kinds: tuple[int, int], shape: list[int], **attributes: Any) -> Any:
    values = [helper.make_tensor_value_info(n, k, shape) for n, k in zip("xy", kinds)]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attributes)], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the wheel of a release that has three cases; returns it."""
    file, cache = tmp_path / FILE, tmp_path / "cache"
    x = np.array([[-1.5, 0.25, 3.0]], np.float32)
    floats = (TensorProto.FLOAT, TensorProto.FLOAT)
    with zipfile.ZipFile(file, "w") as archive:
        case(
            archive,
            "test_softmax_example",
            model("Softmax", floats, [1, 3]),
            [np.array([[-1, 0, 1]], np.float32)],
            [np.array([[0.7, 0.2, 0.1]], np.float32)],
        )
        case(archive, "test_relu_old", model("Relu", floats, [1, 3]), [x], [np.maximum(x, 0)])
        case(archive, "test_relu_other_rank", model("Relu", floats, [3]), [x], [np.maximum(x, 0)])
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        halves = model("Cast", (TensorProto.FLOAT, TensorProto.BFLOAT16), [1, 3], to=TensorProto.BFLOAT16)
        case(archive, "test_cast_old", halves, [x], [bits])
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    kept = cache / "wheels" / digest[:16] / FILE
    kept.parent.mkdir(parents=True)
    file.rename(kept)
    monkeypatch.setenv("FARM_CACHE", str(cache))
    monkeypatch.setattr(releases.Onnx116, "wheel", PinnedWheel(FILE, digest, "Apache-2.0"))
    cases._find_catalog_version.cache_clear()
    return cache


def row(op: str, variant: str, cache: Path) -> dict[str, Any]:
    backend = BackendSpec.parse("ort-cpu").create()
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
    _, made = prepare_group(Group(f"onnx-1.16:{op}", variant, "float32", 1), cache)
    return next(iter(runner.run([make_item_of_whole_group(made)]))).row.values()


def test_the_cases_of_a_release_are_read_out_of_its_wheel(release: Path) -> None:
    found = {entry.label: entry.dtypes for entry in catalogs.get_catalog("onnx-1.16").entries()}
    assert found == {
        "onnx-1.16:Cast.cast_old": ("float32",),
        "onnx-1.16:Relu.relu_old": ("float32",),
        "onnx-1.16:Relu.relu_other_rank": ("float32",),
        "onnx-1.16:Softmax.softmax_example": ("float32",),
    }
    made = row("Relu", "relu_old", release)
    assert (made["status"], made["op_class"], made["oracle"]) == ("pass", "exact", "stored")


def test_what_was_stored_as_bits_is_a_bfloat16(release: Path) -> None:
    assert row("Cast", "cast_old", release)["status"] == "pass"


def test_a_release_that_has_changed_its_mind_is_nobodys_fault(release: Path) -> None:
    """The old case stores a wrong softmax; today's case of that name has the same input."""
    now = node_suite._find_suite_case("test_softmax_example", "Softmax")
    assert np.array_equal(now.data_sets[0][0][0], np.array([[-1, 0, 1]], np.float32))
    made = row("Softmax", "softmax_example", release)
    assert (made["status"], made["kind"]) == ("invalid", "oracle"), made["error"]


def test_data_that_are_none_of_their_model_are_invalid(release: Path) -> None:
    made = row("Relu", "relu_other_rank", release)
    assert made["status"] == "invalid" and "declared with 1 dimensions and stored with 2" in made["error"]


def test_a_wheel_that_is_another_one_is_said_in_one_line(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = PinnedWheel(FILE, releases.Onnx116.wheel.sha256[:16] + "0" * 48, "Apache-2.0")
    monkeypatch.setattr(releases.Onnx116, "wheel", other)
    with pytest.raises(CatalogError, match=r"the catalog onnx-1\.16 is made of onnx==0\.1\.0: .*SHA-256"):
        catalogs.get_catalog("onnx-1.16").entries()
