"""The columns of the lake: where a row comes from and what a vote changed, beside those of a case (`tasks.model.row`); its schemas."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from farm.version import farm_version
from tasks.model import BackendInfo, trace
from tasks.model.row import Column, Row, declare_row_column, list_declared_columns
from tasks.passport import SumReading


@dataclass(frozen=True)
class Origin:
    """What all rows of one job have in common: the run, the backend, and where it ran."""

    run_id: str = declare_row_column("string", "origin", "the launch this row belongs to", default="")
    backend: str = declare_row_column("string", "origin", "runtime-device[@version]", default="")
    vendor: str = declare_row_column("string", "origin", "who ships the runtime", default="")
    device: str = declare_row_column("string", "origin", "the device as the runtime names it", default="")
    device_ids: str | None = declare_row_column(
        "string",
        "origin",
        "devices of its node that the case ran on, as the visible-devices variable names them; empty for the CPU, but for a core that "
        "was screened",
    )
    node: str | None = declare_row_column(
        "string", "origin", "host that ran the case, or the name its Ray node was given"
    )
    runtime_version: str = declare_row_column(
        "string",
        "origin",
        "version of the runtime, and of the vendor's toolkit where that is no Python package (CANN, ROCm, SynapseAI)",
        default="",
    )
    build: str | None = declare_row_column(
        "string",
        "origin",
        "what tells builds of one version apart: the runtime's commit (torch, ONNX Runtime), an image's digest where $FARM_IMAGE_DIGEST tells it",
    )
    environment: str | None = declare_row_column(
        "string",
        "origin",
        "what it ran in: farm (the farm's own), the path of an interpreter that was there, uv and the key of one that was built (`farm doctor envs list`); "
        "a launcher's command stands before it",
    )
    driver_version: str = declare_row_column(
        "string", "origin", "version of the device's driver; of the kernel, where that brings it", default=""
    )
    farm_version: str = declare_row_column(
        "string",
        "origin",
        "version and commit of the farm that judged; .dirty: with changes that are not committed; .unchecked: git did not say",
        default="",
    )

    @classmethod
    def of(
        cls, run_id: str, backend: str, info: BackendInfo, node: str | None = None, ids: str | None = None
    ) -> Origin:
        """The origin of a backend's rows, from its answer to hello."""
        return cls(
            run_id,
            backend,
            info.vendor,
            info.runtime.device,
            ids,
            node,
            info.runtime.runtime_version,
            info.runtime.build or None,
            info.environment or None,
            info.runtime.driver_version,
            farm_version(),
        )


@dataclass(frozen=True)
class Vote:
    """What a vote on a generated case changed (`farm.policies.vote`), after the run; of other rows it is null."""

    acquitted: str | None = declare_row_column(
        "string", "outcome", "why nobody is blamed for this row, whose reference is suspect: the row is invalid"
    )
    was_status: str | None = declare_row_column("string", "outcome", "its status before it was acquitted")
    was_kind: str | None = declare_row_column("string", "outcome", "its kind before it was acquitted")


#: The name of a row's case, made of the row.
CASE_ID = Column(
    "case_id", "string", "", "check/op[.variant]/dtype[/distribution]/sample[@seed]; stable across runs", "case"
)
#: One row per outcome has these, in this order.
COLUMNS = (
    list_declared_columns(Origin)[0],
    CASE_ID,
    *list_declared_columns(Origin)[1:],
    *list_declared_columns(Row),
    *list_declared_columns(Vote),
)
#: A row is one outcome: readers keep the last row of each key.
KEY = ["run_id", "case_id", "backend"]

#: Strings that repeat are plain strings: Parquet dictionary-encodes them by itself.
_ARROW = {
    "string": pa.string(),
    "float64": pa.float64(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "bool": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "list<float32>": pa.list_(pa.float32()),
    "list<int64>": pa.list_(pa.int64()),
}


def _make_lake_schema(columns: Iterable[Column], version: str) -> pa.Schema:
    told = [pa.field(c.name, _ARROW[c.type], metadata={"description": c.words, "unit": c.unit}) for c in columns]
    return pa.schema(told, metadata={"schema_version": version})


SCHEMA = _make_lake_schema(COLUMNS, "4")

#: Columns of a row that say whose arithmetic a reading is, and of which case.
OF_PASSPORT = (
    *(
        "op",
        "variant",
        "dtype",
        "sample",
        "shapes",
        "vendor",
        "device",
        "runtime_version",
        "build",
        "driver_version",
        "flags",
    ),
    "started_at",
)
#: One row per step has these, in this order: its key, what ties it to the row of its case, and what was seen.
TRACE_COLUMNS = (
    *(c for c in COLUMNS if c.name in KEY),
    *(c for c in trace.COLUMNS if c.name == "step"),
    *(c for c in COLUMNS if c.name == "started_at"),
    *(c for c in trace.COLUMNS if c.name != "step"),
)
TRACE_KEY = [*KEY, "step"]
TRACE_SCHEMA = _make_lake_schema(TRACE_COLUMNS, "1")

#: One row per sum that was read has these: its key, whose arithmetic it is, of what case, and what was read.
PASSPORT_COLUMNS = (
    *(c for c in COLUMNS if c.name in KEY),
    Column("reading", "int32", "1", "place of the reading in its case, from 0", "case"),
    *(c for c in COLUMNS if c.name in OF_PASSPORT),
    *list_declared_columns(SumReading),
)
PASSPORT_KEY = [*KEY, "reading"]
PASSPORT_SCHEMA = _make_lake_schema(PASSPORT_COLUMNS, "1")


@functools.cache
def digest_lake_columns() -> str:
    """Digest of the names and types of the columns. Rows travel without a schema; writer and reader must agree on
    it."""
    return hashlib.sha256(repr([(field.name, str(field.type)) for field in SCHEMA]).encode()).hexdigest()[:8]
