"""One case of a lake again: found, run, shown, and as a standalone script. Called, the package is the client's function of the same name."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("farm.client").reproduce(*args, **kwargs)  # by name: it stands above this room


sys.modules[__name__].__class__ = _Callable
