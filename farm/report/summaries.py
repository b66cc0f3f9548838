"""The summary of a finished run (`RunSummary`), kept beside its rows: a site over a year of runs reads these and not the rows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from farm.lake import Lake, LakeError, LakeWarning, run_ids
from farm.lake.manifest import MANIFEST
from farm.lake.store import write_run_file
from farm.report.tables.trends import SUMMED, RunSummary
from tasks.sources import digest_sources

#: Beside the parts of a run; dataset readers leave it alone for its underscore.
SUMMARY = "_summary.parquet"
#: Under which its metadata has the rest of a `RunSummary`.
_REST = b"summary"


def read_run_summary(lake: Lake, run_id: str, ids: Sequence[str] | None = None) -> RunSummary | None:
    """The summary that is kept of a run; None if there is none, or it is of other files, of another version of the
    farm, or compared with another run than it would be now. ids: of all runs of the lake, where they are known."""
    try:
        with lake.filesystem.open_input_file(lake.path(run_id, SUMMARY)) as file:
            part = pq.ParquetFile(file)
            told = json.loads((part.schema_arrow.metadata or {})[_REST])
            between = _list_runs_between(lake, run_id, told["facts"]["since"], ids)
            if told["key"] != _make_summary_key(lake, run_id) or told["between"] != between:
                return None
            texts = [f.name for f in part.schema_arrow if f.type in (pa.string(), pa.large_string())]
            squares = part.read().to_pandas(categories=texts)
            return RunSummary({**told["facts"], "results": lake.uri}, squares, told["causes"], told["changes"])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None


def keep_run_summary(lake: Lake, run_id: str, run: Mapping[str, Any], made: RunSummary) -> None:
    """Keep the summary of a run that has ended. A lake that cannot be written is left as it is."""
    if not run.get("finished_at"):
        return
    with contextlib.suppress(pa.ArrowException, OSError, LakeError):
        between = _list_runs_between(lake, run_id, made.facts["since"])
        told: dict[str, Any] = {"key": _make_summary_key(lake, run_id), "between": between, "facts": dict(made.facts)}
        told |= {"causes": list(made.causes), "changes": list(made.changes)}
        squares = made.squares.astype({"worst": str, **dict.fromkeys(SUMMED, "int32")})
        table = pa.Table.from_pandas(squares, preserve_index=False)
        table = table.replace_schema_metadata({_REST: json.dumps(told)})
        write_run_file(
            lake,
            run_id,
            SUMMARY,
            lambda path: pq.write_table(table, path, filesystem=lake.filesystem, compression="zstd"),
        )


def _list_runs_between(lake: Lake, run_id: str, since: str, ids: Sequence[str] | None = None) -> list[str]:
    """The runs from the one that a run is compared with to itself; with none, all before it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakeWarning)  # said when the runs themselves were listed
        ids = run_ids(lake) if ids is None else ids
    return [one for one in ids if since <= one < run_id]


def _make_summary_key(lake: Lake, run_id: str) -> str:
    """What a summary is made of: the files of the run as they are now, and the code that sums them up."""
    found = lake.filesystem.get_file_info(pafs.FileSelector(lake.path(run_id)))
    files = sorted(
        (one.base_name, one.size, one.mtime_ns)
        for one in found
        if one.type == pafs.FileType.File and one.base_name not in (SUMMARY, MANIFEST) and one.base_name[0] != "."
    )
    return hashlib.sha256(
        json.dumps([files, digest_sources("farm.report.tables", "farm.report.runs", "farm.plan")]).encode()
    ).hexdigest()
