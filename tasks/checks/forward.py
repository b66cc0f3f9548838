"""The forward check: an op's outputs."""

from tasks.checks.base import FORWARD, Check


class Forward(Check):
    name = FORWARD
    about = "an op's outputs"
    prepared = True
