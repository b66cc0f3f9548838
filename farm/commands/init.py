"""The command that writes a working example project: farm init DIR"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from farm.commandline import refuse_in_a_line
from farm.options.init import make_parser
from tasks.model import Refusal

#: Exit codes.
OK, BAD_INPUT = 0, 2
#: The project: examples/own_kernels of a checkout, share/validation-farm/own_kernels of an installed farm.
PROJECT = ("farm.yaml", "kernels.py", "rms_norm_reference.py", "test_kernels.py")


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 written, 2 a directory that cannot be made or is not empty."""
    folder = Path(make_parser().parse_args(argv).directory)
    try:
        copy_example_project(folder)
    except OSError as error:
        raise Refusal(f"{error.filename or folder}: {error.strerror or error}; name a new folder") from error
    print(f"{folder}: {', '.join(PROJECT)}; run\n  farm run {folder}/farm.yaml\n  pytest {folder}")
    return OK


def copy_example_project(folder: Path) -> None:
    """Copy the project. Raises OSError, also for a directory that has anything in it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(p.name for p in folder.iterdir())
    if found:
        raise OSError(f"the directory is not empty ({', '.join(found[:3])}{' …' if len(found) > 3 else ''})")
    source = _find_project_files()
    for name in PROJECT:
        (folder / name).write_bytes((source / name).read_bytes())


def _find_project_files() -> Path:
    """Where the project's files are. Raises OSError where the installation lacks them."""
    checkout = Path(__file__).resolve().parents[2] / "examples" / "own_kernels"
    if checkout.is_dir():
        return checkout
    for file in metadata.files("validation-farm") or ():
        if file.parts[-2:] == ("own_kernels", PROJECT[0]):
            return Path(str(file.locate())).resolve().parent
    raise OSError("this installation of the farm has no example project: reinstall it")
