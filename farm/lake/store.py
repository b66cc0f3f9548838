"""The Parquet lake: appending, reading; local directories and any pyarrow filesystem (s3://…)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from farm.lake import upgrade
from farm.lake.origin_columns import KEY, SCHEMA, Origin
from tasks.model import Refusal
from tasks.model.row import Row
from tasks.nearest import find_near_names

if TYPE_CHECKING:  # a third of a second that only whoever reads rows pays for
    import pandas as pd


#: Without which, beside the key, a row says nothing: a part that lacks one is of something else.
OUTCOME = ("op", "dtype", "status")
#: Values that a row may have, by column.
Where = Mapping[str, Collection[Any]]
T = TypeVar("T")
#: Files that are read at once: a store answers each of them only after a while.
READERS = 8
#: Rows up to which a frame holds text as Python's own strings. A report of them takes a thousand small steps, each of
#: which costs more in Arrow than the work it does; of many rows Arrow's take less memory.
SMALL = 50_000
#: How often a directory is listed again in which files vanish meanwhile.
LISTED = 20


class LakeError(Refusal):
    """A lake that cannot be used; the text names the place and the fix."""


class LakeWarning(UserWarning):
    """A file of the lake was skipped; the text names it."""


class CopyWarning(LakeWarning):
    """A run's folder is another run's, by its name; the text names both."""


@dataclass(frozen=True)
class Lake:
    """An open lake: a pyarrow filesystem and the path of the lake's root on it."""

    filesystem: pafs.FileSystem
    root: str
    uri: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def path(self, run_id: str, name: str = "") -> str:
        return f"{self.root}/run={run_id}" + (f"/{name}" if name else "")


#: Seconds within which a store is to answer (by itself Google's is asked for 15 minutes; an S3 server that says
#: nothing, for 100 s at every step), in how many tries where that can be said, and letters of an error that are told.
ANSWER_S, TRIES, WORDS = 15, 3, 400
#: Options of S3 that are told of an open filesystem and are none of its URI's.
NOT_TOLD = ("proxy_options", "load_frequency", "connect_timeout", "request_timeout")
#: What the farm calls a run. A folder of another name may be a copy.
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")
#: Words for a run by its place in the lake: the newest, and the one before it.
RUN_WORDS = {"last": -1, "previous": -2}
#: A run's record, beside its parts; dataset readers leave it alone for its underscore.
RECORD = "_run.json"
#: What holds text in pandas as its user set it, while `hold_text_in_python` sets another.
_USERS_STORAGE: list[str] = []
#: A lake that is open, or where it is: a local path, or a URI of any pyarrow filesystem.
AnyLake = str | os.PathLike[str] | Lake


def open_lake(uri: AnyLake) -> Lake:
    """The lake at a local path or a URI of any pyarrow filesystem; an open one is returned as it is. Raises LakeError.

    An S3 server other than Amazon's is named by $AWS_ENDPOINT_URL or by ?endpoint_override=host:port&scheme=http.
    """
    if isinstance(uri, Lake):
        return uri
    text = os.fspath(uri)
    if not text.strip():
        raise LakeError(f"results {text!r}: name a directory or a URI, e.g. --results results")
    if "://" not in text:
        return Lake(pafs.LocalFileSystem(), os.path.abspath(text), text)
    try:
        filesystem, root = pafs.FileSystem.from_uri(_add_store_options(text))
        filesystem = _add_s3_timeouts(filesystem) if filesystem.type_name == "s3" else filesystem
    except (pa.ArrowException, OSError) as error:
        raise LakeError(f"results {text!r}: {_shorten_store_error(error)}") from None
    if not root.strip("/") and not isinstance(filesystem, pafs.LocalFileSystem):
        raise LakeError(f"results {text!r}: no bucket or directory is named")
    return Lake(filesystem, root.rstrip("/"), text)


def _add_store_options(uri: str) -> str:
    """The URI with default options of its server, where it does not set them itself."""
    more = "&" if "?" in uri else "?"
    if uri.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:
        return f"{uri}{more}retry_limit_seconds={ANSWER_S}"
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not uri.startswith("s3://") or not endpoint or "endpoint_override" in uri:
        return uri
    scheme, _, host = endpoint.rpartition("://")
    return f"{uri}{more}endpoint_override={host.rstrip('/')}&scheme={scheme or 'https'}"


