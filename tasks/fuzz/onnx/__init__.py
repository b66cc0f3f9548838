"""Generated cases of ONNX operators: specs as a table, models, references."""
