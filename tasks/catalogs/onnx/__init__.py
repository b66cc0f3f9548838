"""ONNX's node suite, and every input of its operators: cases, models, references in float64."""
