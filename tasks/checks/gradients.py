"""The backward checks: the gradient of an op's inputs, and the gradient of that."""

from tasks.checks.base import Check


class Backward(Check):
    name = "backward"
    about = "the gradients of an op's inputs"
    prepared = True
    gradient = True


class DoubleBackward(Check):
    name = "double_backward"
    about = "the gradients of these gradients"
    prepared = True
    gradient = True
