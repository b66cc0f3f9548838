"""Packs: what is written comes back bit for bit, and a damaged file is named, never half believed."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import mmap
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.arrays import pack
from tasks.arrays.pack import (
    ALIGN,
    MAGIC,
    ArrayPack,
    PackError,
    StorageError,
    digest_arrays,
    make_spooled_array,
    release_spooled_arrays,
    save_pack,
    spool_arrays,
)
from tasks.model import get_numpy_dtype

DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "complex64",
    "complex128",
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "int4",
    "uint4",
    "int2",
    "uint2",
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ((3, 5), (), (0,), (2, 0, 3), (1,)))
def test_round_trip(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    g = np.random.default_rng(0)
    array = np.asarray(g.integers(0, 2, shape)).astype(get_numpy_dtype(dtype))
    save_pack(tmp_path / "a.pack", {"k": [1]}, [array, array])
    back = ArrayPack(tmp_path / "a.pack")
    assert back.header == {"k": [1]}
    for i in range(2):
        assert (back.array(i).dtype, back.array(i).shape) == (array.dtype, array.shape)
        assert back.array(i).tobytes() == array.tobytes()
        assert not back.array(i).flags.writeable


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16", "float8_e5m2", "int4"))
def test_every_bit_pattern_survives(tmp_path: Path, dtype: str) -> None:
    size = get_numpy_dtype(dtype).itemsize
    raw = np.random.default_rng(1).integers(0, 16 if dtype == "int4" else 256, 4096 * size).astype(np.uint8)
    array = raw.view(get_numpy_dtype(dtype))  # NaN payloads and subnormals among them
    save_pack(tmp_path / "a.pack", {}, [array])
    assert ArrayPack(tmp_path / "a.pack").array(0).tobytes() == array.tobytes()


@pytest.fixture(params=["unnamed", "named"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Arrays of 4 KiB are large; the system has files without names, or none."""
    monkeypatch.setattr(pack, "SPOOLED", 1 << 12)
    monkeypatch.setattr(pack, "MAPPED_AT_ONCE", 1 << 20)
    if request.param == "named":
        monkeypatch.delattr(pack.os, "O_TMPFILE", raising=False)
    return str(request.param)


@pytest.mark.usefixtures("small")
def test_arrays_that_are_made_in_the_file_of_their_pack_are_what_was_put_there(tmp_path: Path) -> None:
    values, path = np.random.default_rng(0).normal(size=(3, 5, 200)), tmp_path / "cases" / "a" / "a.pack"
    with spool_arrays(tmp_path / "cases") as spool:
        made, unused = make_spooled_array((3, 5, 200), "float64"), make_spooled_array((9, 999), "float32")
        small, whole = make_spooled_array((3, 2), "float32"), make_spooled_array((1 << 19,), "float64")
        assert [spool.find(x) is None for x in (made, unused, small, whole)] == [False, False, True, False]
        whole[:] = np.arange(1 << 19)
        for row, value in enumerate(values):
            made[row], small[row] = value, value[0, :2]
            release_spooled_arrays()
        # Wherever an array was made: a run of another farm had it in memory.
        right = hashlib.sha256(b"".join(x.tobytes() for x in (small, values, whole))).hexdigest()
        for _ in range(2):
            assert digest_arrays([small, made, whole]).hexdigest() == right
            digest_arrays([small, made, whole]).update(b"what follows is put into a copy")
        assert digest_arrays([made, small]).hexdigest() != right
        assert digest_arrays([small]).hexdigest() == hashlib.sha256(small.tobytes()).hexdigest()
        written = save_pack(path, {"k": 1}, [small, made, values, whole], spool)
    assert (os.listdir(tmp_path / "cases"), os.listdir(path.parent)) == (["a"], ["a.pack"])
    for back in (ArrayPack(path), ArrayPack(path, written)):
        back.release()
        assert back.header == {"k": 1}
        for i, array in enumerate((small, made, values, np.arange(1 << 19, dtype=np.float64))):
            assert back.array(i).tobytes() == array.tobytes() and not back.array(i).flags.writeable
    with spool_arrays(tmp_path / "cases"):
        make_spooled_array((3, 999), "float64")  # and no pack is written around it
    assert os.listdir(tmp_path / "cases") == ["a"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc counts the descriptors")
@pytest.mark.usefixtures("small")
def test_many_arrays_of_a_file_share_a_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with spool_arrays(tmp_path):
        made = [make_spooled_array((1000,), "float64") for _ in range(400)]  # 3.2 MB in maps of 1 MiB
        assert len(os.listdir("/proc/self/fd")) - before <= 5
        for k, array in enumerate(made):
            array[:] = k
        assert [set(array) for array in made] == [{k} for k in range(400)]


def test_a_process_that_is_killed_leaves_no_file(tmp_path: Path, small: str) -> None:
    def list_asides() -> list[str]:
        return [x for x in os.listdir(tmp_path) if x.startswith(pack.ASIDE)]

    pid = os.fork()
    if not pid:
        with spool_arrays(tmp_path):
            make_spooled_array((1 << 16,), "float64")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list_asides()) == (small == "named")
    with spool_arrays(tmp_path):
        make_spooled_array((1 << 16,), "float64")
        mine = list_asides()
        assert len(mine) == (small == "named")  # the other's is gone
        with spool_arrays(tmp_path):
            make_spooled_array((1 << 16,), "float64")
            assert set(mine) <= set(list_asides())  # and one that is written to stays
    assert not list_asides()


