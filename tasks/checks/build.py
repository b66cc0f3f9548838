"""The build check: a program is made of a sample; nothing is run."""

from tasks.checks.base import Check


class Build(Check):
    name = "build"
    about = "a program is built, not run, for backends that only compile"
    runs = False

    @property
    def needs(self) -> str:
        return self.name
