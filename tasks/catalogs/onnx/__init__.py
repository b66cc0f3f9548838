"""ONNX's node suite, and every input of its operators: the suite's cases and schemas, models, leaves, references in float64."""
