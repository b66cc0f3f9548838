"""The user's own models: an .onnx file, a SavedModel, or a function that returns a torch module, with inputs from .npz files."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks import user_sources
from tasks.arrays import module_state, torch_tree
from tasks.catalogs import user_definitions
from tasks.catalogs.models import drawn_inputs, exporting, of_file, wheels
from tasks.catalogs.models.inputs import Arrays
from tasks.graphs import given_model
from tasks.graphs.given_model import GivenError
from tasks.model.errors import format_error_essence
from tasks.model.row import YOUR_OWN
from tasks.relay import measure_machine_memory

#: Seconds that converting a SavedModel may take.
PATIENCE_S = 600
#: What converts one, in an environment that the farm builds, and the variable that then names its interpreter.
CONVERTER = ("tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "onnx==1.23.2")
INTERPRETER = "FARM_TF2ONNX"
#: A model is held as it is stored, and in part in float64: it needs so many times its own size.
TIMES = 3


@dataclass(frozen=True)
class OwnModelFile:
    """A model of the user's. source: "….onnx", a folder with saved_model.pb, "module:function" or "file.py:function";
    files: an .npz of inputs for each sample; root: the folder that modules are looked up in; drawn: inputs that are
    drawn instead, as `tasks.catalogs.models.drawn_inputs` reads them."""

    name: str
    source: str
    files: tuple[str, ...]
    root: str
    drawn: tuple[str, ...] = ()
    licence: str = YOUR_OWN

    @property
    def outputs(self) -> Mapping[str, str]:
        return {}

    @property
    def samples(self) -> int:
        """How many samples there are at most; one where no inputs are given, which says so."""
        if self.files or not (self.drawn or self.is_module):
            return max(1, len(self.files))
        try:
            offered = None if self.drawn else of_file.count_given_samples(self.source, self.root, self._forward())
        except GivenError:
            offered = 1
        return sys.maxsize if offered is None else max(1, offered)

    def model(self, cache: Path) -> bytes:
        """Its serialized ModelProto. Raises GivenError, in one line with what to do."""
        if self.is_module:
            made = self._export_module(exporting.PLAIN)
        else:
            path = Path(self.source)
            _check_model_fits_memory(path)
            made = _read_as_onnx(path) if path.is_dir() else given_model.read_given_model(path)
        return self._bytes(made)

    def export(self, how: exporting.ModelExport, cache: Path) -> bytes | None:
        if not self.is_module:
            return None
        try:
            return self._bytes(self._export_module(how))
        except GivenError:
            if how.any_size:  # torch cannot leave its sizes open: then it is asked of the model as it is
                return None
            raise

    def _export_module(self, how: exporting.ModelExport) -> Any:
        import torch

        given, module = self._arrays(0, 0), self.make_module()
        try:
            example = [torch.from_numpy(x) for x in given.values()]
            return exporting.export_model_module(module, example, tuple(given), (), how)
        except Exception as error:
            raise GivenError(f"{self.source}: torch cannot export it: {format_error_essence(error)}") from None

    def _bytes(self, made: Any) -> bytes:
        try:
            return bytes(made.SerializeToString())
        except ValueError:
            raise GivenError(
                f"{self.source}: larger than the 2 GiB that one message holds: give a part of it"
            ) from None

    def files_in(self, cache: Path) -> Mapping[str, bytes]:
        """A SavedModel as such beside its ONNX form: TensorFlow runs it, judged by that form in float64."""
        folder = Path(self.source)
        if not folder.is_dir():
            return {}
        files = {x.relative_to(folder).as_posix(): x.read_bytes() for x in folder.rglob("*") if x.is_file()}
        return {"saved_model": wheels.zip_wheel_files(files)}

    def inputs(self, index: int, seed: int, cache: Path) -> Arrays:
        import onnx

        found = self._arrays(index, seed)
        path = Path(self.source)
        if self.drawn or not path.is_file():
            return found
        # Names and types alone are asked for: weights in other files are not needed.
        model = onnx.load(str(path), load_external_data=False)
        return given_model.check_given_inputs(model, found, self.files[index])[1]

    def module(self, cache: Path) -> Any:
        """It as a torch module in evaluation mode; None where it is a file. Raises GivenError."""
        return self.make_module() if self.is_module else None

    def make_module(self) -> Any:
        """It as a torch module in evaluation mode, made once in this process: what it draws, it draws by one seed.
        Raises GivenError."""
        return _load_own_module(self.source, self.root, self.digest())

    def anew(self) -> Any:
        """`make_module`, one that nobody has called."""
        return _load_own_module.__wrapped__(self.source, self.root, self.digest())

    def digest(self) -> str:
        """Digest of the files that decide its samples."""
        path = Path(self.source)
        files = [path, *sorted(path.parent.glob(f"{path.name}*"))] if path.is_file() else sorted(path.rglob("*"))
        if self.is_module:
            module = self.source.rpartition(":")[0]
            found = user_sources.locate_module_source(module, self.root)
            files = user_sources.list_imported_files(found, self.root) if found else []
        return " ".join(
            [user_sources.digest_source_files(dict.fromkeys([*files, *map(Path, self.files)])), *self.drawn]
        )

    @property
    def is_module(self) -> bool:
        """Whether it is a torch module, which a function makes."""
        return not Path(self.source).exists() and ":" in self.source

    def _arrays(self, index: int, seed: int) -> Arrays:
        """The inputs of a sample: of a torch module in the order of its forward's arguments. Raises GivenError."""
        if self.files:
            found = given_model.read_given_arrays(Path(self.files[index]))
            return (
                of_file.order_model_inputs(found, self._forward(), self.files[index], False)
                if self.is_module
                else found
            )
        if self.drawn:
            return self._draw_arrays(index, seed)
        told = (
            of_file.read_given_inputs(self.source, self.root, self._forward(), index, seed) if self.is_module else None
        )
        if told is None:
            raise GivenError(self._without())
        return told

    def _draw_arrays(self, index: int, seed: int) -> Arrays:
        wanted = {one.name: one for one in map(drawn_inputs.parse_drawn_input, self.drawn)}
        if Path(self.source).is_file():
            return drawn_inputs.draw_model_inputs(
                drawn_inputs.draw_inputs_of_graph(self._graph(), wanted, self.source), index, seed
            )
        found = drawn_inputs.draw_model_inputs(wanted.values(), index, seed)
        return of_file.order_model_inputs(found, self._forward(), self.source) if self.is_module else found

    def _graph(self) -> Any:
        """The ONNX model without its weights in other files. Raises GivenError."""
        import onnx

        try:
            return onnx.load(self.source, load_external_data=False)
        except Exception as error:
            raise GivenError(f"{self.source}: no ONNX model ({format_error_essence(error)})") from None

    def _forward(self) -> Any:
        """What a torch module is called with. Raises GivenError."""
        return self.make_module().model.forward

    def _without(self) -> str:
        """What to do where no inputs are given: the ways that there are."""
        if self.is_module:
            names = of_file.list_forward_parameters(self._forward())
        else:
            names = drawn_inputs.list_onnx_inputs(self._graph()) if Path(self.source).is_file() else []
        asked = " ".join(f"--input '{x}=float32[4,8]'" for x in names or ["x"])
        saved = ", ".join(f"{x}=array" for x in names if x.isidentifier()) or "NAME=array"
        file = f", or let {of_file.INPUTS}() in its file return a list of them" if self.is_module else ""
        return (
            f"{self.name}: no inputs are given: let them be drawn ({asked}; in a config inputs: {{NAME: DTYPE[SIZES]}}), save them with "
            f"numpy.savez('{self.name}.npz', {saved}) and name the file (--inputs {self.name}.npz){file}"
        )


