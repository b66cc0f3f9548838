"""Whole ONNX graphs: in float64, their noise floor, parts of them. onnx is imported inside functions."""
