"""Whole ONNX graphs, torch modules and traced programs: cut into parts, evaluated in float64, moved. onnx is imported inside functions."""
