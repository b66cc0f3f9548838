"""The lake: rows come back as they were, whatever else lies beside them, and a crash loses and doubles nothing."""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from farm import lake
from farm.commands import site
from farm.lake import SCHEMA, Lake, LakeError, LakeWarning, store
from farm.lake.origin_columns import KEY
from farm.lake.store import list_lake_parts
from farm.work.launch import read_durable_rows, run_id_at
from farm.work.state import BeforeRun
from tasks.model.row import Row
from tests import prepared
from tests.farm.test_compaction import at_once, compacted_by_two, filled

RUN = "20260101-000000-aaaa"
CONSTANT = {"run_id": RUN, "backend": "torch-cpu", "vendor": "Meta", "device": "AVX2"}


def row(sample: int, **more: Any) -> dict[str, Any]:
    return {
        "catalog": "torch",
        "op": "torch:abs",
        "variant": "",
        "dtype": "float32",
        "sample": sample,
        "seed": 0,
        "attempts": 1,
        "distribution": "own",
        "status": "pass",
        "kind": "",
        "started_at": 1.5,
        "numel": 3,
        "error_units": 0.5,
        "weak": False,
    } | more


def made(rows: list[dict[str, Any]], **origin: str) -> pa.RecordBatch:
    return lake.make_row_batch([Row(**r) for r in rows], lake.Origin(**(CONSTANT | origin)))


def batch(*samples: int, run_id: str = RUN, **more: Any) -> pa.RecordBatch:
    return made([row(s, **more) for s in samples], run_id=run_id)


@pytest.fixture
def local(results: Path) -> Lake:
    return lake.open_lake(results)


def place(opened: Lake, name: str = "") -> Path:
    return Path(opened.path(RUN, name))


def quietly(results: Any, run_id: str | None = None) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return lake.read(results, run_id)


# --- rows -------------------------------------------------------------------------------------------------------


def test_rows_come_back_in_the_schema(local: Lake) -> None:
    lake.append_part(local, RUN, [batch(0, 1), batch(2, error_units=float("inf"), max_ulp=None, error="näh\n\udce9")])
    table = lake.read_table(local.root, RUN)
    assert table.schema.equals(SCHEMA)
    frame = quietly(local.root, RUN)
    assert list(frame.columns) == SCHEMA.names
    assert frame["case_id"].tolist() == [f"forward/torch:abs/float32/{i}" for i in range(3)]
    assert frame["error_units"].tolist() == [0.5, 0.5, float("inf")]
    assert frame["max_ulp"].isna().all() and frame["error"].tolist()[2] == "näh\n?"
    assert frame["started_at"].tolist() == [pd.Timestamp("1970-01-01 00:00:01.5", tz="UTC")] * 3
    assert frame["compute_precision"].tolist() == ["float32"] * 3
    assert frame["device"].tolist() == ["AVX2"] * 3
    assert frame["weak"].tolist() == [False] * 3


def test_every_column_says_what_it_means() -> None:
    for field in SCHEMA:
        assert field.metadata[b"description"] and b"unit" in field.metadata
    assert all(field.metadata[b"unit"] == b"ms" for field in SCHEMA if field.name.endswith("_ms"))


def test_variants_and_seeds_are_in_the_case_id() -> None:
    made = batch(3, variant="unbiased", seed=7)
    assert made.column("case_id").to_pylist() == ["forward/torch:abs.unbiased/float32/3@7"]


def test_nothing_to_append_makes_no_file(local: Lake) -> None:
    lake.append_part(local, RUN, [])
    lake.append_part(local, RUN, [batch()])
    assert list_lake_parts(local, RUN) == []


