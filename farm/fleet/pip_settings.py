"""uv with pip's settings, which it does not read: ``python -m farm.fleet.pip_settings pip install …``, also before anything is installed."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

#: Options of pip that uv knows by another name: variable of uv.
_PIP_TO_UV = {
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}


def make_uv_environment(indexes: Sequence[str] = ()) -> dict[str, str]:
    """This process's variables with pip's settings translated, which uv does not read, and further ``indexes``."""
    env = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    # pip takes the best version of all indexes, uv that of the first one that has the package.
    env.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    env.setdefault("UV_HTTP_TIMEOUT", "120")
    for name, places in read_pip_settings().items():
        # uv separates indexes by blanks and links by commas.
        joined = ",".join(places.split()) if name == "UV_FIND_LINKS" else places
        env.setdefault(name, joined)
    if indexes:  # as a variable: an option of the command would hide the user's own
        env["UV_EXTRA_INDEX_URL"] = " ".join([*env.get("UV_EXTRA_INDEX_URL", "").split(), *indexes])
    return env


@functools.cache
def read_pip_settings() -> dict[str, str]:
    """pip's options of `_PIP_TO_UV` under uv's names, from variables and configuration files."""
    found: dict[str, str] = {}
    try:
        text = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        text = ""
    # In pip's own order of precedence: a section of one command over [global], a variable over both.
    lines = sorted(text.splitlines(), key=lambda x: (x.startswith(":env:"), x.startswith("install.")))
    for line in lines:
        name, _, value = line.partition("=")
        section, _, option = name.partition(".")
        if section in ("global", "install", ":env:") and option in _PIP_TO_UV:
            found[_PIP_TO_UV[option]] = " ".join(" ".join(shlex.split(value)).split())
    for option, name in _PIP_TO_UV.items():
        if given := os.environ.get("PIP_" + option.upper().replace("-", "_")):
            found[name] = " ".join(given.split())
    return found


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, "-m", "uv", *sys.argv[1:]], make_uv_environment())
