"""Known failures as they are written: the entry that covers a row of a lake, and a list with one more."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import yaml

from farm.plan.config import QUICK, load_known_failures
from farm.plan.config_schema import ConfigError
from farm.plan.known_failure import KnownFailure
from tasks.model import Refusal, Status, label_op
from tasks.model.errors import mask_error_details, shorten_error_gist
from tasks.model.failing import describe_failure_manner

#: Characters of an error that an entry quotes at most.
QUOTED = 100


def write_known_entry(
    row: Mapping[str, Any], alike: Sequence[Mapping[str, Any]], told: Mapping[str, Any]
) -> dict[str, Any]:
    """What an entry says that covers a row and those of its op, dtype, backend and check that failed ``alike`` (the row
    among them). told: what a person adds: reason, owner, …; of a case made small also reduced and flags, and then any
    op is meant.
    """
    how, causes = describe_failure_manner(row), {line.get("cause") or "" for line in alike}
    said = {
        "op": f"{row['op'].partition(':')[0]}:*"
        if told.get("reduced")
        else glob.escape(label_op(row["op"], row["variant"])),
        **{
            name: glob.escape(str(row[name])) for name in ("dtype", "backend", "check", "distribution") if row.get(name)
        },
        **{
            name: glob.escape(text)
            for name in ("status", "kind", "stage", "error_type")
            if (text := getattr(how, name))
        },
        "error": quote_known_error([line.get("error") or "" for line in alike]) if how.words else "",
        "cause": glob.escape(causes.pop()) if len(causes) == 1 else "",
        **told,
    }
    return {name: value for name, value in said.items() if value}


def quote_known_error(errors: Sequence[str]) -> str:
    """The beginning of an error, as far as others that are alike have it too; "" where nothing tells."""
    said, others = shorten_error_gist(errors[0]).split(), [mask_error_details(error) for error in errors]
    while said:
        text = " ".join(said)
        plain, last = mask_error_details(text), mask_error_details(said[-1])
        if len(text) <= QUOTED and any(map(str.isalpha, last)) and all(plain in other for other in others):
            return text
        said.pop()
    return ""


@dataclass(frozen=True)
class EntryPlace:
    """Where an entry stands."""

    file: Path
    node: yaml.MappingNode

    def __str__(self) -> str:
        return f"{self.file}:{self.node.start_mark.line + 1}"


def find_known_list(config: Path, backend: str) -> Path | None:
    """The list to which a known failure of a backend is added, of those that a config or one that it includes names:
    the backend's own file in a folder or among those that a glob matches, else the last of the named files. None where
    the config is not there (any more) or names none."""
    if not config.is_file():
        return None
    root, found = yaml.compose(config.read_text(), Loader=QUICK), None
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == "include":
            found = next(filter(None, (find_known_list(config.parent / x.value, backend) for x in value.value)), found)
        if key.value == "known_failures":
            nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
            named = [config.parent / x.value for x in nodes if isinstance(x, yaml.ScalarNode)]
            folders = [x for x in named if x.is_dir()] + [x.parent for x in named if glob.has_magic(x.name)]
            files = [x for x in named if not (x.is_dir() or glob.has_magic(str(x)))]
            found = next((x / f"{backend}.yaml" for x in folders), files[-1] if files else found)
    return found


def find_known_places(path: Path) -> dict[KnownFailure, EntryPlace]:
    """Where the entries stand of a list, of all lists in a folder, or of a config and the files that it names."""
    if path.is_dir():
        return {k: v for one in sorted(path.glob("*.yaml")) for k, v in find_known_places(one).items()}
    root = yaml.compose(path.read_text(), Loader=QUICK)
    if not isinstance(root, yaml.MappingNode):
        return {} if root is None else _read_known_entries_of(path, root)
    found: dict[KnownFailure, EntryPlace] = {}
    for key, value in root.value:
        if key.value == "known_failures":
            found |= _read_known_entries_of(path, value)
        if key.value == "include":
            found |= {k: v for inner in value.value for k, v in find_known_places(path.parent / inner.value).items()}
    return found


def _read_known_entries_of(path: Path, node: yaml.Node) -> dict[KnownFailure, EntryPlace]:
    """Those of an item of a config or of a list: entries, and names of files."""
    if isinstance(node, yaml.ScalarNode):
        return {
            k: v
            for one in sorted(glob.glob(str(path.parent / node.value)))
            for k, v in find_known_places(Path(one)).items()
        }
    if isinstance(node, yaml.SequenceNode):
        return {k: v for one in node.value for k, v in _read_known_entries_of(path, one).items()}
    entry = KnownFailure.model_validate(yaml.SafeLoader("").construct_document(node))
    assert isinstance(node, yaml.MappingNode), "an entry is a mapping"
    return {entry: EntryPlace(path, node)}


def check_known_entry(entry: Mapping[str, Any]) -> KnownFailure:
    """Raises ConfigError for what is none."""
    try:
        return KnownFailure.model_validate(entry)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key, said = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        if key == "status" and entry.get("status") in {status.value for status in Status}:
            said = f"a case that is {entry['status']} has not failed"
        raise ConfigError(f"no known failure: {key}: {said}") from None


def append_known_entry(file: Path, known: KnownFailure) -> None:
    """Write one more entry to the end of a list, which is made if it is not there; what stands in it stays as it is.

    Raises ConfigError.
    """
    entry = yaml.safe_dump([known.model_dump(mode="json")], sort_keys=False, allow_unicode=True, width=120)
    try:
        before = file.read_text() if file.exists() else ""
        there = load_known_failures(file) if file.exists() else []
        if before and not before.endswith("\n"):
            before += "\n"
        after = re.sub(r"^\[\s*\]\s*$", "", before, flags=re.MULTILINE) + entry
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace_known_file(
            file, after, [*there, known], f"not a list of one entry per item; add this by hand:\n{entry}"
        )
    except OSError as error:
        raise Refusal(f"{file}: cannot be written ({error.strerror}); choose another with --file") from None


def add_seen_to_known(file: Path, seen: Mapping[EntryPlace, tuple[KnownFailure, Sequence[str]]]) -> None:
    """Add backends to the key ``seen`` of entries of a file, which have one; all else in it stays as it is. Raises
    ConfigError."""
    text, there = file.read_text(), load_known_failures(file)
    for place, (entry, backends) in sorted(seen.items(), key=lambda one: -one[0].node.start_mark.line):
        value = next(value for key, value in place.node.value if key.value == "seen")
        written = yaml.safe_dump([*entry.seen, *backends], default_flow_style=True, width=10_000).strip()
        text = text[: value.start_mark.index] + written + text[value.end_mark.index :]
        changed = entry.model_copy(update={"seen": (*entry.seen, *backends)})
        there = [changed if known == entry else known for known in there]
    try:
        _replace_known_file(file, text, there, "cannot be edited; add the backends to seen by hand")
    except OSError as error:
        raise Refusal(f"{file}: cannot be written ({error.strerror})") from None


def _replace_known_file(file: Path, text: str, expected: Sequence[KnownFailure], otherwise: str) -> None:
    """Write a file of known failures anew, if that holds the expected ones. Raises ConfigError, OSError."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.yaml")
    try:
        aside.write_text(text)
        if load_known_failures(aside) != list(expected):
            raise ConfigError(f"{file}: {otherwise}")
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)
