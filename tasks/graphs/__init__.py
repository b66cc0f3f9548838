"""Whole ONNX graphs, torch modules and traced programs: nodes read, cut into parts, evaluated in float64, moved by noise. onnx is imported inside functions."""
