"""A folder of harvested nodes: a model and its inputs each, in the layout of ONNX's own tests, and an index.

FOLDER/nodes.json
FOLDER/<op>_<variant>/model.onnx, test_data_set_0/input_0.pb …
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.graphs.harvest import HarvestedNode
from tasks.model import Refusal

INDEX = "nodes.json"
#: Counts up when an older reader would take a folder wrongly.
FORMAT = 1


class FolderError(Refusal):
    """A folder that cannot be read; the text says what to do."""


@dataclass(frozen=True)
class KeptNode:
    """A line of the index. op: with "nodes:"; variant: the case and which instance of it; digest: of model and inputs;
    the rest: see `tasks.graphs.harvest.HarvestedNode`."""

    op: str
    variant: str
    dtype: str
    opset: int
    source: str
    node: str
    largest: float
    cancels: float
    size: int
    digest: str

    @property
    def folder(self) -> str:
        return f"{self.op}_{self.variant}"


def write_nodes_folder(folder: Path, found: Iterable[tuple[str, HarvestedNode]]) -> tuple[int, int]:
    """Add nodes to a folder, made if missing; a case that is there already is kept. Returns (added, all).

    Raises FolderError for a folder that is something else's, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = {one.folder: one for one in read_nodes_index(folder)} if (folder / INDEX).exists() else {}
    if not known and any(folder.iterdir()) and not (folder / INDEX).exists():
        raise FolderError(f"{folder} holds other files: name an empty folder, or one that farm init harvest wrote")
    added = 0
    for kind, one in found:
        data = [_encode_node_tensor(name, x) for name, x in one.inputs.items()]
        digest = hashlib.sha256(one.model + b"".join(data)).hexdigest()[:16]
        line = KeptNode(
            *(one.op, f"{one.key}-{kind}", one.dtype, one.opset, one.source, one.node),
            *(one.largest, one.cancels, one.size, digest),
        )
        if line.folder in known:
            continue
        inputs = folder / line.folder / "test_data_set_0"
        inputs.mkdir(parents=True, exist_ok=True)
        (folder / line.folder / "model.onnx").write_bytes(one.model)
        for k, tensor in enumerate(data):
            (inputs / f"input_{k}.pb").write_bytes(tensor)
        known[line.folder] = line
        added += 1
    aside = folder / f".{INDEX}"
    lines = [asdict(one) for one in sorted(known.values(), key=lambda x: x.folder)]
    aside.write_text(json.dumps({"format": FORMAT, "nodes": lines}, indent=1))
    aside.replace(folder / INDEX)
    return added, len(known)


def read_nodes_index(folder: Path) -> list[KeptNode]:
    """The index of a folder. Raises FolderError."""
    path = folder / INDEX
    try:
        found = json.loads(path.read_text())
        if found["format"] > FORMAT:
            raise FolderError(f"{path} was written by a newer farm (format {found['format']}): harvest again")
        return [KeptNode(**line) for line in found["nodes"]]
    except FileNotFoundError:
        raise FolderError(f"{path} is missing: write it with farm init harvest") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FolderError(f"{path} cannot be read ({type(error).__name__}: {error}): harvest again") from None


def load_harvested_node(folder: Path, line: KeptNode) -> tuple[bytes, dict[str, np.ndarray]]:
    """(model, inputs by name) of a line of the index. Raises FolderError where files are gone or others than it
    says."""
    import onnx
    from onnx import numpy_helper

    place = folder / line.folder
    try:
        model = (place / "model.onnx").read_bytes()
        count = len(list((place / "test_data_set_0").glob("input_*.pb")))
        data = [(place / "test_data_set_0" / f"input_{k}.pb").read_bytes() for k in range(count)]
    except OSError as error:
        raise FolderError(f"{place}: {error}: harvest again") from None
    if hashlib.sha256(model + b"".join(data)).hexdigest()[:16] != line.digest:
        raise FolderError(f"{place} is not what {INDEX} says: its files were changed; harvest again")
    tensors = [onnx.TensorProto.FromString(x) for x in data]
    return model, {x.name: np.asarray(numpy_helper.to_array(x)) for x in tensors}


def _encode_node_tensor(name: str, x: np.ndarray) -> bytes:
    from onnx import numpy_helper

    return numpy_helper.from_array(x, name).SerializeToString()


def index_nodes_folders(paths: Sequence[str]) -> Mapping[tuple[str, str], tuple[Path, KeptNode]]:
    """Every line of several folders by op and variant, the first that has it. Raises FolderError."""
    return _index_nodes_folders_once(tuple(paths), digest_nodes_folders(paths))


@functools.lru_cache(maxsize=4)
def _index_nodes_folders_once(paths: tuple[str, ...], digest: str) -> Mapping[tuple[str, str], tuple[Path, KeptNode]]:
    known: dict[tuple[str, str], tuple[Path, KeptNode]] = {}
    for path in paths:
        for line in read_nodes_index(Path(path)):
            known.setdefault((line.op, line.variant), (Path(path), line))
    return known


def digest_nodes_folders(paths: Iterable[str]) -> str:
    """What decides a list: the bytes of the indexes. Raises FolderError."""
    made: Any = hashlib.sha256()
    for path in paths:
        try:
            made.update((Path(path) / INDEX).read_bytes())
        except OSError as error:
            raise FolderError(f"{Path(path) / INDEX}: {error}: write it with farm init harvest") from None
    return str(made.hexdigest()[:32])
