"""What is kept of compiled programs: whole or not at all, and for this processor."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tasks.backends import BackendSpec, inductor
from tasks.backends.shared import artefacts
from tasks.devices import processor
from tasks.stranger.proxy import LINKED, StrangerRooms


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(artefacts.FOLDER, str(tmp_path))
    return tmp_path


def test_what_is_kept_is_made_once(folder: Path) -> None:
    made = []

    def make() -> bytes:
        made.append(1)
        return b"code"

    assert [artefacts.load_or_make("k", ("a",), make) for _ in range(2)] == [b"code"] * 2 and len(made) == 1
    artefacts.load_or_make("k", ("b",), make)
    assert len(made) == 2
    assert not [p for p in folder.rglob(".*")]


def test_a_torn_file_is_made_again(folder: Path) -> None:
    artefacts.keep_artefact("k", ("a",), b"code" * 100)
    (path,) = (p for p in folder.rglob("*") if p.is_file())
    for damage in (path.read_bytes()[:-7], b"", path.read_bytes()[:-1] + b"!"):
        path.write_bytes(damage)
        assert artefacts.recall_artefact("k", ("a",)) is None
    assert artefacts.load_or_make("k", ("a",), lambda: b"again") == b"again" == artefacts.recall_artefact("k", ("a",))


def test_a_change_of_the_backends_code_forgets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artefacts.keep_artefact("k", ("a",), b"code")
    monkeypatch.setattr(artefacts.sources, "digest_artefact_sources", lambda: "other")
    assert artefacts.recall_artefact("k", ("a",)) is None


def test_features_tell_processors_of_one_name_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for features in ("sse avx512f", "sse avx512f avx512_fp16"):
        monkeypatch.setattr(processor, "read_processor_entry", {"model name": "Xeon", "flags": features}.get)
        processor.describe_processor.cache_clear()
        found |= {processor.describe_processor(), artefacts.name_inductor_cache(folder)}
    processor.describe_processor.cache_clear()
    assert len(found) == 4


@pytest.mark.parametrize("content", [b"", b"\x7fELF half of it"])
def test_half_a_program_of_inductor_is_deleted_and_made_again(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that is killed at its deadline leaves one among the kept programs; its loader's words are the
    system's."""
    program, tried = tmp_path / "kept.main.so", []
    program.write_bytes(content)
    monkeypatch.setattr(inductor, "_reset_torch_dynamo", lambda: None)

    def compile_() -> str:
        tried.append(program.exists())
        if program.exists():
            ctypes.CDLL(str(program))
        return "made"

    assert inductor.retry_without_half_kept(compile_) == "made" and tried == [True, False]
    with pytest.raises(OSError, match="no such program"):  # what is not there, or is another fault, is as it was
        inductor.retry_without_half_kept(
            lambda: _raise(OSError(f"{tmp_path}/gone.so: file too short: no such program"))
        )


def _raise(error: Exception) -> None:
    raise error


def test_what_is_compiled_without_a_kernel_is_kept_once_for_all_kernels(folder: Path) -> None:
    # Inductor's compiled headers are 150 MB: a copy for each of a hundred kernels filled a disk.
    made = Path(
        StrangerRooms(BackendSpec("torch-cpu", "torch", "cpu")).request("")["variables"]["TORCHINDUCTOR_CACHE_DIR"]
    )
    made.mkdir()
    (made / "headers.gch").write_bytes(bytes(LINKED))
    (made / "small.so").write_bytes(b"code")
    own = Path(
        StrangerRooms(BackendSpec("torch-cpu", "torch", "cpu")).request('{"sources": []}')["variables"][
            "TORCHINDUCTOR_CACHE_DIR"
        ]
    )
    assert (own / "headers.gch").is_symlink() and (own / "headers.gch").stat().st_size == LINKED
    (own / "small.so").write_bytes(b"changed")
    assert (made / "small.so").read_bytes() == b"code"