def _add_s3_timeouts(filesystem: pafs.FileSystem) -> pafs.FileSystem:
    """The same S3 server with timeouts, which its URI has no option for."""
    _, (options,) = filesystem.__reduce__()
    if options["access_key"] and not options["secret_key"]:  # s3://anonymous@bucket: its meaning is Arrow's to know
        return filesystem
    return pafs.S3FileSystem(
        **{name: value for name, value in options.items() if value and name not in NOT_TOLD},
        connect_timeout=ANSWER_S / TRIES,
        request_timeout=ANSWER_S / TRIES,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(TRIES),
    )


def _shorten_store_error(error: Exception) -> str:
    """A filesystem's error on one line: object stores answer with pages."""
    text = " ".join(str(error).split())
    return text[:WORDS] + " …" if len(text) > WORDS else text


def check_lake_writable(lake: Lake) -> None:
    """Raise LakeError unless a file can be written to the lake's root and removed again."""
    probe = f"{lake.root}/_write-{uuid.uuid4().hex[:8]}"
    try:
        if not lake.is_local:
            lake.filesystem.get_file_info(lake.root)  # says at once that nobody answers
        lake.filesystem.create_dir(lake.root, recursive=True)
        with lake.filesystem.open_output_stream(probe) as file:
            file.write(b"x")
        lake.filesystem.delete_file(probe)
    except (pa.ArrowException, OSError) as error:
        raise LakeError(
            f"results {lake.uri!r} cannot be written: {_shorten_store_error(error)}; choose another place with --results"
        ) from None


