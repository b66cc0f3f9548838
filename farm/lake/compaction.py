"""Compacts a run: merges its parts into one, sorted by op, so that a reader of one op skips the rest."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from farm.lake import beside
from farm.lake.origin_columns import KEY, SCHEMA
from farm.lake.store import (
    AnyLake,
    Lake,
    LakeWarning,
    code_lake_schema,
    find_kept_rows,
    fit_table_to_schema,
    keep_unique_rows,
    list_lake_parts,
    open_lake,
    open_lake_part,
    read_table,
    write_run_file,
)

#: Rows of a run as they are to be, from what they are: as many, in the same order.
Change = Callable[[pa.Table], pa.Table]

#: Rows that are sorted and written at once, which bounds memory to some 600 MB; rows of a row group at least, and row
#: groups of so many rows at most.
AT_ONCE, GROUP_ROWS, GROUPS = 125_000, 4096, 4
#: Columns of few different texts are copied as numbers, which takes a third of the time, and written so: numbers have
#: no dictionary, which nearly always would be given up again.
_COPIED = code_lake_schema(SCHEMA, but=("case_id",))
_FEW = [field.name for field in _COPIED if pa.types.is_dictionary(field.type)]
#: Columns that readers choose rows by: only these have statistics, which cost a fifth of writing.
ASKED = [*KEY, "check", "catalog", "op", "variant", "dtype", "distribution", "status", "vendor"]
#: A page of a column takes as many rows as it has room for, in steps of so many: a sixth of writing is saved.
_HOW: dict[str, Any] = {
    "compression": "zstd",
    "store_schema": False,
    "use_dictionary": _FEW,
    "write_statistics": ASKED,
    "write_batch_size": 1 << 15,
    # Older releases end a page by its bytes alone.
    **({"max_rows_per_page": 1 << 20} if int(pa.__version__.partition(".")[0]) >= 23 else {}),
}
#: The types and the words of the columns, for a file whose own schema would say how its texts were copied.
_WORDS = {**(SCHEMA.metadata or {}), b"ARROW:schema": base64.b64encode(SCHEMA.serialize().to_pybytes())}


class NewerWarning(LakeWarning):
    """A part has columns that compaction would drop."""


def compact_run(results: AnyLake, run_id: str, change: Change | None = None) -> None:
    """Merge the parts of a finished run into one, without duplicates, and with what ``change`` makes of its rows; so
    for the tables beside them.

    The merged part is written first: a crash in between leaves duplicates, which readers and the next call drop. A run
    with a part that cannot be read, or that somebody else compacts meanwhile, is left as it is; so is one with columns
    that this farm does not know, with a LakeWarning: they would be lost. Who compacts the same parts at the same time
    makes the same file; who compacts others merges both: the last one to end leaves one part.
    """
    lake = open_lake(results)
    while len(old := list_lake_parts(lake, run_id)) > 1 or (old and change is not None):
        try:
            if change is None:
                name = hashlib.sha256("".join(path.rpartition("/")[2] for path in old).encode()).hexdigest()[:32]
                with _keep_arrow_pages():
                    write_run_file(lake, run_id, f"part-{name}.parquet", partial(_write_compacted_pieces, lake, old))
            else:
                for path in old:
                    next(_iterate_row_groups(lake, path, ()), None)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", LakeWarning)
                    table = change(keep_unique_rows(read_table(lake, run_id)))
                name = uuid.uuid4().hex
                write_run_file(lake, run_id, f"part-{name}.parquet", partial(_write_compacted_part, lake, [table]))
        except LakeWarning as why:  # a part that cannot be read is not thrown away
            if isinstance(why, NewerWarning):
                warnings.warn(why, stacklevel=2)
            return
        change = None
        for path in old:
            with contextlib.suppress(FileNotFoundError):  # somebody else compacts the run as well
                lake.filesystem.delete_file(path)
    for table in beside.TABLES:
        table.compact(lake, run_id)


@contextlib.contextmanager
def _keep_arrow_pages() -> Iterator[None]:
    """Make Arrow allocate with the C library. Its own pool returns pages at once; getting them again took half of the
    time."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _read_pieces_ahead(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same items; each is read while the one before it is written."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = reader.submit(next, pieces, None)
            yield piece


