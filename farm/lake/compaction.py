"""Compacting a run: its parts become one, sorted by op, so that a reader of one op skips the rest."""

from __future__ import annotations

import base64
import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from farm.lake.columns import KEY, SCHEMA
from farm.lake.store import AnyLake, Lake, LakeWarning, kept_of, open_lake, parts, put, read_table, unique

#: Rows of a run as they are to be, from what they are: as many, in the same order.
Change = Callable[[pa.Table], pa.Table]

#: Rows that are sorted and written at once, which bounds memory to some 600 MB; rows of a row group at least, and row groups of
#: so many rows at most.
AT_ONCE, GROUP_ROWS, GROUPS = 125_000, 4096, 4
#: Columns of few different texts are copied as numbers: that takes a third of the time. The others would spoil the dictionaries.
_DISTINCT = {"case_id", "digest", "output_digest", "error", "shapes", "placement", "excused"}
_FEW = [f.name for f in SCHEMA if f.type == pa.string() and f.name not in _DISTINCT]
_COPIED = pa.schema(
    [pa.field(f.name, pa.dictionary(pa.int32(), pa.string()) if f.name in _FEW else f.type) for f in SCHEMA]
)
#: The types and the words of the columns, for a file whose own schema would say how its texts were copied.
_WORDS = {**(SCHEMA.metadata or {}), b"ARROW:schema": base64.b64encode(SCHEMA.serialize().to_pybytes())}


def compact(results: AnyLake, run_id: str, change: Change | None = None) -> None:
    """Merge the parts of a finished run into one, without duplicates, and with what ``change`` makes of its rows.

    The merged part is written first: a crash in between leaves duplicates, which readers and the next call drop. A run with a
    part that cannot be read, or that somebody else compacts meanwhile, is left as it is.
    """
    lake = open_lake(results)
    old = parts(lake, run_id)
    if len(old) < 2 and (change is None or not old):
        return
    try:
        if change is None:
            with _kept_pages():
                put(lake, run_id, lambda path: _write(lake, path, _ahead(_pieces(lake, old))))
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error", LakeWarning)
                table = change(unique(read_table(lake, run_id)))
            put(lake, run_id, lambda path: _write(lake, path, [table]))
    except LakeWarning:  # a part that cannot be read is not thrown away
        return
    for path in old:
        with contextlib.suppress(FileNotFoundError):  # somebody else compacts the run as well
            lake.filesystem.delete_file(path)


@contextlib.contextmanager
def _kept_pages() -> Iterator[None]:
    """Arrow's memory from the C library: its own pool gives pages back at once, and half of the time went into having them again."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _ahead(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same, each read while the one before it is written."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = reader.submit(next, pieces, None)
            yield piece


def _pieces(lake: Lake, paths: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of parts without duplicates, so many at once. Raises LakeWarning."""
    keys = [one for path in paths for one in _tables(lake, path, [*KEY, "attempts"])]
    kept = kept_of(pa.concat_tables(keys).unify_dictionaries()) if keys else None
    at, waiting, rows = 0, [], 0
    for path in paths:
        for table in _tables(lake, path, _COPIED.names):
            one = table if kept is None else table.filter(kept.slice(at, table.num_rows))
            at, rows = at + table.num_rows, rows + one.num_rows
            waiting.append(one)
            if rows >= AT_ONCE:
                yield pa.concat_tables(waiting)
                waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _tables(lake: Lake, path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The row groups of a part in the types they are copied in. Raises LakeWarning."""
    try:
        with lake.filesystem.open_input_file(path) as file:
            there = pq.read_metadata(file)
            present = set(there.schema.to_arrow_schema().names)
            if missing := [c for c in KEY if c not in present]:
                raise pa.ArrowInvalid(f"a foreign file: no column {missing[0]}")
            few = [name for name in _FEW if name in present]
            part = pq.ParquetFile(file, metadata=there, read_dictionary=few)
            for group in range(part.num_row_groups):
                table = part.read_row_group(group, [n for n in columns if n in present])
                fields = [_COPIED.field(name) for name in columns]
                yield pa.Table.from_arrays([_as(table, field) for field in fields], schema=pa.schema(fields))
    except (pa.ArrowException, OSError) as error:
        raise LakeWarning(f"{path}: {error}") from None


def _as(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """A column of a table in a type, null where it has none. Raises ArrowException."""
    if field.name not in table.column_names:
        return pa.nulls(table.num_rows, field.type)
    column = table[field.name]
    return column if column.type == field.type else column.cast(field.type)


def _write(lake: Lake, path: str, tables: Iterable[pa.Table]) -> None:
    """Write a part of tables, each sorted by op: it stands in few row groups then, whose statistics name it."""
    writer = None
    try:
        for table in tables:
            one = table.unify_dictionaries().combine_chunks()
            one = one.take(pc.sort_indices(one["op"].cast(pa.string())))
            if writer is None:
                writer = pq.ParquetWriter(
                    path, one.schema, filesystem=lake.filesystem, compression="zstd", store_schema=False
                )
            writer.write_table(one, row_group_size=max(GROUP_ROWS, -(-one.num_rows // GROUPS)))
        if writer is not None:
            writer.add_key_value_metadata(_WORDS)
    finally:
        if writer is not None:
            writer.close()