def test_pandas_alone_reads_the_root(local: Lake) -> None:
    lake.append_part(local, RUN, [batch(0, 1)])
    lake.append_part(local, "20260102-000000-bbbb", [batch(0, run_id="20260102-000000-bbbb")])
    lake.write_run_record(local, RUN, {"run_id": RUN})
    for folder in (place(local, "_report"), Path(local.root) / "_report"):
        folder.mkdir(parents=True)
        (folder / "rows.csv").write_text("a,b\n")
        (folder / "index.html").write_text("<html>")
    place(local, ".part-x.parquet.tmp").write_bytes(b"half")
    place(local, "._run.json.tmp").write_bytes(b"{")
    frame = pd.read_parquet(local.root)
    assert len(frame) == 3 and set(SCHEMA.names) <= set(frame.columns)
    assert len(pd.read_parquet(local.root, filters=[("run", "==", RUN)])) == 2
    assert len(quietly(local.root)) == 3


def test_reading_some_columns(local: Lake) -> None:
    lake.append_part(local, RUN, [batch(0, 1)])
    table = lake.read_table(local.root, RUN, ["op", "sample"])
    assert table.column_names == ["op", "sample"] and table.num_rows == 2
    assert lake.read_table(local.root, "none", ["op", "sample"]).column_names == ["op", "sample"]


# --- what is not a part -----------------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), path)


def foreign_types(path: Path) -> None:
    names = {key: ["x"] for key in ("run_id", "case_id", "backend", "op", "dtype", "status")}
    pq.write_table(pa.table(names | {"sample": ["not a number"]}), path)


def lacking(column: str) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.Table.from_batches([batch(7)]).drop_columns([column]), path)


def truncated(path: Path) -> None:
    whole = sorted(path.parent.glob("part-*.parquet"))[0].read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def holed(path: Path) -> None:
    whole = bytearray(sorted(path.parent.glob("part-*.parquet"))[0].read_bytes())
    whole[4 : len(whole) // 2] = bytes(len(whole) // 2 - 4)
    path.write_bytes(whole)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"PAR1 is not all it takes PAR1")


@pytest.mark.parametrize(
    "plant",
    (foreign, foreign_types, *map(lacking, ("case_id", "op", "dtype", "status")), truncated, holed, empty, garbage),
)
def test_a_file_that_is_no_part_is_skipped_and_named(local: Lake, plant: Any) -> None:
    lake.append_part(local, RUN, [batch(0, 1)])
    plant(place(local, "strange.parquet"))
    with pytest.warns(LakeWarning, match=r"strange\.parquet: skipped"):
        frame = lake.read(local.root, RUN)
    assert sorted(frame["sample"]) == [0, 1] and list(frame.columns) == SCHEMA.names
    with pytest.warns(LakeWarning, match=r"strange\.parquet"):
        assert len(lake.read(local.root)) == 2
    # It is not thrown away either.
    lake.compact_run(local.root, RUN)
    assert place(local, "strange.parquet").exists() and len(list_lake_parts(local, RUN)) == 2


def test_a_folder_that_is_called_like_a_part(local: Lake) -> None:
    lake.append_part(local, RUN, [batch(0)])
    place(local, "odd.parquet").mkdir()
    assert len(quietly(local.root)) == 1


def test_parts_of_another_version_of_the_schema(local: Lake) -> None:
    lake.append_part(local, RUN, [batch(0)])
    older = pa.Table.from_batches([batch(1)]).drop_columns(["flags", "weak"])
    older = older.set_column(older.column_names.index("op"), "op", older.column("op").dictionary_encode())
    pq.write_table(older, place(local, "part-old.parquet"))
    frame = quietly(local.root, RUN)
    assert sorted(frame["sample"]) == [0, 1] and list(frame.columns) == SCHEMA.names
    lake.compact_run(local.root, RUN)
    assert len(list_lake_parts(local, RUN)) == 1 and sorted(quietly(local.root)["sample"]) == [0, 1]


# --- keys -------------------------------------------------------------------------------------------------------


