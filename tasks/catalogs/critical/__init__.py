"""The critical operations: their inputs, NumPy references and torch forms."""

DTYPES = ("float32", "float16", "bfloat16", "float64")
