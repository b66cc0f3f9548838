"""Forms exported from a catalog's own form: slow to make, so made once and kept by content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tasks.arrays.pack import ArrayPack, PackError, save_pack
from tasks.model import Invalid, Vacuous
from tasks.prepare.cases import WITH_PRODUCTS, PreparedGroup, find_exported_form_path


def get_exporter_version(form: str) -> str:
    """Version of the exporter of ``form``: part of the key of what it makes."""
    from tasks.prepare import onnx_export

    return {"onnx": onnx_export.read_exporter_version}[form]()


def find_exported_forms_path(pack: Path, cache: Path, form: str, count: int, bad: dict[int, str]) -> Path:
    """Where the exported forms of the first ``count`` samples of the group in ``pack`` are kept."""
    content = pack.stem.removesuffix(WITH_PRODUCTS)  # of which no form tells anything
    return find_exported_form_path(cache, content, form, f"{get_exporter_version(form)} {count} {sorted(bad)}")


def export_prepared_forms(
    pack: Path, cache: Path, form: str, count: int, bad: dict[int, str], started: Callable[[int], None]
) -> Path:
    """Export the first ``count`` samples of a prepared group, or find them in the cache.

    ``bad`` maps places to why they are not tried (they killed an exporter). A sample that does not export
    is kept with the exporter's words. Raises OSError when the cache cannot be written.
    """
    from tasks.prepare import onnx_export

    target = find_exported_forms_path(pack, cache, form, count, bad)
    try:
        ArrayPack(target)
        return target
    except (FileNotFoundError, PackError):
        pass
    onnx_export.load_onnx_exporter()
    group = PreparedGroup(pack)
    arrays: list[np.ndarray] = []
    made: dict[str, Any] = {}
    for place, sample in enumerate(group.samples[:count]):
        if sample.failure:
            continue
        if place in bad:
            made[str(sample.index)] = {"error": bad[place]}
            continue
        started(place)
        try:
            model, inputs, paired = onnx_export.export_sample_to_onnx(sample)
        except Vacuous as error:
            made[str(sample.index)] = {"vacuous": str(error)}
            continue
        except Invalid as error:
            made[str(sample.index)] = {"bad": str(error)}
            continue
        except Exception as error:
            made[str(sample.index)] = {"error": onnx_export.explain_export_failure(error)}
            continue
        arrays.append(np.frombuffer(model, dtype=np.uint8))
        made[str(sample.index)] = {"model": len(arrays) - 1, "inputs": inputs, "paired": paired}
        if reason := onnx_export.explain_invalid_graph(model):
            made[str(sample.index)]["invalid"] = reason
    save_pack(target, {"form": form, "samples": made}, arrays)
    return target