def test_of_rows_with_one_key_the_one_with_most_attempts_counts(local: Lake) -> None:
    lake.append_part(local, RUN, [batch(0, attempts=1, status="pass"), batch(1)])
    lake.append_part(local, RUN, [batch(0, attempts=3, status="crash")])
    lake.append_part(local, RUN, [batch(0, attempts=2, status="wrong")])
    frame = quietly(local.root, RUN).set_index("sample")
    assert len(frame) == 2 and not quietly(local.root).duplicated(KEY).any()
    assert (frame.loc[0, "status"], frame.loc[0, "attempts"]) == ("crash", 3)


def test_runs_and_backends_are_other_keys(local: Lake) -> None:
    other = made([row(0)], backend="ort-cpu")
    lake.append_part(local, RUN, [batch(0), other])
    lake.append_part(local, "20260102-000000-bbbb", [batch(0, run_id="20260102-000000-bbbb")])
    assert len(quietly(local.root)) == 3
    assert len(quietly(local.root, RUN)) == 2


def test_resume_keys(local: Lake) -> None:
    from farm.plan.config import Config
    from farm.plan.matrix import build_matrix
    from tasks.catalogs.base import Entry

    config = Config.model_validate({"catalogs": ["torch"], "backends": ["torch-cpu", "ort-cpu"], "dtypes": ["float32"]})
    matrix = build_matrix(
        config, {"torch": [Entry("torch:abs", "", ("float32",)), Entry("torch:add", "", ("float32",))]}
    )
    assert read_durable_rows(local.root, RUN, matrix) == BeforeRun()
    lake.append_part(local, RUN, [batch(0, 5), batch(5, attempts=2)])
    lake.append_part(local, RUN, [made([row(1, op="torch:add")], backend="ort-cpu")])
    lake.append_part(local, RUN, [made([row(1, op="torch:gone")]), made([row(1)], backend="x")])
    lake.append_part(local, "20260102-000000-bbbb", [batch(7, run_id="20260102-000000-bbbb")])
    garbage(place(local, "part-bad.parquet"))
    with pytest.warns(LakeWarning, match="part-bad"):
        assert read_durable_rows(local.root, RUN, matrix).done == {(0, 0): {0, 5}, (1, 1): {1}}
        lake.append_part(local, RUN, [made([row(2, status="unavailable", attempts=3)])])
        assert read_durable_rows(local.root, RUN, matrix).done == {(0, 0): {0, 2, 5}, (1, 1): {1}}
        again = read_durable_rows(local.root, RUN, matrix, ["torch-cpu"])
    assert again == BeforeRun({(0, 0): {0, 5}, (1, 1): {1}}, {(0, 0): {2: 3}})


# --- runs -------------------------------------------------------------------------------------------------------


def test_ids_of_runs_sort_by_their_start_also_within_a_second() -> None:
    start = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    ids = [run_id_at(start + datetime.timedelta(milliseconds=ms)) for ms in (0, 1, 20, 300, 999, 1000, 61_000)]
    assert ids == sorted(set(ids)) and all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", name) for name in ids)


def test_run_ids_and_records(local: Lake) -> None:
    assert lake.run_ids(local.root) == []
    for name in ("20260102-000000-bbbb", RUN):
        lake.write_run_record(local, name, {"run_id": name, "text": "ε"})
    lake.write_run_record(local, RUN, {"run_id": RUN, "finished": True})
    (Path(local.root) / "_report").mkdir()
    (Path(local.root) / "run=file").write_text("no directory")
    assert lake.run_ids(local.root) == [RUN, "20260102-000000-bbbb"]
    assert lake.read_run(local.root, RUN) == {"run_id": RUN, "finished": True}
    assert lake.read_run(local.root, "20260102-000000-bbbb")["text"] == "ε"
    assert [p.name for p in place(local).iterdir()] == ["_run.json"]


