"""The functions of the farm that one cell passes through: a run in this process, under a profile; prints a JSON line.

`python tests/bench/traced_cell.py CONFIG RESULTS`: the tree is that of PYTHONPATH, the cache that of FARM_CACHE. A
function is one `def`; lambdas and comprehensions are part of the function that they stand in. imported: those that ran
only as a module was imported, mostly to build a table.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from types import CodeType, FrameType


def main() -> None:
    from farm.launch import main as launch

    root = os.path.dirname(os.path.dirname(os.path.abspath(sys.modules["farm"].__file__ or "")))
    rooms = tuple(os.path.join(root, room) + os.sep for room in ("farm", "tasks"))
    seen: dict[CodeType, bool] = {}

    def note_call(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if seen.get(code, True) and code.co_filename.startswith(rooms):
            seen[code] = _is_importing(frame, rooms)

    threading.setprofile(note_call)
    sys.setprofile(note_call)
    try:
        ended = launch([sys.argv[1], "--on", "inline", "--results", sys.argv[2]])
    finally:
        sys.setprofile(None)
    functions = [c for c in seen if not c.co_name.startswith("<") and c.co_flags & inspect.CO_OPTIMIZED]
    found = {f"{os.path.relpath(c.co_filename, root)}:{c.co_qualname}": seen[c] for c in functions}
    passed, imported = (sorted(name for name, early in found.items() if early is flag) for flag in (False, True))
    print(json.dumps({"code": ended, "functions": passed, "imported": imported}))


def _is_importing(frame: FrameType, rooms: tuple[str, ...]) -> bool:
    """Whether a module of the farm is being imported in this thread."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_name == "<module>" and at.f_code.co_filename.startswith(rooms):
            return True
        at = at.f_back
    return False


if __name__ == "__main__":
    main()