@pytest.mark.parametrize("size", [100, 1 << 18])
def test_a_pack_that_was_being_written_when_its_process_was_killed_goes_with_the_next(
    tmp_path: Path, size: int
) -> None:
    """A small pack is written at once, a large one through a buffer."""
    pid = os.fork()
    if not pid:
        pack.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
        save_pack(tmp_path / "a.pack", {}, [np.zeros(size)])
    os.waitpid(pid, 0)
    assert [x.startswith(pack.ASIDE) for x in os.listdir(tmp_path)] == [True]
    told, tell = os.pipe()
    if not (pid := os.fork()):  # one that is alive, and writes for a while
        pack.os.replace = lambda *names: (os.write(tell, b"x"), signal.pause())
        pack._remove_forgotten_files.cache_clear()
        save_pack(tmp_path / "b.pack", {}, [np.zeros(size)])
    try:
        os.read(told, 1)
        (writes,) = os.listdir(tmp_path)  # what the first has left is gone
        pack._remove_forgotten_files.cache_clear()
        save_pack(tmp_path / "c.pack", {}, [np.zeros(size)])
        assert sorted(os.listdir(tmp_path)) == [writes, "c.pack"]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(("mine", "others"), [("gpu", "gpu-1"), ("gpu-1", "gpu"), ("gpu", "gpu-1-2")])
