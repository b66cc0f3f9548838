"""Whole ONNX graphs in float64: evaluated node by node, with their noise floors. onnx is imported inside functions."""
