"""What a module of kernels uses of the package `farm`, where a device's environment has `tasks` alone."""

from __future__ import annotations

import importlib.util
import sys

from tasks.catalogs.user.ops import UserOp, op
from tasks.gradients.own_autograd import autograd

__all__ = ["UserOp", "autograd", "op"]


def stand_in_for_farm() -> None:
    """Let ``import farm`` find this module where nothing else has that name."""
    if "farm" not in sys.modules and importlib.util.find_spec("farm") is None:
        sys.modules["farm"] = sys.modules[__name__]
