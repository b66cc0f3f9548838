"""Whole ONNX graphs: cut into parts, given further outputs, evaluated in float64. onnx is imported inside functions."""
