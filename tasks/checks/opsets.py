"""The opsets check: a model converted to other versions of ONNX's operator set by onnx.version_converter."""

from tasks.checks.derived import Derived


class Opsets(Derived):
    """The number of a sample is the opset. A converted graph that is not the same in float64 is the converter's fault.

    Flags: ``opset=17``; ``converted=unproved`` where a graph has no float64 evaluation, so that the converter may be at
    fault too.
    """

    name = "opsets"
    about = (
        "the model converted to opsets 15 to 19, 21 and 23, one sample each: the converted graph is the same in "
        "float64, else the converter is the culprit"
    )
    numbers = (15, 16, 17, 18, 19, 21, 23)
