"""What a Python interpreter says of itself, in one line of JSON. Run by its path, not imported: it must start in any Python, 2.7
included, and needs nothing but the standard library.

Behind a launcher it is given a line on stdin, the path of a file in the folder that is to be shared: it says whether
the line came, whether the file is there, and whether temporary files can be written.
"""

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules are not what their names say

import json
import os
import platform
import re
import select
import tempfile
import time

#: Begins the answer: what a login shell or a container prints before it is none.
MARK = "farm-interpreter "
#: Seconds for which the line on stdin is waited for; then for the file, which a network's file system may show late.
LINE_S, FILE_S = 15.0, 15.0
#: Variable with the digest of the image that this process runs in: whoever makes the launcher declares it.
IMAGE = "FARM_IMAGE_DIGEST"


def list_package_versions():
    """Versions by normalised name."""
    try:
        from importlib import metadata
    except ImportError:  # before 3.8
        return {}
    named = [(d.metadata["Name"] or "", d.version) for d in metadata.distributions()]
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in named}


def list_lacking_modules(modules):
    """Those modules that this interpreter does not have."""
    try:
        from importlib.util import find_spec
    except ImportError:  # Python 2
        return modules
    return [name for name in modules if find_spec(name) is None]


def read_stdin_line():
    """The line on stdin; "" where none comes."""
    ready, _, _ = select.select([0], [], [], LINE_S)
    found = b""
    while ready and not found.endswith(b"\n"):
        data = os.read(0, 4096)
        if not data:
            break
        found += data
    return found.decode("utf-8").strip()


def wait_for_file(path):
    """Whether a file is there, or comes."""
    until = time.time() + FILE_S
    while not os.path.exists(path):
        if time.time() > until:
            return False
        time.sleep(0.5)
        try:
            os.listdir(os.path.dirname(path))  # what NFS remembers of the folder is asked for again
        except OSError:
            return False
    return True


def has_temporary_folder():
    """Whether there is a folder for temporary files."""
    try:
        return bool(tempfile.gettempdir())
    except Exception:  # IOError in Python 2
        return False


def main():
    """Entry point. Arguments: modules that it may lack; "-" before them: a line is to be read."""
    asked = read_stdin_line() if sys.argv[1:2] == ["-"] else None
    told = {
        "python": ".".join(map(str, sys.version_info[:2])),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": platform.libc_ver()[0],
        "versions": list_package_versions(),
        "lacking": list_lacking_modules([name for name in sys.argv[1:] if name != "-"]),
        "image": os.environ.get(IMAGE, ""),
        "stdin": bool(asked),
        "shared": bool(asked) and wait_for_file(asked),
        "temporary": has_temporary_folder(),
    }
    sys.stdout.write("\n" + MARK + json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
