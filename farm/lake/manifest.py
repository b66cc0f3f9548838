"""The signed manifest of a run: digests of its files, so that others can check what was published."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from farm.lake import beside
from farm.lake.store import RECORD, AnyLake, Lake, LakeError, list_lake_parts, open_lake, run_ids
from farm.version import farm_version
from tasks.model import Refusal
from tasks.nearest import suggest_nearest_names

#: Beside the parts of a run; dataset readers leave it alone for its underscore.
MANIFEST = "_manifest.json"
#: Bytes that are read at a time.
_CHUNK = 1 << 20


class NoSignature(Refusal):
    """A manifest or a key that is missing or cannot be used."""


@dataclass(frozen=True)
class CheckedManifest:
    """changed, missing, added: files of the run that are not as the manifest says, are gone, or are not in it; key: the
    public key that signed, in hex; valid: whether the signature is that of the manifest; trusted: whether the key is
    the one asked for, None if none was; files: how many it lists."""

    changed: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    key: str
    valid: bool
    trusted: bool | None
    files: int

    @property
    def good(self) -> bool:
        return self.valid and self.trusted is not False and not (self.changed or self.missing or self.added)


def sign_run(results: AnyLake, run_id: str, key: Path, replace: bool = False) -> dict[str, Any]:
    """Write a run's manifest, signed (ed25519) with a private key in PEM, and return it. replace: another key's as
    well. Raises LakeError, NoSignature."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise NoSignature(
            f"{key}: no private key in PEM without a password ({error}); farm verify sign --new-key {'FILE' if key.exists() else key} makes one"
        ) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise NoSignature(f"{key}: a key of another kind; ed25519 is needed: farm verify sign --new-key FILE makes one")
    lake = open_lake(results)
    manifest = {
        "run_id": run_id,
        "farm_version": farm_version(),
        "signed_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "files": _digest_run_files(lake, run_id),
    }
    signed = {
        "manifest": manifest,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "signature": private.sign(_encode_manifest(manifest)).hex(),
    }
    path = lake.path(run_id, MANIFEST)
    if not replace and (before := _read_manifest_key(lake, path)) not in (None, signed["public_key"]):
        raise NoSignature(f"run {run_id} is signed by {before}, another key; --replace puts yours in its place")
    try:
        with lake.filesystem.open_output_stream(path) as file:
            file.write(json.dumps(signed, indent=1).encode())
    except (pa.ArrowException, OSError) as error:
        raise LakeError(f"{path}: cannot be written ({error})") from None
    return signed


def _read_manifest_key(lake: Lake, path: str) -> str | None:
    """The public key that a manifest names; a sentence if it is damaged, None if there is no manifest. Raises
    LakeError."""
    try:
        with lake.filesystem.open_input_stream(path) as file:
            return str(json.loads(file.read())["public_key"])
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise LakeError(f"{path}: cannot be read ({error})") from None
    except (ValueError, KeyError, TypeError):
        return "a manifest that is damaged"


def has_manifest(results: AnyLake, run_id: str) -> bool:
    """Whether a run has a manifest, valid or not."""
    lake = open_lake(results)
    return bool(lake.filesystem.get_file_info(lake.path(run_id, MANIFEST)).type != pafs.FileType.NotFound)


def check_manifest(results: AnyLake, run_id: str, key: Path | None = None) -> CheckedManifest:
    """Check a run against its manifest. key: the public key (PEM) that must have signed it. Raises LakeError,
    NoSignature."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    lake = open_lake(results)
    path = lake.path(run_id, MANIFEST)
    there = _digest_run_files(lake, run_id)
    try:
        with lake.filesystem.open_input_stream(path) as file:
            signed = json.loads(file.read())
        manifest, told = signed["manifest"], signed["public_key"]
        files = {str(name): str(digest) for name, digest in manifest["files"].items()}
        public, signature = Ed25519PublicKey.from_public_bytes(bytes.fromhex(told)), bytes.fromhex(signed["signature"])
    except FileNotFoundError:
        raise NoSignature(
            f"run {run_id} has no manifest; farm verify sign --run {run_id} --key FILE writes one"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoSignature(
            f"{path}: the manifest is damaged ({type(error).__name__}: {error}); ask who signed the run for it again"
        ) from None
    trusted = None
    if key is not None:
        try:
            wanted = load_pem_public_key(key.read_bytes())
        except (OSError, ValueError) as error:
            raise NoSignature(f"{key}: no public key in PEM ({error})") from None
        trusted = isinstance(wanted, Ed25519PublicKey) and wanted.public_bytes_raw() == public.public_bytes_raw()
    try:
        public.verify(signature, _encode_manifest(manifest))
        valid = manifest.get("run_id") == run_id
    except InvalidSignature:
        valid = False
    changed = tuple(sorted(name for name in files if name in there and there[name] != files[name]))
    missing, added = (tuple(sorted(a - b)) for a, b in ((files.keys(), there.keys()), (there.keys(), files.keys())))
    return CheckedManifest(changed, missing, added, told, valid, trusted, len(files))


def write_manifest_key(path: Path) -> Path:
    """Write a new private key to a file that is not there yet, readable by its owner alone, and its public key beside
    it, whose path is returned. Raises NoSignature."""
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = Ed25519PrivateKey.generate(), path.with_name(f"{path.stem}.pub{path.suffix}")
    try:
        if public.exists():
            raise FileExistsError(None, f"{public} exists")
        path.touch(mode=0o600, exist_ok=False)
        path.write_bytes(private.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()))
        public.write_bytes(private.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo))
    except OSError as error:
        raise NoSignature(f"{path}: no key can be written there ({error.strerror}); choose another file") from None
    return public


def _encode_manifest(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _digest_run_files(lake: Lake, run_id: str) -> dict[str, str]:
    """SHA-256 of a run's parts, tables beside them and record, by name. Raises LakeError."""
    if run_id not in (known := run_ids(lake)):
        raise LakeError(f"no run {run_id!r} in {lake.uri!r}{suggest_nearest_names(run_id, known)}")
    found = {}
    for path in [
        *list_lake_parts(lake, run_id),
        *(path for table in beside.TABLES for path in list_lake_parts(lake, run_id, table.name)),
        lake.path(run_id, RECORD),
    ]:
        digest = hashlib.sha256()
        try:
            with lake.filesystem.open_input_stream(path) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
        except FileNotFoundError:
            continue
        except (pa.ArrowException, OSError) as error:
            raise LakeError(f"{path}: cannot be read ({error})") from None
        found[path.rpartition("/")[2]] = digest.hexdigest()
    return found
