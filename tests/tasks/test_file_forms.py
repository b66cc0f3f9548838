"""A network that is also a file of another framework: what the file's runtime is given, in the order of the file's own names."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from farm.fleet import envs
from tasks import catalogs
from tasks.arrays.tree import TensorSpec
from tasks.backends import BackendSpec, tensorflow
from tasks.catalogs.base import Catalog, Sample
from tasks.catalogs.models import network_samples, own_models, wheels
from tasks.catalogs.models.own_models import OwnModelFile
from tasks.graphs.given_model import GivenError
from tasks.judge import policy_files
from tasks.model import FILES, Form, Group, Leaf, OpClass, RuntimeInfo, Unsupported
from tasks.prepare import cases
from tasks.runner import Runner


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
            ranks=(
                network_samples._rank_network_names(["weight", "image"]),
                network_samples._rank_network_names(["note", "onset", "contour"]),
            ),
        )


def test_a_file_s_inputs_and_outputs_are_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Tiny()
    monkeypatch.setattr(catalogs, "get_catalog", lambda name: made)
    monkeypatch.setattr(catalogs, "get_catalog_if_installed", lambda name: made)
    cases._find_catalog_version.cache_clear()
    (sample,) = cases.prepare_group(Group("tiny:net", "", "float32", 1), tmp_path)[1].samples
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
    own = OwnModelFile("net", str(folder), (), str(tmp_path))
    packed = own.files_in(tmp_path)["saved_model"]
    assert packed == wheels.zip_wheel_files({"variables/variables.index": b"index", "saved_model.pb": b"graph"})
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert sorted(archive.namelist()) == ["saved_model.pb", "variables/variables.index"]
    assert not OwnModelFile("net", str(folder / "saved_model.pb"), (), str(tmp_path)).files_in(tmp_path)


@pytest.fixture
def saved(tmp_path: Path) -> OwnModelFile:
    """A SavedModel's folder, of which nothing is read here."""
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(bytes(1000))
    return OwnModelFile("net", str(folder), (), str(tmp_path))


def refusal(own: OwnModelFile, cache: Path) -> str:
    with pytest.raises(GivenError) as refused:
        own.model(cache)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_without_a_converter_a_saved_model_is_told_how_to_make_its_onnx_form(
    saved: OwnModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = refusal(saved, tmp_path)
    assert "tensorflow and tf2onnx cannot be imported here: install them" in said
    assert "python -m tf2onnx.convert --saved-model" in said and "net.onnx" in said


def test_a_saved_model_is_converted_in_an_environment_that_the_farm_built(
    saved: OwnModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.dumps({"models": [{"name": "net", "model": saved.source}]})
    monkeypatch.setattr(envs, "build_environment", lambda environment, cache: Path("/built") / environment.packages[1])
    (name, python), *_ = envs.find_model_converter(told, tmp_path).items()
    assert envs.find_model_converter(told.replace('net"}', 'none.onnx"}'), tmp_path) == {}

    def converts(command: list[str], **_: object) -> object:
        """As tf2onnx: an operator that it does not know stays what it was."""
        assert command[:4] == ["/built/tf2onnx==1.17.0", "-I", "-m", "tf2onnx.convert"]
        node = onnx.helper.make_node("Erfc", ["x"], ["y"])
        x, y = (onnx.helper.make_tensor_value_info(n, 1, [1]) for n in "xy")
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])), command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv(name, python)
    monkeypatch.setattr(subprocess, "run", converts)
    said = refusal(saved, tmp_path)
    assert "net, as tf2onnx converts it: no valid ONNX model: No Op registered for Erfc" in said


@pytest.mark.parametrize(
    ("stderr", "says"),
    [
        ("ValueError: Signature 'serving_default' is not found\n", "export it with signatures=… (tf.saved_model.save)"),
        ("OSError: the file is damaged\n", "tf2onnx does not convert it: OSError: the file is damaged"),
    ],
)
def test_what_tf2onnx_does_not_convert_is_one_line(
    stderr: str, says: str, saved: OwnModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", f"Traceback\n{stderr}")
    )
    said = refusal(saved, tmp_path)
    assert says in said and ("signatures" in said) == ("Signature" in stderr)


def test_a_model_larger_than_memory_is_refused_before_it_is_read(
    saved: OwnModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_models, "measure_machine_memory", lambda: 2999)
    assert "need 3 times as much memory" in refusal(saved, tmp_path)
    monkeypatch.setattr(own_models, "measure_machine_memory", lambda: 3000)
    assert "memory" not in refusal(saved, tmp_path)  # the converter's line


@pytest.mark.parametrize("signatures", [{}, {"train": None}])
def test_tensorflow_asks_a_saved_model_for_what_it_serves(signatures: dict[str, Any]) -> None:
    loaded = SimpleNamespace(signatures=signatures)
    stand_in = SimpleNamespace(saved_model=SimpleNamespace(load=lambda folder: loaded))
    with pytest.raises(ValueError, match="no signature serving_default: export it with signatures=…"):
        tensorflow._load_saved_model_signature(stand_in, wheels.zip_wheel_files({"saved_model.pb": b""}), (0,))


def test_tensorflow_gives_the_outputs_in_the_order_of_the_sample() -> None:
    def serves(**given: int) -> dict[str, int]:
        return {"onset": given["b"], "contour": given["a"], "note": given["a"] + given["b"]}

    serves.structured_input_signature = ((), {"b": 1, "a": 2})  # type: ignore[attr-defined]
    loaded = SimpleNamespace(signatures={"serving_default": serves})
    stand_in = SimpleNamespace(saved_model=SimpleNamespace(load=lambda folder: loaded))
    call = tensorflow._load_saved_model_signature(stand_in, wheels.zip_wheel_files({"saved_model.pb": b""}), (1, 2, 0))
    assert call(10, 5) == [15, 5, 10]  # a, b; note, onset, contour


def test_why_a_function_is_not_taken_is_said_and_not_that_there_is_no_file() -> None:
    """TensorFlow looks for a SavedModel first; that a case is none is no news."""
    group = Group("torch:fmod", "", "float32", 1)

    def form(kind: str, exported: Any, elsewhere: Any = None, by_name: bool = False) -> Form:
        raise Unsupported(
            f"the torch catalog has no {kind} form of this op" if kind in FILES else "no counterpart of fmod"
        )

    sample = SimpleNamespace(owner=SimpleNamespace(group=group, check="forward"), failure=None, form=form, op_class="")
    case: Any = SimpleNamespace(sample=sample, item=SimpleNamespace(exported_pack=None), raises=False)
    info = RuntimeInfo("1", "cpu")
    runner = Runner(
        BackendSpec.parse("tensorflow-cpu").create(), info, policy_files.load_policy("error_units"), lambda *step: None
    )
    with pytest.raises(Unsupported, match="^no counterpart of fmod$"):
        runner._form(case)
