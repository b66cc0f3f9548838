"""The table of trained models: which file of which pinned wheel, its licence, its inputs, and what its outputs stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.catalogs.models import exporting, inputs, wheels
from tasks.catalogs.models.inputs import HALF, IMAGENET, Arrays, ModelInputs
from tasks.catalogs.models.wheels import PinnedWheel

RAPIDOCR = PinnedWheel(
    "rapidocr_onnxruntime-1.4.4-py3-none-any.whl",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "Apache-2.0",
)
SILERO = PinnedWheel(
    "silero_vad-6.2.3-py3-none-any.whl", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", "MIT"
)
MAGIKA = PinnedWheel(
    "magika-1.0.3-py3-none-manylinux_2_28_x86_64.whl",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    "Apache-2.0",
)
BASIC_PITCH = PinnedWheel(
    "basic_pitch-0.4.0-py2.py3-none-any.whl",
    "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
    "Apache-2.0",
)


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in ONNX. about: what it does; wheel, path: where its file is; given: its inputs; outputs: what
    each stands for, by name (see `tasks.judge.model_meaning`); files: of the wheel that are it in other frameworks, by form,
    a folder with a slash at its end."""

    about: str
    wheel: PinnedWheel
    path: str
    given: ModelInputs
    outputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def licence(self) -> str:
        return self.wheel.licence

    def model(self, cache: Path) -> bytes:
        return wheels.read_wheel_file(self.wheel, self.path, cache)

    def export(self, how: exporting.ModelExport, cache: Path) -> None:
        return None

    def files_in(self, cache: Path) -> Mapping[str, bytes]:
        read = {True: wheels.read_wheel_folder, False: wheels.read_wheel_file}
        return {form: read[path.endswith("/")](self.wheel, path, cache) for form, path in self.files.items()}

    def inputs(self, index: int, seed: int, cache: Path) -> Arrays:
        return self.given.of(index, seed, self.path, cache)

    def module(self, cache: Path) -> None:
        return None


def _make_text_line_input(index: int, cache: Path) -> Arrays:
    texts = ["error units 32", "Validation 2026", "float64 reference"]
    return {"x": inputs.normalise_image(inputs.render_text_image(texts[index : index + 1], (48, 320), 34), *HALF)}


def _make_turned_text(index: int, cache: Path) -> Arrays:
    return {
        "x": inputs.normalise_image(inputs.render_text_image(["upside down"], (48, 192), 30, turned=index == 0), *HALF)
    }


def _make_text_page_input(index: int, cache: Path) -> Arrays:
    if index:
        return {"x": inputs.normalise_image(inputs.load_photo(0, (160, 256), cache), *IMAGENET)}
    lines = ["First bad node", "named with its", "own tensors"]
    return {"x": inputs.normalise_image(inputs.render_text_image(lines, (160, 256), 28), *IMAGENET)}


def _make_spoken_input(index: int, cache: Path) -> Arrays:
    sound = inputs.synthesize_voice(2.0, 16000)
    chunks = np.stack([sound[at - 64 : at + 512] for at in (2048, 8192, 16384, 24576)])
    return {"input": chunks, "state": np.zeros((2, 4, 128), np.float32), "sr": np.asarray(16000, np.int64)}


def _make_hiss_sound(g: np.random.Generator) -> Arrays:
    return {
        "input": np.asarray(0.1 * g.standard_normal((4, 576)), np.float32),
        "state": np.asarray(np.tanh(0.5 * g.standard_normal((2, 4, 128))), np.float32),
        "sr": np.asarray(16000, np.int64),
    }


def _make_file_input(index: int, cache: Path) -> Arrays:
    path = ("rapidocr_onnxruntime/main.py", "rapidocr_onnxruntime/config.yaml")[index]
    return {"bytes": inputs.cut_file_tokens(wheels.read_wheel_file(RAPIDOCR, path, cache))}


def _make_music_input(index: int, cache: Path) -> Arrays:
    return {"serving_default_input_2:0": inputs.synthesize_music(2.0, 22050)[None, :43844, None]}


def _make_image_input(name: str, *shape: int) -> inputs.Seeded:
    return lambda g: {name: np.asarray(np.clip(0.5 * g.standard_normal(shape), -1, 1), np.float32)}


_OCR = "rapidocr_onnxruntime/models/"

#: Every trained model by its name in the catalog.
TRAINED: dict[str, TrainedModel] = {
    "ppocr_cls": TrainedModel(
        "is a line of text upside down",
        RAPIDOCR,
        f"{_OCR}ch_ppocr_mobile_v2.0_cls_infer.onnx",
        ModelInputs(_make_turned_text, _make_image_input("x", 1, 3, 48, 192), 2),
        {"save_infer_model/scale_0.tmp_1": "probabilities"},
    ),
    "ppocr_det": TrainedModel(
        "where on a page is text",
        RAPIDOCR,
        f"{_OCR}ch_PP-OCRv4_det_infer.onnx",
        ModelInputs(_make_text_page_input, _make_image_input("x", 1, 3, 160, 256), 2),
        {"sigmoid_0.tmp_0": "mask above 0.3"},
    ),
    "ppocr_rec": TrainedModel(
        "the characters of a line of text",
        RAPIDOCR,
        f"{_OCR}ch_PP-OCRv4_rec_infer.onnx",
        ModelInputs(_make_text_line_input, _make_image_input("x", 1, 3, 48, 320), 3),
        {"softmax_11.tmp_0": "probabilities"},
    ),
    "silero_vad": TrainedModel(
        "does somebody speak; its state goes in and out",
        SILERO,
        "silero_vad/data/silero_vad.onnx",
        ModelInputs(_make_spoken_input, _make_hiss_sound),
        {"output": "mask"},
    ),
    "magika": TrainedModel(
        "the type of a file, from its bytes",
        MAGIKA,
        "magika/models/standard_v3_3/model.onnx",
        ModelInputs(_make_file_input, lambda g: {"bytes": g.integers(0, 256, (1, 2048), np.int32)}, 2),
        {"target_label": "probabilities"},
    ),
    "basic_pitch": TrainedModel(
        "the notes of a piece of music",
        BASIC_PITCH,
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        ModelInputs(
            _make_music_input,
            lambda g: {"serving_default_input_2:0": np.asarray(0.2 * g.standard_normal((1, 43844, 1)), np.float32)},
        ),
        {f"StatefulPartitionedCall:{i}": "mask" for i in range(3)},
        {
            form: f"basic_pitch/saved_models/icassp_2022/{path}"
            for form, path in (("saved_model", "nmp/"), ("tflite", "nmp.tflite"))
        },
    ),
}
