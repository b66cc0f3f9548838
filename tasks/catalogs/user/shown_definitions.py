"""What the process that runs a kernel is shown of the user's definitions: nothing of references that lie in files of their own."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks import user_sources
from tasks.catalogs.user_definitions import USER, parse_definitions
from tasks.packages import list_library_folders

#: The farm's own code, of which a reference may be.
_TASKS = Path(__file__).resolve().parents[2]


def show_definitions_to_kernel(text: str, op: str, whole: bool = False) -> str:
    """The definitions of one op ("user:name") alone, without its reference where that lies in another file than the
    kernel, unless they are asked for ``whole``. Of an op that a module declares all modules: which one it is, only
    importing them tells."""
    told = {
        k: x
        for k, x in _put_submission_in_definitions(parse_definitions(text)).items()
        if k in ("deadline_s", "sources", "kernel", "submissions")
    }
    catalog, _, name = op.partition(":")
    if not told or catalog != USER:
        return text
    own = [(s, k) for s in told.get("sources", []) for k in s["kernels"] if k.get("name") == name]
    if own:
        without = _hide_kernel if whole else _hide_reference
        told["sources"] = [{**s, "modules": [], "kernels": [without(s, k)]} for s, k in own]
        if whole and all(_is_callable_apart(s, k) for s, k in own):
            told.pop("kernel", None)
    else:
        told["sources"] = [{**s, "kernels": []} for s in told.get("sources", [])]
    return json.dumps(told)


def list_files_hidden_from_kernel(text: str) -> list[str]:
    """The user's files of references that no kernel needs, and what Python has compiled of them: what is to be hidden
    from the process that runs kernels."""
    told = _put_submission_in_definitions(parse_definitions(text))
    references, needed, asked, kernels = set[Path](), set[Path](), set[Path](), set[Path]()
    for source in told.get("sources", []):
        for module in source["modules"]:
            needed |= _list_files_of_definition(source, module)
            kernels |= _list_files_of_definition(source, module)
        for kernel in source["kernels"]:
            needed |= _list_needed_files(source, kernel.get("kernel")) | _list_needed_files(
                source, kernel.get("backward")
            )
            references |= _list_files_of_definition(source, kernel.get("reference"))
            asked |= _find_file_of_definition(source, kernel.get("reference"))
            kernels |= _find_file_of_definition(source, kernel.get("kernel")) | _find_file_of_definition(
                source, kernel.get("backward")
            )
    # A kernel that imports the file of its reference is not given it for that.
    own = [
        x
        for x in (references - needed) | (asked - kernels)
        if not any(x.is_relative_to(folder) for folder in (*list_library_folders(), _TASKS))
    ]
    compiled = [found for x in own for found in x.parent.glob(f"__pycache__/{glob.escape(x.stem)}.*")]
    return sorted(map(str, (*own, *compiled)))


def _put_submission_in_definitions(told: dict[str, Any]) -> dict[str, Any]:
    """Definitions in which each kernel is named as a function of the submission's file, where there is one."""
    if not (file := told.get("kernel")):
        return told

    def name(kernel: dict[str, Any]) -> dict[str, Any]:
        return {**kernel, "kernel": f"{file}:{kernel['kernel'].rpartition(':')[2]}"}

    return told | {"sources": [{**s, "kernels": [name(k) for k in s["kernels"]]} for s in told.get("sources", [])]}


def _hide_reference(source: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict[str, Any]:
    """A declaration whose reference is its kernel, if the reference is in another file: nobody asks for it there."""
    return (
        {**kernel, "reference": kernel["kernel"], "reference_framework": kernel.get("framework", "torch")}
        if _is_reference_apart(source, kernel)
        else dict(kernel)
    )


def _hide_kernel(source: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict[str, Any]:
    """A declaration whose kernel is its reference, if that is a function of another file: where a baseline runs,
    importing the kernel would let it change what it is timed against."""
    return {**kernel, "kernel": kernel["reference"]} if _is_callable_apart(source, kernel) else dict(kernel)


def _is_reference_apart(source: Mapping[str, Any], kernel: Mapping[str, Any]) -> bool:
    """Whether the reference is in another file than the kernel."""
    given = kernel.get("reference")
    return isinstance(given, str) and not _find_file_of_definition(source, given) & _find_file_of_definition(
        source, kernel.get("kernel")
    )


def _is_callable_apart(source: Mapping[str, Any], kernel: Mapping[str, Any]) -> bool:
    """Whether it is a function there, and no script."""
    return _is_reference_apart(source, kernel) and ":" in kernel["reference"]


def _list_files_of_definition(source: Mapping[str, Any], given: Any) -> set[Path]:
    """The files that something named is made of."""
    return {
        x
        for file in _find_file_of_definition(source, given)
        for x in user_sources.list_imported_files(file, source["root"])
    }


def _list_needed_files(source: Mapping[str, Any], given: Any) -> set[Path]:
    """The files that a kernel is made of and is shown for that, be a reference made of them too. In its task's folder
    these are a submission's only as far as the task declares them for both: else it need only name what is hidden."""
    found, root = set[Path](), source["root"]
    for file in _find_file_of_definition(source, given):
        found.update(user_sources.list_imported_files(file, root, late=False))
        declared = {x / user_sources.TASK_TYPES for x in user_sources.list_last_folders(file, root)}
        for x in declared.intersection(user_sources.list_imported_files(file, root)):
            found.update(user_sources.list_imported_files(x, root))
    return found


def _find_file_of_definition(source: Mapping[str, Any], given: Any) -> set[Path]:
    """The file that something named is in; none where there is none."""
    if not isinstance(given, str) or not given:
        return set()
    name = given if given.endswith(".py") else given.rpartition(":")[0] or given
    file = user_sources.locate_module_source(name, source["root"])
    return {file.resolve()} if file else set()
