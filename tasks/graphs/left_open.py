"""What ONNX's specification leaves open: nobody can be blamed for what comes out, so it is no case."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tasks.graphs.widening import NoOracle


class LeftOpen(NoOracle):
    """What a case would ask, the specification leaves open; the text says what."""


#: Inputs by place of which it says nothing if they are 0: sizes, steps, scales. A reference may take them all the same.
_NOT_ZERO: Mapping[str, Collection[int]] = {
    "ConstantOfShape": (0,),
    "DFT": (1,),
    "DequantizeLinear": (1,),
    "Expand": (1,),
    "OneHot": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
    "QuantizeLinear": (1,),
    "Range": (2,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (4,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}


def check_zeros(op: str, inputs: Sequence[np.ndarray | None]) -> None:
    """Raises LeftOpen where one of the inputs of an operator (None: not known) has a 0 that the specification is silent about."""
    for place in _NOT_ZERO.get(op, ()):
        given = inputs[place] if place < len(inputs) else None
        if given is not None and not given.all():
            raise LeftOpen(f"input {place} of {op} is 0: the specification does not say what that is")
