"""Minimal cases beside the rows of a run: what is known of each, its pack, the folder that shows it, the text of an issue."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from farm.lake.store import AnyLake, Lake, LakeError, open_lake, run_ids

#: What a word that stands for a way of computing has not: a list of sizes is no such word.
_NUMBER = re.compile(r"\d")
#: The end of a sentence in a masked error.
_SENTENCE = re.compile(r"(?<=[a-z]{3})\.\s")
#: The folder of a run that they lie in; dataset readers leave it alone for its underscore.
FOLDER = "_minimal"
#: Files of a minimal case: what is known of it, and the case itself.
RECORD, PACK = "minimal.json", "case.pack"


def make_finding_id(finding: Mapping[str, Any]) -> str:
    """Equal for minimal cases of one defect: backend, ops, status, kind, the first sentence of the masked error,
    attributes that are not the default (which of its words one has, but not which number) and modes."""
    names = ("backend", "ops", "status", "kind", "words", "modes", "after")
    given = [
        f"{k}={v}" if isinstance(v, (str, bool)) and not _NUMBER.search(str(v)) else k
        for k, v in finding.get("attributes", {}).items()
    ]
    told = [
        *(_cut_first_sentence(finding.get(name)) if name == "words" else finding.get(name) for name in names),
        sorted(given),
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]


def _cut_first_sentence(words: str | None) -> str | None:
    """The first sentence of an error. The rest prints parts of the graph, which differ from case to case."""
    return words and _SENTENCE.split(words, maxsplit=1)[0]


def place_minimal_case(lake: Lake, run_id: str, case_id: str, backend: str) -> str:
    """The folder of a row's minimal case."""
    digest = hashlib.sha256(f"{case_id}:{backend}".encode()).hexdigest()[:12]
    return lake.path(run_id, f"{FOLDER}/{digest}")


def write_minimal_case(results: AnyLake, record: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
    """Keep a minimal case, in place of an older one of the same row: its record last, which is what readers look for.
    Returns its folder. Raises LakeError."""
    lake = open_lake(results)
    folder = place_minimal_case(lake, record["run_id"], record["case_id"], record["backend"])
    content = {**files, RECORD: json.dumps(record, indent=1).encode()}
    try:
        for name, data in content.items():
            inside, _, last = f"{folder}/{name}".rpartition("/")  # a package of the user's has a folder of its own
            if lake.is_local:
                lake.filesystem.create_dir(inside, recursive=True)
            aside = f"{inside}/.{last}" if lake.is_local else f"{folder}/{name}"
            with lake.filesystem.open_output_stream(aside) as file:
                file.write(data)
            if lake.is_local:
                lake.filesystem.move(aside, f"{folder}/{name}")
    except (pa.ArrowException, OSError) as error:
        raise LakeError(
            f"{folder}: the minimal case cannot be kept ({error}); farm minimise --out DIR writes it elsewhere"
        ) from None
    return folder


def read_minimal_record(results: AnyLake, run_id: str, case_id: str, backend: str) -> dict[str, Any]:
    """The record of a row's minimal case; {} if it has none. Raises LakeError."""
    lake = open_lake(results)
    try:
        with lake.filesystem.open_input_stream(
            f"{place_minimal_case(lake, run_id, case_id, backend)}/{RECORD}"
        ) as file:
            record = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def read_minimal_cases(results: AnyLake, runs: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The records of all minimal cases of some runs (default: of all), the oldest run's first; each with its
    ``folder``. One that cannot be read is left out. Raises LakeError for a lake that cannot be."""
    lake = open_lake(results)
    found = []
    for run_id in run_ids(lake) if runs is None else runs:
        selector = pafs.FileSelector(lake.path(run_id, FOLDER), allow_not_found=True)
        for info in sorted(lake.filesystem.get_file_info(selector), key=lambda info: info.path):
            try:
                with lake.filesystem.open_input_stream(f"{info.path}/{RECORD}") as file:
                    record = json.loads(file.read())
            except (OSError, ValueError):
                continue
            if isinstance(record, dict) and {"run_id", "case_id", "backend", "finding"} <= record.keys():
                # By today's definition, whichever wrote it.
                finding = {**record["finding"], "id": make_finding_id(record["finding"])}
                found.append({**record, "finding": finding, "folder": info.path})
    return found


def read_minimal_file(results: AnyLake, record: Mapping[str, Any], name: str) -> bytes | None:
    """The content of a file of a minimal case; None if there is no such file."""
    lake = open_lake(results)
    try:
        with lake.filesystem.open_input_stream(f"{record['folder']}/{name}") as stream:
            return bytes(stream.read())
    except OSError:
        return None
