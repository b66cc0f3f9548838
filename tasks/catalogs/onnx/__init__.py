"""ONNX's node suite."""
