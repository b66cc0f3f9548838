"""Fuzzed nodes of ONNX operators: specs as a table, models, references."""
