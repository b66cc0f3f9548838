"""Scripts on every other runtime: its backend's own file calls it, from a copy of `tasks` within the script."""

from __future__ import annotations

import io
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from farm.fleet import scratch
from farm.reproduce.source import Data, Runtime, Source
from tasks.arrays.pack import save
from tasks.backends import BackendSpec
from tasks.backends.shared.few_lines import NoScript


def bundled(source: Source, data: Data) -> Runtime:
    """The runtime is called by its backend's own file: a copy of `tasks` travels with the script. Raises NoScript."""
    form, group = source.form, source.group
    if group.catalog == "user":
        raise NoScript(f"no script: none can be written for a kernel of one's own on {source.runtime}")
    if type(source.backend).__module__.partition(".")[0] != "tasks":
        raise NoScript(f"no script: none can be written for the runtime {source.runtime} of another package")
    header = {
        "form": {
            name: getattr(form, name)
            for name in ("kind", "op", "dtype", "args", "kwargs", "paired", "order", "check", "wrt", "cotangents")
        },
        "group": asdict(group),
        "arrays": len(form.arrays),
        "model": form.model is not None,
    }
    model = [] if form.model is None else [np.frombuffer(form.model, np.uint8)]
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        save(Path(folder) / "form", header, [*form.arrays, *model])
        pack = data.add(np.fromfile(Path(folder) / "form", np.uint8))
    spec = BackendSpec(source.backend.name, source.runtime, source.backend.device, dict(source.backend.options))
    return Runtime(
        "bundled.py.j2", {"spec": repr(spec.to_json()), "package": data.add(_tasks()), "form": pack}, "ml_dtypes"
    )


def _tasks() -> np.ndarray:
    """The sources of `tasks` as a zip archive, what only judges left out."""
    import tasks

    root, out = Path(tasks.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:  # compressed with the rest
        for path in sorted(root.rglob("*.py")):
            if path.relative_to(root).parts[0] != "zoo":
                archive.writestr(zipfile.ZipInfo(str(path.relative_to(root.parent))), path.read_text(encoding="utf-8"))
    return np.frombuffer(out.getvalue(), np.uint8)