def list_own_models() -> dict[str, OwnModelFile]:
    """The models that this process was told of, by name."""
    return {
        one["name"]: OwnModelFile(one["name"], one["model"], tuple(one["inputs"]), one["root"], tuple(one["drawn"]))
        for one in user_definitions.read_definitions().get("models", [])
    }


def has_saved_model(definitions: str) -> bool:
    """Whether one of the models that definitions (`tasks.catalogs.user_definitions`) name is a SavedModel."""
    return any(Path(one["model"]).is_dir() for one in user_definitions.parse_definitions(definitions).get("models", []))


def _check_model_fits_memory(path: Path) -> None:
    """Raise GivenError for a model that this machine's memory does not hold."""
    files = path.rglob("*") if path.is_dir() else [path, *path.parent.glob(f"{path.name}?*")]
    size = sum(x.stat().st_size for x in files if x.is_file())
    memory = measure_machine_memory()
    if size * TIMES > memory:
        raise GivenError(
            f"{path}: {size / 2**30:.1f} GiB of weights need {TIMES} times as much memory, this machine has "
            f"{memory / 2**30:.1f} GiB: prepare it on a larger one, or give a part of it"
        )


def _read_as_onnx(folder: Path) -> Any:
    """The ModelProto that tf2onnx makes of a SavedModel. Raises GivenError."""
    with tempfile.TemporaryDirectory() as target:
        made = _convert_saved_model(folder, Path(target))
        try:
            return given_model.read_given_model(made)
        except GivenError as error:  # it leaves in what it does not know
            raise GivenError(str(error).replace(str(made), f"{folder}, as tf2onnx converts it", 1)) from None


