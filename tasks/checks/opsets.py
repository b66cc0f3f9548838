"""The opsets check: a model in other versions of ONNX's operator set."""

from tasks.checks.derived import Derived


class Opsets(Derived):
    """The number of a sample is the opset. A graph that is not the same in float64 is the exporter's or the converter's
    fault.

    Flags: ``opset=17``; ``by``, who made the model: an exporter of torch's (``dynamo``, ``torchscript``) or
    ``onnx.version_converter``; ``not``, who was asked before and could not; ``converted=unproved`` where a graph has no
    float64 evaluation, so that the converter may be at fault too.
    """

    name = "opsets"
    about = (
        "the model exported at opsets 15 to 19, 21 and 23, or converted to them, one sample each: the graph is the same in "
        "float64, else the exporter or the converter is the culprit"
    )
    numbers = (15, 16, 17, 18, 19, 21, 23)
    forms = ("onnx",)
