"""The quantized check: a float32 model made smaller by ONNX Runtime's own tools, judged as the graph that they made."""

from tasks.checks.derived import Derived

#: Bits of a sample's weights, which are its number → what that is called.
KINDS = {8: "int8", 16: "float16"}


class Quantized(Derived):
    """The number of a sample is the bits of its weights. What is expected is that graph in float64, so a runtime is
    judged in what it does with it; what was lost on the way from the float32 model is the column ``loss``.

    Flags: ``quantized=int8``, ``quantized=float16``.
    """

    name = "quantized"
    about = (
        "a float32 model in INT8 (static, calibrated on its own inputs) and in float16, made by ONNX Runtime's tools: compared "
        "with that same graph in float64, in steps of its scales; column `loss`: the loss against the float32 model"
    )
    numbers = tuple(KINDS)
    forms = ("onnx",)