def test_a_run_that_is_not_there_is_told_with_the_nearest(local: Lake) -> None:
    for read in (lake.read, lake.read_run):
        with pytest.raises(LakeError, match="no run"):
            read(local.root, RUN)
    lake.append_part(local, RUN, [batch(0)])
    lake.write_run_record(local, RUN, {})
    for read in (lake.read, lake.read_run):
        with pytest.raises(LakeError, match=f"no run '20260101-000000-aaab'.*{RUN}"):
            read(local.root, "20260101-000000-aaab")


@pytest.mark.parametrize("content", (b"", b"{", b"[1]", b"\xff"))
def test_a_damaged_record_is_named(local: Lake, content: bytes) -> None:
    place(local).mkdir(parents=True)
    place(local, "_run.json").write_bytes(content)
    with pytest.raises(LakeError, match=r"_run\.json"):
        lake.read_run(local.root, RUN)


def test_a_record_that_cannot_be_written_leaves_the_old_one(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.write_run_record(local, RUN, {"old": 1})
    with pytest.raises(TypeError):
        lake.write_run_record(local, RUN, {"new": object()})
    assert lake.read_run(local.root, RUN) == {"old": 1}


# --- places -----------------------------------------------------------------------------------------------------


def test_a_writable_place_is_left_as_it_was(local: Lake) -> None:
    lake.check_lake_writable(local)
    assert os.listdir(local.root) == []


@pytest.mark.parametrize("where", ("{file}/lake", "{file}", "/proc/lake", "/dev/null/lake"))
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a regular file")
    opened = lake.open_lake(where.format(file=tmp_path / "file"))
    with pytest.raises(LakeError, match=r"cannot be written.*--results"):
        lake.check_lake_writable(opened)


def test_a_lake_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a regular file")
    for call in (
        lambda: lake.run_ids(tmp_path / "file"),
        lambda: lake.read(tmp_path / "file"),
        lambda: lake.read_run(tmp_path / "file", RUN),
    ):
        with pytest.raises(LakeError, match="file"):
            call()


@pytest.mark.parametrize("uri", ("foo://x/y", "s3://", "s3:///"))
def test_a_uri_that_is_none(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(LakeError, match="results"):
        lake.open_lake(uri)


def test_a_file_uri_is_a_local_lake(tmp_path: Path) -> None:
    opened = lake.open_lake(f"file://{tmp_path}/lake")
    lake.check_lake_writable(opened)
    lake.append_part(opened, RUN, [batch(0)])
    lake.write_run_record(opened, RUN, {})
    assert opened.is_local and len(quietly(tmp_path / "lake", RUN)) == 1


# --- faults while writing ---------------------------------------------------------------------------------------


def full_disk(*args: Any, **kwargs: Any) -> None:
    """The disk fills up in the middle of a part."""
    filesystem, path = kwargs["filesystem"], args[1]
    with filesystem.open_output_stream(path) as file:
        file.write(b"PAR1 half of a part")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_no_half_part(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.append_part(local, RUN, [batch(0)])
    with monkeypatch.context() as patch:
        patch.setattr(lake.store.pq, "write_table", full_disk)
        with pytest.raises(OSError, match="No space"):
            lake.append_part(local, RUN, [batch(1)])
    assert len(os.listdir(place(local))) == 1
    assert quietly(local.root, RUN)["sample"].tolist() == [0]
    lake.append_part(local, RUN, [batch(1)])  # room again
    assert sorted(quietly(local.root, RUN)["sample"]) == [0, 1]


def test_killed_while_writing(local: Lake) -> None:
    """A SIGKILL in the middle of a part leaves a file that no reader looks at."""
    lake.append_part(local, RUN, [batch(0)])
    program = f"""
import os, signal
from farm import lake
from tests.farm.test_lake import batch, RUN
def half(table, path, filesystem, **kwargs):
    with filesystem.open_output_stream(path) as file:
        file.write(b"PAR1 half")
    os.kill(os.getpid(), signal.SIGKILL)
lake.store.pq.write_table = half
lake.append_part(lake.open_lake({local.root!r}), RUN, [batch(1)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(os.listdir(place(local))) == 2
    assert quietly(local.root, RUN)["sample"].tolist() == [0]
    assert len(pd.read_parquet(local.root)) == 1


# --- compaction -------------------------------------------------------------------------------------------------


def test_compaction_keeps_every_row(local: Lake) -> None:
    for s in range(5):
        lake.append_part(local, RUN, [batch(s, 10 + s, error=f"text {s}")])
    lake.write_run_record(local, RUN, {"a": 1})
    before = quietly(local.root, RUN)
    lake.compact_run(local.root, RUN)
    assert len(list_lake_parts(local, RUN)) == 1
    after = quietly(local.root, RUN)
    pd.testing.assert_frame_equal(
        after.sort_values("sample", ignore_index=True), before.sort_values("sample", ignore_index=True)
    )
    assert lake.read_run(local.root, RUN) == {"a": 1}
    (part,) = list_lake_parts(local, RUN)
    lake.compact_run(local.root, RUN)
    lake.compact_run(local.root, "none")
    assert list_lake_parts(local, RUN) == [part]
    assert pq.read_schema(list_lake_parts(local, RUN)[0]).equals(SCHEMA)


@pytest.mark.parametrize("survivors", (1, 2, 3))
def test_a_crash_between_writing_and_deleting_doubles_nothing(
    local: Lake, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    for s in range(3):
        lake.append_part(local, RUN, [batch(s)])
    old = {p: Path(p).read_bytes() for p in list_lake_parts(local, RUN)}
    lake.compact_run(local.root, RUN)
    for path in list(old)[:survivors]:  # as if the process had died before these deletions
        Path(path).write_bytes(old[path])
    assert sorted(quietly(local.root, RUN)["sample"]) == [0, 1, 2]
    lake.compact_run(local.root, RUN)  # by the run that is resumed
    assert sorted(quietly(local.root, RUN)["sample"]) == [0, 1, 2]
    assert len(pd.read_parquet(local.root)) == 3  # for a reader that knows of no keys too


def test_a_full_disk_while_compacting_loses_nothing(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for s in range(3):
        lake.append_part(local, RUN, [batch(s)])

    def full(writer: pq.ParquetWriter, table: pa.Table, **how: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space"):
        lake.compact_run(local.root, RUN)
    assert sorted(quietly(local.root, RUN)["sample"]) == [0, 1, 2]
    assert len(os.listdir(place(local))) == 3


# --- S3 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    boto3 = pytest.importorskip("boto3")
    moto = pytest.importorskip("moto.server")
    made = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    threaded = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    threaded.start()
    host, port = threaded.get_host_and_port()
    made["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "http_proxy", "HTTP_PROXY"):
            patch.delenv(name, raising=False)
        for name, value in made.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield made["AWS_ENDPOINT_URL"]
    threaded.stop()


@pytest.fixture
def s3(server: str, request: pytest.FixtureRequest) -> Lake:
    return lake.open_lake(f"s3://bucket/{request.node.name.partition('[')[0]}")


def test_s3_from_end_to_end(s3: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> None:
        raise AssertionError("os.replace on an object store")

    monkeypatch.setattr(os, "replace", never)
    assert not s3.is_local and lake.run_ids(s3.uri) == []
    lake.check_lake_writable(s3)
    lake.append_part(s3, RUN, [batch(0, 1)])
    lake.append_part(s3, RUN, [batch(1, attempts=2, status="wrong"), batch(2)])
    lake.write_run_record(s3, RUN, {"state": "begun"})
    lake.write_run_record(s3, RUN, {"state": "finished"})
    assert lake.read_run(s3.uri, RUN) == {"state": "finished"}
    assert lake.run_ids(s3.uri) == [RUN]
    frame = quietly(s3.uri, RUN)
    assert dict(zip(frame["sample"], frame["status"])) == {0: "pass", 1: "wrong", 2: "pass"}
    assert len(list_lake_parts(s3, RUN)) == 2
    lake.compact_run(s3.uri, RUN)
    assert len(list_lake_parts(s3, RUN)) == 1
    assert len(quietly(s3.uri)) == 3 and len(pd.read_parquet(s3.uri)) == 3


def test_s3_takes_a_site_over_many_runs(s3: Lake) -> None:
    lake.append_part(s3, RUN, [batch(0)])
    lake.write_run_record(s3, RUN, {"run_id": RUN, "name": "nightly", "started_at": "2026-01-01T00:00:00+00:00"})
    assert site.main([f"{s3.uri}-site", s3.uri]) == 0
    out = lake.open_lake(f"{s3.uri}-site")
    with out.filesystem.open_input_stream(f"{out.root}/index.html") as file:
        assert b"nightly" in file.read() and file.metadata()["Content-Type"].startswith(b"text/html")


def test_several_write_compact_and_read_one_lake_on_s3(s3: Lake) -> None:
    at_once(s3, 4)


def test_two_that_compact_one_run_at_once_leave_one_part_on_s3(s3: Lake) -> None:
    compacted_by_two(filled(s3))


def test_s3_with_strange_objects_beside(s3: Lake) -> None:
    lake.append_part(s3, RUN, [batch(0)])
    with s3.filesystem.open_output_stream(s3.path(RUN, "strange.parquet")) as file:
        file.write(b"garbage")
    with s3.filesystem.open_output_stream(s3.path(RUN, "_report/index.html")) as file:
        file.write(b"<html>")
    with pytest.warns(LakeWarning, match=r"strange\.parquet"):
        assert len(lake.read(s3.uri, RUN)) == 1
    with pytest.raises(LakeError, match=f"no run 'x'.*{RUN}"):
        lake.read_run(s3.uri, "x")


def test_s3_a_record_that_is_no_json_leaves_the_old_one(s3: Lake) -> None:
    lake.write_run_record(s3, RUN, {"old": 1})
    with pytest.raises(TypeError):
        lake.write_run_record(s3, RUN, {"new": object()})
    assert lake.read_run(s3.uri, RUN) == {"old": 1}


def test_s3_without_the_bucket(server: str) -> None:
    with pytest.raises(LakeError, match="cannot be written"):
        lake.check_lake_writable(lake.open_lake("s3://nobucket/x"))


def test_s3_server_named_in_the_uri(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = server.removeprefix("http://")
    opened = lake.open_lake(f"s3://bucket/named?endpoint_override={host}&scheme=http")
    lake.append_part(opened, RUN, [batch(0)])
    assert len(quietly(opened.uri)) == 1


def test_a_whole_run_on_s3(server: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "catalogs: [{name: critical, ops: [add, mul], samples: 2}]\nbackends: [torch-cpu]\n"
    )

    def farm(*args: str) -> None:
        command = [sys.executable, "-m", "farm.launch", *args, "--on", "inline", "--results", "s3://bucket/runs"]
        done = prepared.run(command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    farm("c.yaml")
    (run_id,) = lake.run_ids("s3://bucket/runs")
    record = lake.read_run("s3://bucket/runs", run_id)
    rows = quietly("s3://bucket/runs", run_id)
    assert len(rows) == record["planned"] > 0 and set(rows["status"]) == {"pass"}
    assert record["finished_at"]
    farm("--resume", run_id)  # there is nothing left to do, and nothing is done twice
    assert len(quietly("s3://bucket/runs", run_id)) == len(pd.read_parquet("s3://bucket/runs")) == record["planned"]


def test_a_store_that_does_not_answer_is_asked_for_seconds_not_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
        asked.append(uri)
        return pafs.LocalFileSystem(), "/bucket"

    monkeypatch.setattr(
        "farm.lake.store.pafs",
        SimpleNamespace(FileSystem=SimpleNamespace(from_uri=from_uri), LocalFileSystem=pafs.LocalFileSystem),
    )
    for uri in ("gs://bucket/x", "gs://bucket/x?retry_limit_seconds=300", "gs://bucket?endpoint_override=h"):
        assert lake.open_lake(uri).uri == uri
    assert asked == [
        "gs://bucket/x?retry_limit_seconds=15",
        "gs://bucket/x?retry_limit_seconds=300",
        "gs://bucket?endpoint_override=h&retry_limit_seconds=15",
    ]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Any]]]:
    """(address of a server that takes connections and never says a word, those that it has taken)."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    taken: list[Any] = []
    server = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(server.accept())

    threading.Thread(target=take, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}", taken
    server.close()


def test_an_s3_server_that_says_nothing_is_given_up(
    silent: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farm.lake.store.ANSWER_S", 3)
    address, taken = silent
    opened = lake.open_lake(f"s3://bucket/x?endpoint_override={address}&scheme=http")
    with pytest.raises(LakeError, match="cannot be read: .*; check the place, that it can be reached") as caught:
        lake.run_ids(opened)
    assert "\n" not in str(caught.value) and 1 <= len(taken) <= 3
    asked = len(taken)
    with pytest.raises(LakeError, match="cannot be written: .*; choose another place with --results"):
        lake.check_lake_writable(opened)
    assert len(taken) <= asked + 3


@pytest.mark.parametrize(
    ("uri", "kept"),
    [
        (
            "s3://k:s%2F@b/x?endpoint_override=h:1&scheme=http",
            {"access_key": "k", "secret_key": "s/", "scheme": "http"},
        ),
        ("s3://b/x?endpoint_override=h:1&region=eu-west-1", {"access_key": None, "region": "eu-west-1"}),
        ("s3://b/x?endpoint_override=h:1&allow_bucket_creation=true", {"allow_bucket_creation": True}),
        ("s3://anonymous@b/x?endpoint_override=h:1", {"endpoint_override": "h:1"}),
    ],
)
def test_the_options_of_an_s3_uri_are_kept(uri: str, kept: dict[str, Any], silent: tuple[str, list[Any]]) -> None:
    filesystem = lake.open_lake(uri).filesystem
    _, (options,) = filesystem.__reduce__()  # type: ignore[misc]
    assert {name: options[name] for name in kept} == kept
    assert ("anonymous" in uri) == (options["request_timeout"] < 0)


def test_text_of_few_rows_is_held_in_python_and_pandas_is_left_as_it_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of some thousand rows took a sixth longer with text in Arrow; of many rows that takes less memory."""
    table, before = pa.table({"status": ["pass", "wrong", None]}), pd.get_option("mode.string_storage")
    few = store.make_lake_frame(table)["status"]
    monkeypatch.setattr(store, "SMALL", 2)
    many = store.make_lake_frame(table)["status"]
    with store.hold_text_in_python(), store.hold_text_in_python():
        beside = few.to_frame().assign(more=["a", "b", "c"])
        many_beside = store.make_lake_frame(table)["status"]
    with pd.option_context("mode.string_storage", "python"):
        asked = store.make_lake_frame(table)["status"]
        with store.hold_text_in_python():
            asked_beside = store.make_lake_frame(table)["status"]
    in_arrow = [(held, "pyarrow") for held in (many, many_beside)]
    in_python = [(held, "python") for held in (few, beside["more"], asked, asked_beside)]
    for held, by in in_arrow + in_python:
        assert getattr(held.dtype, "storage", by) == by  # pandas 2 has objects
    monkeypatch.setattr(store, "SMALL", 9)
    with ThreadPoolExecutor(8) as threads:  # each found what another had set, and put that back
        assert len([*threads.map(store.make_lake_frame, [table] * 2000)]) == 2000
    assert pd.get_option("mode.string_storage") == before
