"""What ONNX's specification leaves open: nobody can be blamed for what comes out, so it is no case."""

from __future__ import annotations

from tasks.operators.call import NoOracle


class LeftOpen(NoOracle):
    """What a case would ask, the specification leaves open; the text says what."""
