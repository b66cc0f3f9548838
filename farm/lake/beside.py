"""Tables beside the rows of a run, for cases that have more to say than a row: the steps of a trace, the readings of a passport.

Each lies in files `_NAME-*.parquet`, which readers of the rows leave alone for the underscore. A run that has no such
case has no such file.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from farm.lake import store
from farm.lake.origin_columns import KEY, PASSPORT_KEY, PASSPORT_SCHEMA, TRACE_KEY, TRACE_SCHEMA, Origin
from farm.lake.store import AnyLake, Lake, LakeWarning, Where, open_lake
from tasks.model.row import Row

if TYPE_CHECKING:
    import pandas as pd

#: What makes an entry that of a row: a case that was run again has another start.
OF_ROW = [*KEY, "started_at"]


@dataclass(frozen=True)
class BesideTable:
    """A table beside the rows. name: what its files are called by, and what it is for people; key: the columns that
    tell its entries apart."""

    name: str
    schema: pa.Schema
    key: Sequence[str]

    def to_stream(self, cases: Iterable[tuple[Row, Sequence[Any]]], origin: Origin) -> bytes:
        """The entries of cases of one origin, serialized; no bytes if there are none."""
        found = [(row, entry, place) for row, entries in cases for place, entry in enumerate(entries)]
        if not found:
            return b""

        def value(name: str, row: Row, entry: Any, place: int) -> Any:
            if name == "started_at":
                return int(row.started_at * 1e6)
            if name == "reading":
                return place
            for holder in (entry, row, origin):
                if hasattr(holder, name):
                    return _drop_lone_surrogates(getattr(holder, name))
            raise AttributeError(name)

        columns = [pa.array([value(f.name, *one) for one in found], f.type) for f in self.schema]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return bytes(sink.getvalue().to_pybytes())

    def read(self, results: AnyLake, run_id: str | None = None, where: Where | None = None) -> pd.DataFrame:
        """The entries of one run, or of all runs, as a DataFrame in the order of their key: those of the rows that
        `farm.lake.read` returns for the same ``where``, which is of the columns of rows. A damaged file is skipped with
        a LakeWarning. Raises LakeError."""
        lake = open_lake(results)
        runs = [run_id] if run_id is not None else store.run_ids(lake)
        told = [store.read_again(partial(self._read_files, lake, one, where or {})) for one in runs]
        found = pa.concat_tables([self.schema.empty_table(), *(table for some in told for table in some)])
        if found.num_rows:
            rows = store.read_table(lake, run_id, [*KEY, "attempts", "started_at"], where)
            kept = store.keep_unique_rows(rows).select(OF_ROW)
            # A join takes no lists: it is told which entries stay.
            numbered = found.select(OF_ROW).append_column("entry", pa.array(range(found.num_rows), pa.int64()))
            found = found.take(numbered.join(kept, OF_ROW, join_type="left semi")["entry"])
        frame: pd.DataFrame = found.to_pandas()
        key = list(self.key)
        return frame.drop_duplicates(key, keep="last").sort_values(key, kind="stable", ignore_index=True)

    def write(self, lake: Lake, run_id: str, table: pa.Table, name: str) -> None:
        write = partial(pq.write_table, table, filesystem=lake.filesystem, compression="zstd")
        store.write_run_file(lake, run_id, f"_{self.name}-{name}.parquet", write)

    def compact(self, lake: Lake, run_id: str) -> None:
        """Make one file of a run's. As with the rows, what is merged is there before what it is made of goes; a file
        that cannot be read, or has columns that this farm does not know, leaves all as they are. Raises OSError."""
        old = store.list_lake_parts(lake, run_id, self.name)
        if len(old) < 2:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", LakeWarning)
                for path in old:
                    with lake.filesystem.open_input_file(path) as file:
                        if set(pq.read_schema(file).names) - set(self.schema.names):
                            return
                tables = [x for path in old if (x := self._read_file(lake, path, {})) is not None]
        except (FileNotFoundError, LakeWarning, pa.ArrowException):
            return
        frame = pa.concat_tables(tables).to_pandas()
        frame = frame.drop_duplicates(list(dict.fromkeys([*OF_ROW, *self.key])), keep="last")
        merged = pa.Table.from_pandas(
            frame.sort_values(list(self.key), kind="stable"), self.schema, preserve_index=False
        )
        names = "".join(path.rpartition("/")[2] for path in old)
        self.write(lake, run_id, merged, hashlib.sha256(names.encode()).hexdigest()[:32])
        for path in old:
            with contextlib.suppress(FileNotFoundError):  # somebody else compacts the run as well
                lake.filesystem.delete_file(path)

    def _read_files(self, lake: Lake, run_id: str, where: Where) -> list[pa.Table]:
        """What the files of a run have, but for what ``where`` leaves out by the key alone. Raises FileNotFoundError
        for one that is gone since they were listed."""
        paths = store.list_lake_parts(lake, run_id, self.name)
        return [x for path in paths if (x := self._read_file(lake, path, where)) is not None]

    def _read_file(self, lake: Lake, path: str, where: Where) -> pa.Table | None:
        """A file in this farm's columns, null where it has none; None where it cannot be read."""
        try:
            with lake.filesystem.open_input_file(path) as file:
                part = pq.ParquetFile(file)
                present = set(part.schema_arrow.names)
                if missing := [name for name in self.key if name not in present]:
                    raise pa.ArrowInvalid(f"a foreign file: no column {missing[0]}")
                table = part.read([name for name in self.schema.names if name in present])
            columns = [
                table[f.name].cast(f.type) if f.name in present else pa.nulls(table.num_rows, f.type)
                for f in self.schema
            ]
            table = pa.Table.from_arrays(columns, schema=self.schema)
            for name in KEY:
                if name in where:
                    table = table.filter(pc.is_in(table[name], pa.array(list(where[name]), pa.string())))
            return table
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            if lake.filesystem.get_file_info(path).type == pafs.FileType.NotFound:
                raise FileNotFoundError(path) from None
            said = (str(error).splitlines() or [""])[0]
            text = f"{path}: skipped, not a readable {self.name} ({said})"
            warnings.warn(text, LakeWarning, stacklevel=2)
            return None


TRACE = BesideTable("trace", TRACE_SCHEMA, TRACE_KEY)
PASSPORTS = BesideTable("passports", PASSPORT_SCHEMA, PASSPORT_KEY)
TABLES = (TRACE, PASSPORTS)


def read_beside_stream(data: bytes) -> list[pa.RecordBatch]:
    """Read what `Table.to_stream` made."""
    return list(pa.ipc.open_stream(data)) if data else []


def append_rows_and_beside(
    lake: Lake, run_id: str, rows: Sequence[pa.RecordBatch], beside: Sequence[pa.RecordBatch] = ()
) -> None:
    """Write rows and their entries in tables beside them. Those are there first, so that no row is ever without them.
    Raises OSError."""
    for table in TABLES:
        if own := [batch for batch in beside if batch.schema.equals(table.schema)]:
            table.write(lake, run_id, pa.Table.from_batches(own), uuid.uuid4().hex)
    store.append_part(lake, run_id, rows)


def _drop_lone_surrogates(value: object) -> object:
    """The value without lone surrogates, which an error's text may contain."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value
