"""The pictures of a report, a site and a terminal: python docs/_screenshots.py RESULTS [FOLDER]

RESULTS is a lake with a run or more. Writes report.png and site.png as Chromium shows them, and terminal.svg as a terminal of
100 columns does, to FOLDER (docs/). Nothing in them is drawn by hand, so they are what the farm shows today.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from farm import lake

HERE = Path(__file__).resolve().parent
#: Pixels of a picture of a page.
WIDTH, HEIGHT = 1200, 760
#: Columns of the terminal, and how many of its last lines are shown.
COLUMNS, LINES = 100, 34


def find_browser() -> str:
    """Chromium or Chrome on this machine. Raises SystemExit if there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        raise SystemExit("no chromium here: install it, the pictures of pages are its")
    return found


def picture_page(page: str, file: Path) -> None:
    """A page, or a place in it, as the browser shows it first."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                find_browser(),
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000"),
                *(f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={file}", page),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    print(file)


def show_in_terminal(command: Sequence[str]) -> str:
    """What a command writes to a terminal, with its colours."""
    said = bytearray()

    def read(descriptor: int) -> bytes:
        some = os.read(descriptor, 4096)
        said.extend(some)
        return b""

    kept = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    os.environ.update(kept)
    pty.spawn([*command], read)
    return said.decode(errors="replace").replace("\r\n", "\n")


def picture_terminal(command: Sequence[str], file: Path) -> None:
    """The last lines of what a command writes, as a terminal shows them."""
    lines = show_in_terminal([sys.executable, "-m", *command]).rstrip("\n").split("\n")[-LINES:]
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("\n".join(lines)))
    file.write_text(console.export_svg(title=" ".join(command)))
    print(file)


def main(arguments: Sequence[str]) -> None:
    results, *more = map(Path, arguments)
    folder = more[0] if more else HERE
    last = results / f"run={lake.run_ids(str(results))[-1]}"
    page = (last / "_report" / "report.html").resolve().as_uri()
    picture_page(page, folder / "report.png")
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-m", "farm", "site", made, "--results", str(results)], check=True)
        picture_page((Path(made) / "index.html").as_uri(), folder / "site.png")
    picture_terminal(["farm", "report", "--results", str(results)], folder / "terminal.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
