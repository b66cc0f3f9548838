"""ONNX's operators: one row each (`tasks.operators.table`), and what the rows are made of."""
