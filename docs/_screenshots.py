"""The pictures of a report, a site and a terminal: python docs/_screenshots.py RESULTS [FOLDER]

RESULTS is a lake with a run or more. Writes report.png and site.png as Chromium shows them, and terminal.svg as a
terminal of 100 columns does, to FOLDER (docs/). Nothing in them is drawn by hand, so they are what the farm shows
today.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
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


def show_in_terminal(command: Sequence[str], folder: Path) -> str:
    """What a command in a folder writes to a terminal, with its colours."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    variables = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=variables, cwd=folder)
    os.close(its)
    said = bytearray()
    with contextlib.suppress(OSError):  # a terminal without a process reads as an error
        while some := os.read(ours, 4096):
            said.extend(some)
    os.close(ours)
    process.wait()
    return said.decode(errors="replace").replace("\r\n", "\n")


def picture_terminal(name: str, command: Sequence[str], file: Path, folder: Path) -> None:
    """The last lines of what a command writes in a folder, as a terminal shows them below the command's name."""
    lines = show_in_terminal(command, folder).rstrip("\n").split("\n")[-LINES:]
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("\n".join(lines)))
    file.write_text(console.export_svg(title=name))
    print(file)


def main(arguments: Sequence[str]) -> None:
    results, *more = map(Path, arguments)
    folder = more[0] if more else HERE
    folder.mkdir(parents=True, exist_ok=True)
    last = results / f"run={lake.run_ids(str(results))[-1]}"
    page = (last / "_report" / "report.html").resolve().as_uri()
    picture_page(page, folder / "report.png")
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-m", "farm", "report", "site", made, str(results)], check=True)
        picture_page((Path(made) / "index.html").as_uri(), folder / "site.png")
    report = [sys.executable, "-m", "farm", "report", "--results", "."]
    picture_terminal("farm report", report, folder / "terminal.svg", results)


if __name__ == "__main__":
    main(sys.argv[1:])