def test_what_another_machine_is_writing_stays(
    tmp_path: Path, mine: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file system whose locks do not reach other machines."""
    paths = []
    for host in (mine, others):
        monkeypatch.setattr(pack, "_ASIDE_HERE", f"{pack.ASIDE}{host}")
        paths.append(Path(pack._name_file_aside(str(tmp_path))))
        paths[-1].write_text("x")
    monkeypatch.setattr(pack, "_ASIDE_HERE", f"{pack.ASIDE}{mine}")
    save_pack(tmp_path / "a.pack", {}, [np.zeros(3)])
    assert sorted(os.listdir(tmp_path)) == [paths[1].name, "a.pack"]


def test_a_folder_that_may_be_written_but_not_listed_takes_a_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", folder)

    monkeypatch.setattr(pack.os, "listdir", refuse)  # whoever is root may list any
    save_pack(tmp_path / "a.pack", {}, [np.arange(3)])
    assert ArrayPack(tmp_path / "a.pack").array(0).tolist() == [0, 1, 2]


@pytest.mark.usefixtures("small")
def test_what_a_file_is_refused_with_is_no_catalogs_to_forget(tmp_path: Path) -> None:
    """A catalog takes what is raised while it makes a sample for the sample's."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with spool_arrays(tmp_path) as around, spool_arrays(tmp_path) as spool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # a real EFBIG from the kernel
        try:
            with pytest.raises(StorageError):
                make_spooled_array((1 << 20,), "float64")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with pytest.raises(StorageError, match="File too large"):
            save_pack(tmp_path / "a.pack", {}, [np.zeros(3)], spool)
    assert around.error is not None and not os.listdir(tmp_path)


def test_layouts(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    arrays: list[np.ndarray] = [
        base.T,
        base[::2, ::-1],
        np.broadcast_to(np.float32(1), (3, 3)),
        base.astype(">i4"),
        np.asfortranarray(base),
    ]
    save_pack(tmp_path / "a.pack", {}, arrays)
    back = ArrayPack(tmp_path / "a.pack")
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(back.array(i), array)
        assert back.array(i).dtype.isnative


def test_strings(tmp_path: Path) -> None:
    arrays: list[np.ndarray] = [
        np.array([["a", "é\n"], ["", "\ud800"]], dtype=object),
        np.array("alone", dtype=object),
        np.array([], dtype=object),
        np.array(["x", "yz"]),
        np.array([b"x", b"yz"]),
    ]
    save_pack(tmp_path / "a.pack", {}, arrays)
    back = ArrayPack(tmp_path / "a.pack")
    for i, array in enumerate(arrays):
        assert (back.array(i).dtype, back.array(i).shape) == (np.dtype(object), array.shape)
        assert back.array(i).ravel().tolist() == [
            x.decode() if isinstance(x, bytes) else x for x in array.ravel().tolist()
        ]


def test_arrays_are_aligned_and_large_files_are_mapped(tmp_path: Path) -> None:
    arrays: list[np.ndarray] = [np.ones(3, np.int8), np.arange(1 << 18, dtype=np.float64), np.ones(5, np.complex128)]
    save_pack(tmp_path / "a.pack", {}, arrays)
    back = ArrayPack(tmp_path / "a.pack")
    assert isinstance(back._bytes, mmap.mmap)
    for i, array in enumerate(arrays):
        assert back.array(i).ctypes.data % ALIGN == 0
        np.testing.assert_array_equal(back.array(i), array)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
        max_leaves=8,
    )
)
def test_any_header(tmp_path_factory: pytest.TempPathFactory, header: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "header.pack"
    save_pack(path, {"h": header}, [np.arange(3)])
    assert ArrayPack(path).header == {"h": header}
    np.testing.assert_array_equal(ArrayPack(path).array(0), np.arange(3))


def test_no_array_at_all(tmp_path: Path) -> None:
    save_pack(tmp_path / "a.pack", {"only": "header"}, [])
    assert ArrayPack(tmp_path / "a.pack").header == {"only": "header"}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    save_pack(tmp_path / "a.pack", {"k": 1}, [np.arange(100.0), np.array(["x"], dtype=object)])
    return tmp_path / "a.pack"


def test_truncated_anywhere(good: Path) -> None:
    whole = good.read_bytes()
    for length in [*range(0, 64), len(whole) // 2, len(whole) - 65, len(whole) - 1]:
        good.write_bytes(whole[:length])
        with pytest.raises(PackError, match=r"a\.pack"):
            ArrayPack(good)
    good.write_bytes(whole + b"x")
    with pytest.raises(PackError, match=r"a\.pack"):
        ArrayPack(good)


@pytest.mark.parametrize("content", (b"PAR1" * 100, b"\0" * 100, MAGIC[::-1] + b"\0" * 100, pickle.dumps([1] * 100)))
def test_another_kind_of_file(good: Path, content: bytes) -> None:
    good.write_bytes(content)
    with pytest.raises(PackError, match=r"a\.pack.*magic"):
        ArrayPack(good)


@pytest.mark.parametrize(
    "header",
    (
        b"{",
        b"[1]",
        b"null",
        b'"x"',
        b"{}",
        b'{"arrays": [], "header": {}}',
        b"\xff\xff",
        b'{"arrays": 3, "header": {}, "size": 9}',
        b'{"arrays": [], "header": 1, "size": 9}',
    ),
)
def test_damaged_header(good: Path, header: bytes) -> None:
    good.write_bytes(MAGIC + len(header).to_bytes(8, "little") + header)
    with pytest.raises(PackError, match=r"a\.pack.*damaged"):
        ArrayPack(good)


def test_a_header_that_claims_to_be_huge(good: Path) -> None:
    good.write_bytes(MAGIC + b"\xff" * 8 + good.read_bytes()[16:])
    with pytest.raises(PackError, match=r"a\.pack"):
        ArrayPack(good)


@pytest.mark.parametrize(
    "entry",
    (
        ["float32", [3], 0, 999999],
        ["nonsense", [3], 0, 12],
        ["float32", [7], 0, 12],
        [1],
        5,
        ["float32", [3], "0", 12],
        ["str", [1], 0, 8],
    ),
)
def test_damaged_index(good: Path, entry: Any) -> None:
    whole = good.read_bytes()
    length = int.from_bytes(whole[8:16], "little")
    header = json.loads(whole[16 : 16 + length])
    header["arrays"][0] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    good.write_bytes(whole[:16] + text.ljust(length) + whole[16 + length :])
    with pytest.raises(PackError, match=r"a\.pack"):
        ArrayPack(good).array(0)
    assert ArrayPack(good).array(1).tolist() == ["x"]


def test_nothing_that_is_stored_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Bomb:
        def __reduce__(self) -> Any:
            return (marker.write_text, ("x",))

        def __str__(self) -> str:
            return "harmless"

    save_pack(tmp_path / "a.pack", {}, [np.array([Bomb()], dtype=object)])
    assert ArrayPack(tmp_path / "a.pack").array(0).tolist() == ["harmless"]
    assert not marker.exists()
    with pytest.raises(TypeError):
        save_pack(tmp_path / "b.pack", {"x": Bomb()}, [])
    assert not (tmp_path / "b.pack").exists()


def test_a_failed_write_leaves_what_was_there(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = good.read_bytes()

    def full(source: str, target: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pack.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save_pack(good, {"k": 2}, [np.zeros(10)])
    with pytest.raises(OSError, match="No space"):
        save_pack(good.parent / "new.pack", {}, [np.zeros(10)])
    assert good.read_bytes() == before
    assert os.listdir(good.parent) == ["a.pack"]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Errors of a file system that says when a descriptor is closed, and once, that it had no room (NFS, FUSE)."""
    errors, close = list[int](), os.close

    def refuse() -> None:
        if errors:
            raise OSError(errors[0], os.strerror(errors.pop()))

    class Late(io.FileIO):
        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open:
                refuse()

    def open_late(file: Any, mode: str = "r", buffering: int = -1) -> Any:
        raw = Late(file, mode.replace("b", ""))
        return io.BufferedWriter(raw, buffering) if buffering else raw

    monkeypatch.setattr(pack, "open", open_late, raising=False)
    monkeypatch.setattr(pack.os, "close", lambda fd: (close(fd), refuse()))
    return errors


@pytest.mark.parametrize("size", [100, 1 << 18])
def test_a_file_system_says_when_a_file_is_closed_that_it_is_full(good: Path, size: int, late: list[int]) -> None:
    before = good.read_bytes()
    late.append(errno.ENOSPC)
    with pytest.raises(StorageError, match="No space"):
        save_pack(good, {}, [np.zeros(size)])
    assert not late and good.read_bytes() == before and os.listdir(good.parent) == ["a.pack"]


@pytest.mark.usefixtures("small")
def test_it_says_so_as_well_of_a_file_that_arrays_were_made_in(good: Path, late: list[int]) -> None:
    before = good.read_bytes()
    with spool_arrays(good.parent) as spool:
        made = make_spooled_array((1 << 16,), "float64")
        late.append(errno.ENOSPC)
        with pytest.raises(StorageError, match="No space"):
            save_pack(good, {}, [made], spool)
    assert not late and good.read_bytes() == before and os.listdir(good.parent) == ["a.pack"]


def test_the_disk_is_full_while_writing(good: Path) -> None:
    before = good.read_bytes()
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a real EFBIG from the kernel
    try:
        with pytest.raises(OSError):
            save_pack(good, {"k": 2}, [np.zeros(10000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert good.read_bytes() == before
    assert os.listdir(good.parent) == ["a.pack"]


def test_a_reader_keeps_its_arrays_when_the_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    save_pack(path, {}, [np.arange(1 << 18, dtype=np.float64)])
    old = ArrayPack(path)
    save_pack(path, {}, [np.zeros(3)])
    np.testing.assert_array_equal(old.array(0), np.arange(1 << 18))
    np.testing.assert_array_equal(ArrayPack(path).array(0), np.zeros(3))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ArrayPack(tmp_path / "none.pack")


def test_what_save_returns_says_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "a.pack"
    written = save_pack(path, {"a": [1, "b", None, {"c": 0.1}]}, [np.arange(3), np.zeros((2, 0), np.float32)])
    at_hand, read = ArrayPack(path, written), ArrayPack(path)
    assert at_hand.header == read.header
    for i in range(2):
        assert at_hand.array(i).dtype == read.array(i).dtype and at_hand.array(i).tobytes() == read.array(i).tobytes()