def _convert_saved_model(folder: Path, target: Path) -> Path:
    """The .onnx file that tf2onnx makes of a SavedModel. Raises GivenError."""
    if not (folder / "saved_model.pb").is_file():
        raise GivenError(f"{folder}: no SavedModel: there is no saved_model.pb in it")
    lacking = [x for x in ("tensorflow", "tf2onnx") if importlib.util.find_spec(x) is None]
    apart = os.environ.get(INTERPRETER, "")
    made = target / "model.onnx"
    command = ["-m", "tf2onnx.convert", "--saved-model", str(folder), "--output"]
    if lacking and not apart:
        raise GivenError(
            f"{folder}: a SavedModel is judged by its ONNX form, and {' and '.join(lacking)} cannot be imported here: install "
            f"them, or give the file that python {' '.join(command)} {folder.name}.onnx makes where they are"
        )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [*([apart, "-I"] if apart else [sys.executable]), *command, str(made)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise GivenError(f"{folder}: tf2onnx had not converted it in {PATIENCE_S} s: convert it yourself") from None
    if not made.is_file():
        said = [x.strip() for x in (done.stderr or done.stdout).splitlines() if x.strip()]
        why = "" if "signature" not in done.stderr.lower() else ": export it with signatures=… (tf.saved_model.save)"
        raise GivenError(f"{folder}: tf2onnx does not convert it: {said[-1][:300] if said else done.returncode}{why}")
    return made


@functools.lru_cache(maxsize=4)
def _load_own_module(source: str, root: str, digest: str) -> Any:
    """The torch module that a function returns, or that the name is; its outputs as a tuple. digest: of its files.
    Raises GivenError."""
    return _wrap_model_outputs(of_file.make_module_of_file(source, root).eval())


def _wrap_model_outputs(module: Any) -> Any:
    import torch

    class Outputs(torch.nn.Module):
        """A module whose outputs are always a tuple of tensors, flat; a number is one of no dimension. After them come
        the tensors named in ``written``, as the call leaves them: of those that it holds ("model.…"), and of its inputs
        ("inputs.0")."""

        def __init__(self) -> None:
            super().__init__()
            self.model = module
            self.written: tuple[str, ...] = ()  # this and `put_back`: see `module_state.Renewable`

        def forward(self, *inputs: Any) -> Any:
            returned = [
                x if isinstance(x, torch.Tensor) else torch.tensor(x)
                for x in torch_tree.list_output_tensors(self.model(*inputs))
                if isinstance(x, (torch.Tensor, bool, int, float, complex))
            ]
            for name in self.written:
                place = name.removeprefix("inputs.")
                returned.append(
                    (module_state.find_module_tensor(self, name) if place == name else inputs[int(place)])
                    .detach()
                    .clone()
                )
            return tuple(returned)

    made = Outputs().eval()
    made.put_back = module_state.keep_module_state(made)
    return made