def make_row_batch(rows: Sequence[Row], origin: Origin) -> pa.RecordBatch:
    """Rows of one origin as Arrow."""
    common, told, columns = vars(origin), [vars(row) for row in rows], []
    for field in SCHEMA:
        name = field.name
        if name in common:
            columns.append(pa.repeat(pa.scalar(common[name], field.type), len(rows)))
        elif name == "started_at":
            columns.append(pa.array([int(r.started_at * 1e6) for r in rows], field.type))
        elif name == "case_id":
            columns.append(pa.array([r.case_id for r in rows], field.type))
        elif name == "compute_precision":
            columns.append(pa.array([r.compute_precision or r.dtype for r in rows], field.type))
        else:
            default = getattr(Row, name, None)
            columns.append(_make_arrow_array([one.get(name, default) for one in told], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _make_arrow_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # half of a surrogate pair, as an error's text may have it
        return pa.array([v.encode(errors="replace").decode() if isinstance(v, str) else v for v in values], kind)


def make_row_stream(rows: Sequence[Row], origin: Origin) -> bytes:
    """Rows of one origin, serialized: an Arrow message without its schema, which took longer to read than the rows."""
    return make_row_batch(rows, origin).serialize().to_pybytes()


def read_row_stream(data: bytes) -> list[pa.RecordBatch]:
    """Read what `make_row_stream` made."""
    return [pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)]


def append_part(lake: Lake, run_id: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Write rows as one immutable part, visible all at once. Raises OSError."""
    table = pa.Table.from_batches(batches, schema=SCHEMA)
    if table.num_rows:
        write = partial(pq.write_table, table, filesystem=lake.filesystem, compression="zstd")
        write_run_file(lake, run_id, f"part-{uuid.uuid4().hex}.parquet", write)


def write_run_file(lake: Lake, run_id: str, name: str, write: Callable[[str], None]) -> None:
    """Make a file of a run, visible all at once: ``write`` writes it at the path it is given. Raises OSError."""
    target = lake.path(run_id, name)
    # An object store shows a file when it is complete; a directory needs the detour.
    # Two drivers may resume one run, whose record both write.
    aside = lake.path(run_id, f".{name}-{uuid.uuid4().hex[:8]}.tmp") if lake.is_local else target
    if lake.is_local:
        lake.filesystem.create_dir(lake.path(run_id), recursive=True)
    try:
        write(aside)
        if aside != target:
            os.replace(aside, target)
    except BaseException:
        if aside != target:
            with contextlib.suppress(OSError):
                lake.filesystem.delete_file(aside)
        raise


def write_run_record(lake: Lake, run_id: str, record: dict[str, Any]) -> None:
    """Write the record of a run, replacing it all at once where the filesystem can. Raises OSError."""
    text = json.dumps(record, indent=1).encode()

    def write(path: str) -> None:
        with lake.filesystem.open_output_stream(path) as file:
            file.write(text)

    write_run_file(lake, run_id, RECORD, write)


def read_run(results: AnyLake, run_id: str) -> dict[str, Any]:
    """The record of a run (`_run.json`): config, inventory, versions, times. Raises LakeError."""
    lake = open_lake(results)
    path = lake.path(run_id, RECORD)
    try:
        with lake.filesystem.open_input_stream(path) as file:
            value: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        if run_id in run_ids(lake):
            raise LakeError(f"run {run_id} in {lake.uri!r} has no record ({RECORD})") from None
        raise LakeError(f"no run {run_id!r} in {lake.uri!r}{_name_nearest_runs(lake, run_id)}") from None
    except OSError as error:
        raise LakeError(f"{path}: cannot be read ({error})") from None
    except ValueError as error:
        raise LakeError(f"{path}: not JSON ({error})") from None
    if not isinstance(value, dict):
        raise LakeError(f"{path}: not the record of a run (no JSON object)")
    return value


def _name_nearest_runs(lake: Lake, run_id: str) -> str:
    known = run_ids(lake)
    return (
        f"; there is {', '.join(find_near_names(run_id, known, 0.3) or known[-3:])}" if known else "; it holds no run"
    )


def run_ids(results: AnyLake) -> list[str]:
    """Ids of the runs in a lake, oldest first (they begin with their date). A copy of a run's folder beside it is left
    out, with a LakeWarning that names both. Raises LakeError."""
    lake = open_lake(results)
    found = _list_lake_directory(lake, lake.root)
    ids = sorted(i.base_name[4:] for i in found if i.type == pafs.FileType.Directory and i.base_name.startswith("run="))
    copies = {
        name: of
        for name in ids
        if not RUN_ID.fullmatch(name) and (of := _read_run_id(lake, name)) != name and of in ids
    }
    for name, of in copies.items():
        text = f"{lake.path(name)} is a copy of run {of} and is left out; remove it, or move it to a lake of its own"
        warnings.warn(text, CopyWarning, stacklevel=2)
    return [name for name in ids if name not in copies]


def list_known_runs(results: AnyLake) -> list[str]:
    """`run_ids` of a lake that must have runs. Raises LakeError, which says what is there instead."""
    lake = open_lake(results)
    if known := run_ids(lake):
        return known
    there = lake.filesystem.get_file_info(lake.root).type != pafs.FileType.NotFound
    what = "it has no folder run=…" if there else "there is no such place"
    raise LakeError(
        f"no runs in {lake.uri!r}: {what}; name another lake, or start one with: farm run configs/quick.yaml"
    )


def find_run_by_word(results: AnyLake, name: str) -> str:
    """The id of the run of a lake that one of `RUN_WORDS` names; every other name as it is. Raises LakeError where the lake
    has too few runs."""
    place = RUN_WORDS.get(name)
    if place is None:
        return name
    known = list_known_runs(results)
    if len(known) < -place:
        raise LakeError(f"no run {name!r}: the lake has one run, {known[-1]}; name it, or run once more")
    return known[place]


def explain_misnamed_run(path: str, said: str) -> str:
    """What is wrong with a folder that is called as a run is, but not as the run ``said`` of its rows; "" for
    nothing."""
    name = path.rpartition("/run=")[2]
    if said in ("", name) or not RUN_ID.fullmatch(name):
        return ""
    return (
        f"{path} holds the rows of run {said}: a copy, or renamed; call it run={said}, or move it to a lake of its own"
    )


def _read_run_id(lake: Lake, name: str) -> str:
    """The run id in the record of a run's folder; the folder's name if there is none."""
    try:
        with lake.filesystem.open_input_stream(lake.path(name, RECORD)) as file:
            return str(json.loads(file.read())["run_id"])
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return name


def _list_lake_directory(lake: Lake, path: str) -> list[pafs.FileInfo]:
    """The entries of a directory; none if it does not exist. Raises LakeError."""
    try:
        # A part that is deleted between its name and its size is an error of the listing.
        return read_again(lambda: lake.filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)))
    except (pa.ArrowException, OSError) as error:
        raise LakeError(
            f"results {lake.uri!r} cannot be read: {_shorten_store_error(error)}; check the place, that it can be reached from here, and the rights to it"
        ) from None


def read_again(read: Callable[[], T]) -> T:
    """What ``read`` returns, which is called again where a file is gone that it has listed: somebody compacts the run,
    and what the file had is in another now. Raises FileNotFoundError where that does not end."""
    for _ in range(LISTED):
        with contextlib.suppress(FileNotFoundError):
            return read()
    return read()


def read_table(
    results: AnyLake,
    run_id: str | None = None,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    coded: bool = False,
) -> pa.Table:
    """Rows of one run, or of all, in the schema's columns (or those of them that are named); of them those ``where``
    the columns have one of the values. What is asked for is all that is read of a part, as far as its statistics tell.
    coded: texts are numbers of dictionaries, of which every part has its own; that is quicker where rows are many.

    A foreign or damaged file is skipped with a LakeWarning that names it. Raises LakeError.
    """
    lake = open_lake(results)
    schema = pa.schema([f for f in SCHEMA if columns is None or f.name in columns], SCHEMA.metadata)
    schema = code_lake_schema(schema) if coded else schema
    tables: list[pa.Table] = []

    def read_part(path: str) -> pa.Table | Exception:
        try:
            return _read_part_table(lake, path, schema, where or {})
        except (pa.ArrowException, OSError) as error:
            # A store says in many words that an object is gone.
            gone = lake.filesystem.get_file_info(path).type == pafs.FileType.NotFound
            return FileNotFoundError(path) if gone else error

    with ThreadPoolExecutor(READERS) as pool:
        runs = [run_id] if run_id is not None else run_ids(lake)
        todo = [
            (r, path)
            for r, some in zip(runs, pool.map(lambda r: list_lake_parts(lake, r), runs), strict=True)
            for path in some
        ]
        listed = {path for _, path in todo}
        while todo:
            gone: dict[str, None] = {}
            for (one, path), got in zip(todo, pool.map(read_part, [path for _, path in todo]), strict=True):
                if isinstance(got, pa.Table):
                    tables.append(got)
                elif isinstance(got, FileNotFoundError):
                    gone[one] = None
                else:
                    text = (str(got).splitlines() or [""])[0]
                    warnings.warn(f"{path}: skipped, not a readable part ({text})", LakeWarning, stacklevel=2)
            # Compacted since they were listed: their rows are in a part that is there now.
            todo = [(one, path) for one in gone for path in list_lake_parts(lake, one) if path not in listed]
            listed.update(path for _, path in todo)
    return pa.concat_tables([schema.empty_table(), *tables])


def _read_part_table(lake: Lake, path: str, schema: pa.Schema, where: Where) -> pa.Table:
    """The requested rows and columns of a part. Raises ArrowException, OSError."""
    codes = [f.name for f in schema if pa.types.is_dictionary(f.type)]
    with lake.filesystem.open_input_file(path) as file:
        part, present = open_lake_part(file, codes, pre_buffer=not lake.is_local)
        if not where.keys() <= present:
            return schema.empty_table()
        names = [name for name in {**dict.fromkeys(schema.names), **where} if name in present]
        names += [name for name in upgrade.list_columns_to_upgrade(schema.names, present) if name not in names]
        # Who asks for few rows asks many parts, each in a thread of its own.
        table = part.read_row_groups(_select_row_groups(part.metadata, where), names, use_threads=not where)
    for name, some in where.items():
        table = table.filter(_mask_values_among(table[name], pa.array(list(some), SCHEMA.field(name).type)))
    return fit_table_to_schema(table, schema, present)


def open_lake_part(
    file: pa.NativeFile, coded: Collection[str], pre_buffer: bool = False
) -> tuple[pq.ParquetFile, set[str]]:
    """A part of which the texts of some columns are read as numbers, and its columns. Raises ArrowException, of a
    foreign file too."""
    try:
        part = pq.ParquetFile(file, read_dictionary=coded, pre_buffer=pre_buffer)
        there = part.metadata
    except KeyError:  # it has not all of these columns: reading its footer twice is for such files alone
        part, there = None, pq.read_metadata(file)
    paths = [there.schema.column(k).path for k in range(len(there.schema))]
    present = {path.partition(".")[0] for path in paths}
    if missing := [c for c in (*KEY, *OUTCOME) if c not in present]:
        raise pa.ArrowInvalid(f"a foreign file: no column {missing[0]}")
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise pa.ArrowInvalid(f"a foreign file: {paths.count(twice)} columns {twice}")
    if part is None:
        codes = present.intersection(coded, paths)
        part = pq.ParquetFile(file, metadata=there, read_dictionary=codes, pre_buffer=pre_buffer)
    return part, present


def _select_row_groups(there: pq.FileMetaData, where: Where) -> list[int]:
    """The row groups that may have requested rows, by their statistics."""
    places = {name: at for at, name in enumerate(there.schema.names) if name in where}
    return [
        k
        for k in range(there.num_row_groups)
        if all(_may_hold_values(there.row_group(k).column(at).statistics, where[name]) for name, at in places.items())
    ]


def _may_hold_values(told: pq.Statistics | None, some: Collection[Any]) -> bool:
    """Whether a column with these statistics may contain one of the values."""
    if told is None or not told.has_min_max:
        return True
    least, most = told.min, told.max
    return any(type(x) is not type(least) or least <= x <= most for x in some)


def _mask_values_among(column: pa.ChunkedArray, some: pa.Array) -> pa.ChunkedArray:
    """Which values of a column are among the given ones."""
    if not pa.types.is_dictionary(column.type):
        return pc.is_in(column.cast(some.type), some)
    told = [pc.is_in(one.dictionary, some).take(one.indices) for one in column.chunks]
    return pa.chunked_array(told, pa.bool_())


def code_lake_schema(schema: pa.Schema, but: Collection[str] = ()) -> pa.Schema:
    """The same schema, with strings encoded as dictionaries."""
    coded = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([f.with_type(coded) if f.type == pa.string() and f.name not in but else f for f in schema])


def fit_table_to_schema(table: pa.Table, schema: pa.Schema, present: Collection[str]) -> pa.Table:
    """The table with just the schema's columns, null where it has none; rows of an older schema say the same in this
    one's columns. present: the columns of the part that it was read of. Raises ArrowException for foreign types."""
    table = upgrade.upgrade_lake_rows(table, present)
    there = set(table.column_names)
    columns = []
    for field in schema:
        column = table[field.name] if field.name in there else pa.nulls(table.num_rows, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def list_lake_parts(lake: Lake, run_id: str, table: str = "") -> list[str]:
    """Paths of a run's part files, or of those of a table beside its rows, ``_TABLE-*.parquet``. Raises LakeError."""
    files = [i for i in _list_lake_directory(lake, lake.path(run_id)) if i.type == pafs.FileType.File]
    found = [i for i in files if i.base_name.endswith(".parquet")]
    return sorted(
        i.path for i in found if (i.base_name.startswith(f"_{table}-") if table else i.base_name[0] not in "._")
    )


def read(results: AnyLake, run_id: str | None = None, where: Where | None = None) -> pd.DataFrame:
    """Rows of one run, or of all runs, as a DataFrame; one row per key (run_id, case_id, backend); ``where``: as in
    `read_table`.

    A damaged or foreign file is skipped with a LakeWarning. Raises LakeError if the run does not exist.
    """
    lake = open_lake(results)
    if run_id is not None and run_id not in run_ids(lake):
        raise LakeError(f"no run {run_id!r} in {lake.uri!r}{_name_nearest_runs(lake, run_id)}")
    frame = make_lake_frame(keep_unique_rows(read_table(lake, run_id, where=where)))
    for said in frame["run_id"].unique() if run_id is not None else ():
        if words := explain_misnamed_run(lake.path(str(run_id)), said):
            warnings.warn(words, CopyWarning, stacklevel=2)
    frame.attrs["results"] = lake.uri  # so that a report can say where its rows are
    return frame


def make_lake_frame(table: pa.Table) -> pd.DataFrame:
    """A table as a DataFrame. The type of its text is pandas's own, whatever holds it: Python where rows are few (`SMALL`),
    else what pandas is set to."""
    import pandas as pd  # what reads tables alone has no need of it

    storage: Any = "python" if table.num_rows <= SMALL else _USERS_STORAGE[0] if _USERS_STORAGE else None
    types: dict[pa.DataType, Any] = {}
    if storage is not None and isinstance(pa.array([""]).to_pandas().dtype, pd.StringDtype):  # pandas 2 has objects
        # By the type: pandas's option is of all threads, and one that sets it for a while may leave another's behind.
        text = pd.StringDtype(storage, na_value=float("nan"))
        types = {pa.string(): text, pa.large_string(): text}
    frame: pd.DataFrame = table.to_pandas(types_mapper=types.get)
    return frame


@contextlib.contextmanager
def hold_text_in_python() -> Iterator[None]:
    """Meanwhile, text that is put beside that of a small frame is held as the frame's own (`make_lake_frame`): each step that
    mixes the two converts one of them. For a command that reports; a library leaves pandas as its caller set it."""
    import pandas as pd

    users = pd.get_option("mode.string_storage")
    _USERS_STORAGE.append("pyarrow" if users == "auto" else users)
    try:
        with pd.option_context("mode.string_storage", "python"):
            yield
    finally:
        _USERS_STORAGE.pop()


def keep_unique_rows(table: pa.Table) -> pa.Table:
    """One row per key: the one with the most attempts, the last of equals. Rows stay in their order."""
    kept = find_kept_rows(table)
    return table if kept is None else table.filter(kept)


def find_kept_rows(table: pa.Table) -> pa.Array | None:
    """The rows that `keep_unique_rows` keeps; None for all."""
    keys = make_lake_frame(table.select([*KEY, "attempts"]))
    if not keys.duplicated(KEY).any():
        return None
    order = keys.sort_values("attempts", kind="stable", na_position="first")
    return pc.invert(pa.array(order.duplicated(KEY, keep="last").sort_index()))
