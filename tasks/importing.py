"""Imports by name, and without the collector of garbage: they make hundreds of thousands of objects, and none of them is any."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from importlib import import_module

#: Runs a module as ``-m`` does, but for the working directory, which is looked in last: what lies there is the user's,
#: and may be called `tasks` too.
_RUN_MODULE = (
    "import sys; '' in sys.path and (sys.path.remove(''), sys.path.append('')); "
    "from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def make_module_command(python: str, module: str) -> list[str]:
    """The command line that runs a module of `tasks` in an interpreter; what follows it are the module's arguments."""
    return [python, "-u", "-c", _RUN_MODULE, module]


@contextlib.contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Nothing is collected while this lasts, nor ever looked at again what was made: a tenth of the import of torch, a
    quarter of that of its list of ops."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if on:
            gc.enable()


def import_by_name(what: str) -> None:
    """Import a module; of "module:function", call the function as well."""
    module, _, function = what.partition(":")
    found = import_module(module)
    if function:
        getattr(found, function)()
