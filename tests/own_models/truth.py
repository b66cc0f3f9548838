"""What is true of every model of this folder, on eager torch and compiled with inductor.

A truth is what somebody who knows torch would say after a look at the model, not what the farm says today.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Truth:
    """Of a model on a backend. kind, culprit: patterns of those columns; says: one of the column ``error``. "": any."""

    status: str
    kind: str = ""
    culprit: str = ""
    says: str = ""


@dataclass(frozen=True)
class Expected:
    """Of a model. gradient of nothing: forward alone is judged."""

    torch: Truth
    inductor: Truth

    def on(self, backend: str) -> Truth:
        return self.torch if backend.startswith("torch-") else self.inductor


PASS = Truth("pass")
#: Both are right.
SOUND = Expected(PASS, PASS)


def compiled(status: str, kind: str = "", culprit: str = "", says: str = "") -> Expected:
    """Eager torch is right, and the compiler is not."""
    return Expected(PASS, Truth(status, kind, culprit, says))


def breaks(says: str = "graph break") -> Expected:
    """Eager torch is right; the compiler leaves the model, or a part of it, to eager torch."""
    return compiled("fallback", says=says)


def invalid(says: str) -> Expected:
    """There is nothing to judge, and the row says why in torch's own line or Python's."""
    return Expected(Truth("invalid", says=says), Truth("invalid", says=says))


#: What may follow torch's line: the model's own.
PLACE = r"( \(\S+\.py:\d+\))?$"
#: No kernel of its own: a compiler has nothing to do but call ATen's.
ATEN = breaks("no kernel was generated")

#: So many samples are asked of the models of a module, where it is not one.
SAMPLES: Mapping[str, int] = {"counting": 2}

#: Module -> class -> what is true of it.
EXPECTED: Mapping[str, Mapping[str, Expected]] = {
    "document_first": {"Model": SOUND},
    "document_frexp": {"Frexp": SOUND, "FrexpBoth": SOUND},
    "document_distance": {"Distance": SOUND},
    "document_matrix": {
        "MatrixModel": invalid(r"mat1 and mat2 shapes cannot be multiplied \(2x10 and 2x10\)" + PLACE),
        "Mended": ATEN,
    },
    "rows": dict.fromkeys(
        (
            *("Mlp", "Normalised", "BatchNormalised", "PlainTensor", "Buffered", "InList", "InDict", "InParameterList"),
            *("Shared", "Again", "OfTheFile", "OfNumPy", "OfPython", "WeightNormalised", "Lazy", "Wider", "DroppedOut"),
        ),
        SOUND,
    )
    # Inductor leaves out a rounding that the model asks for, unless emulate_precision_casts is set.
    | dict.fromkeys(("Narrower", "Residue"), compiled("wrong", "cast")),
    "images": dict.fromkeys(("Small", "Residual", "Separable", "Decoder", "Shuffled", "ChannelsLast"), SOUND),
    "sequences": {
        **dict.fromkeys(("Attention", "Causal", "Unrolled", "OverTime"), SOUND),
        **dict.fromkeys(("Lstm", "Gru"), breaks()),  # Dynamo does not follow torch.nn.RNN and its kind
        "Encoder": ATEN,  # one operator of ATen's, which eager torch takes where no gradient is asked for
    },
    "tokens": dict.fromkeys(("Embedded", "Placed", "Tied", "Bag", "OneHot", "Padded", "Remainders"), SOUND),
    "outputs": {
        **dict.fromkeys(("Tupled", "InOneDict", "Named", "Nested", "Best", "Absent", "Counted", "Twice"), SOUND),
        **dict.fromkeys(("Scalar", "Integers"), SOUND),
        "NestedWrong": compiled("wrong", "numbers"),
    },
    "views": dict.fromkeys(
        (
            *("Viewed", "Halves", "Sliced", "Masked", "Scattered", "Unfolded", "Expanded", "OntoInput", "Given"),
            "CountsCalls",
        ),
        SOUND,
    ),
    "counting": {
        **dict.fromkeys(
            ("CountsInBuffer", "CountsInNumber", "Smooths", "Toggles", "Caches", "KeepsTables", "KeepsLosses"), SOUND
        ),
        **dict.fromkeys(
            ("TogglesElsewhere", "RaisesAtTheSecond"), invalid("in an object that the farm does not look into")
        ),
    },
    "flow": {
        **dict.fromkeys(("OnShape", "OnMode", "Conditional", "OnDataWhere", "Item", "Selected"), SOUND),
        **dict.fromkeys(("OnData", "Until"), breaks()),
        "OnDataWrong": compiled("wrong", "numbers"),
    },
    "custom": {
        **dict.fromkeys(("WithFake", "TwoOutputs", "Writes", "OwnFunction"), SOUND),
        "WithoutFake": compiled("error", says="no fake impl registered"),
        "FakeRaises": compiled("error", says="the fake of rows has a fault"),
    },
    "compiled": {
        "Twin": SOUND,
        "Leaves": SOUND,
        **dict.fromkeys(("LeavesMean", "LeavesInput"), compiled("wrong", "numbers")),
        "Numbers": compiled("wrong", "numbers"),
        "OneElement": compiled("wrong", "numbers"),
        "NotFinite": compiled("wrong", "nonfinite"),
        "Dtype": compiled("wrong", "dtype"),
        "Shape": compiled("wrong", "shape"),
        "Lacking": compiled("wrong", "structure"),
        # Nothing can be asked of eager torch, as of any model that raises; but the compiler is to raise as well.
        "Accepts": Expected(Truth("invalid", says="three dimensions are needed"), Truth("wrong", "accepted")),
        "Exported": SOUND,
        "OfDynamo": compiled("wrong", "numbers"),
    },
    "decomposed": {
        "Decomposed": SOUND,
        "DecomposedWrong": compiled("wrong", "numbers", "decomp"),
        "DecomposedWider": compiled("wrong", "dtype"),
        "DecomposedRaises": compiled("error", says="this decomposition is not finished"),
    },
    "decomposed_aten": {"HardswishWrong": compiled("wrong", "numbers", "decomp|hardswish"), "Spelt": SOUND},
    "fused": {
        "PassWrong": compiled("wrong", "numbers", "pattern_matcher|optimiser level inductor|fusion|window"),
        "PassTwin": SOUND,
        "LoweringWrong": compiled("wrong", "numbers", "optimiser level inductor|fusion|window|tanh"),
        "LoweringTwin": SOUND,
    },
    "drawing": {
        **dict.fromkeys(("DropoutInTraining", "Noisy", "Jittered", "Sampled", "DropoutOff"), SOUND),
        "Seeded": breaks(),
        "DropoutNotScaled": compiled("wrong"),
        "NoiseForgotten": compiled("wrong"),
    },
    "invalid": {
        "MissingArgument": invalid("missing .*argument: 'mask'"),
        "NeedsWidth": invalid("missing .*argument: 'width'"),
        "WrongWidth": invalid(r"mat1 and mat2 shapes cannot be multiplied \(4x8 and 7x4\)" + PLACE),
        "RaisesWhenMade": invalid("a width of 0 makes no layer"),
        "RaisesWhenCalled": invalid("this part is not written yet"),
        "NoModule": invalid("NoModule"),
        "FloatIndex": invalid("Expected tensor for argument #1 'indices' to have one of the following scalar types"),
    },
    "invalid_import": {"Model": invalid("module 'torch.nn' has no attribute 'NoSuchLayer'")},
}