def _iterate_unique_rows(lake: Lake, paths: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of the parts without duplicates, in pieces. Raises LakeWarning."""
    keys = [one for path in paths for one in _iterate_row_groups(lake, path, [*KEY, "attempts"])]
    kept = find_kept_rows(pa.concat_tables(keys).unify_dictionaries()) if keys else None
    at, waiting, rows = 0, [], 0
    for path in paths:
        for table in _iterate_row_groups(lake, path, _COPIED.names):
            one = table if kept is None else table.filter(kept.slice(at, table.num_rows))
            at, rows = at + table.num_rows, rows + one.num_rows
            waiting.append(one)
            if rows >= AT_ONCE:
                yield pa.concat_tables(waiting)
                waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _iterate_row_groups(lake: Lake, path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The row groups of a part, in the types in which they are copied. Raises LakeWarning."""
    schema = pa.schema([_COPIED.field(name) for name in columns])
    try:
        with lake.filesystem.open_input_file(path) as file:
            part, present = open_lake_part(file, _FEW)
            if lost := sorted(present.difference(SCHEMA.names)):
                words = f"{path} has the column {lost[0]}, which this farm does not know"
                raise NewerWarning(f"{words}: the run stays in its parts; the farm that wrote them compacts it")
            for group in range(part.num_row_groups):
                empty = _find_empty_columns(part.metadata.row_group(group))
                table = part.read_row_group(group, [n for n in columns if n in present and n not in empty])
                yield fit_table_to_schema(table, schema, present)
    except (pa.ArrowException, OSError) as error:
        raise LakeWarning(f"{path}: {error}") from None


def _find_empty_columns(group: pq.RowGroupMetaData) -> set[str]:
    """The columns in which a row group has no value: usually a third of them."""
    found = (group.column(at) for at in range(group.num_columns))
    return {
        one.path_in_schema
        for one in found
        if (told := one.statistics) is not None and told.has_null_count and told.null_count == group.num_rows
    }


def _sort_by_op(table: pa.Table) -> pa.Table:
    """A table of one chunk, sorted by op (stable)."""
    op = table["op"].combine_chunks()
    op = op if pa.types.is_dictionary(op.type) else op.dictionary_encode()
    place = np.append(pc.rank(op.dictionary).to_numpy(), 0).astype("int32")
    order = np.argsort(place[op.indices.fill_null(len(place) - 1).to_numpy()], kind="stable")
    columns = [one if _is_constant_column(one) else one.take(pa.array(order)) for one in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _is_constant_column(column: pa.ChunkedArray) -> bool:
    """Whether a column of one chunk has the same value in all rows, as far as is known."""
    if not column.null_count and pa.types.is_dictionary(column.type):
        return bool(column.num_chunks == 1 and len(column.chunk(0).dictionary) == 1)
    return bool(column.null_count == len(column))


def _write_compacted_pieces(lake: Lake, old: Sequence[str], path: str) -> None:
    _write_compacted_part(lake, _read_pieces_ahead(_iterate_unique_rows(lake, old)), path)


def _write_compacted_part(lake: Lake, tables: Iterable[pa.Table], path: str) -> None:
    """Write a part of tables, each sorted by op: it stands in few row groups then, whose statistics name it."""
    writer = None
    try:
        for table in tables:
            one = _sort_by_op(table.unify_dictionaries().combine_chunks())
            if writer is None:
                writer = pq.ParquetWriter(path, one.schema, filesystem=lake.filesystem, **_HOW)
            writer.write_table(one, row_group_size=max(GROUP_ROWS, -(-one.num_rows // GROUPS)))
        if writer is not None:
            writer.add_key_value_metadata(_WORDS)
    finally:
        if writer is not None:
            writer.close()
