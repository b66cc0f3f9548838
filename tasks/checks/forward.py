"""The forward check: an op's outputs."""

from tasks.checks.base import Check
from tasks.model import FORWARD


class Forward(Check):
    name = FORWARD
    about = "an op's outputs"
    prepared = True
