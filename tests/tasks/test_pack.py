"""Packs: what is written comes back bit for bit, and a damaged file is named, never half believed."""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import pickle
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
    digest_array_bytes,
    make_spooled_array,
    put_digested_row,
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


def test_arrays_that_are_made_in_the_file_of_their_pack_are_what_was_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "SPOOLED", 1 << 12)
    values, path = np.random.default_rng(0).normal(size=(3, 5, 200)), tmp_path / "cases" / "a.pack"
    with spool_arrays(path) as spool:
        made, unused = make_spooled_array((3, 5, 200), "float64"), make_spooled_array((9, 999), "float32")
        small = make_spooled_array((3, 2), "float32")
        assert [spool.find(x) is None for x in (made, unused, small)] == [False, False, True]
        for row, value in enumerate(values):
            put_digested_row(made, row, value)
            put_digested_row(small, row, value[0, :2])
            release_spooled_arrays()
        rows = b"".join(hashlib.sha256(value.tobytes()).digest() for value in values)
        assert (digest_array_bytes(made), digest_array_bytes(small)) == (rows, small.tobytes())
        written = save_pack(path, {"k": 1}, [small, made, values], spool)
    assert os.listdir(path.parent) == ["a.pack"]
    for back in (ArrayPack(path), ArrayPack(path, written)):
        back.release()
        assert back.header == {"k": 1}
        for i, array in enumerate((small, made, values)):
            assert back.array(i).tobytes() == array.tobytes() and not back.array(i).flags.writeable
    with spool_arrays(path):
        make_spooled_array((3, 999), "float64")  # and no pack is written around it
    assert os.listdir(path.parent) == ["a.pack"]


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
