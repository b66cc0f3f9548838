"""How the farm's modules are found. `python -m farm.NAME` is `farm NAME`, for each file of `farm.commands`, and ``from farm.NAME import main`` its command line."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

HERE = os.path.dirname(__file__)
#: The package `tasks`, which is this one's: a file of that name in the working directory is the user's.
TASKS = os.path.join(os.path.dirname(HERE), "tasks", "__init__.py")
#: What such a module is.
SOURCE = """
import sys
from farm.exits import open_command_door
main = open_command_door({!r})
if __name__ == "__main__":
    sys.exit(main())
"""


def is_own_package(tasks: ModuleType) -> bool:
    """Whether a module called `tasks` is the farm's."""
    return os.path.realpath(getattr(tasks, "__file__", None) or "") == os.path.realpath(TASKS)


class CallableDoor(ModuleType):
    """The module of a command that has the name of a function of the client (`farm.fuzz`): once it is imported, `farm`
    has the module by that name, and a call of it is a call of the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module("farm.client"), self.__name__.rpartition(".")[2])(*args, **kwargs)


class CommandDoor:
    """Loads the module of a command, which no file is of. `Door.find_spec` goes first on `sys.meta_path`: a folder that
    git has left behind, with nothing but what Python compiled, is found as a package."""

    def __init__(self, command: str) -> None:
        self.command = command

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if fullname == "tasks":
            return spec_from_file_location(fullname, TASKS)
        if package != "farm":
            return None
        command = name.removesuffix(".__main__")  # a package, farm.report, is run by that
        own = f"{HERE}/{name.replace('.', '/')}"
        if command.startswith("_") or any(map(os.path.isfile, (f"{own}.py", f"{own}/__init__.py"))):
            return None
        if not os.path.isfile(f"{HERE}/commands/{command}.py"):
            return None
        # As if it lay beside `farm.exits`, which looks at where a command was called.
        return ModuleSpec(fullname, cls(command), origin=os.path.join(HERE, "__main__.py"))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return CallableDoor(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), vars(module))

    def get_code(self, fullname: str) -> CodeType:
        """`python -m` asks for this."""
        return compile(SOURCE.format(self.command), f"<{fullname}>", "exec")
