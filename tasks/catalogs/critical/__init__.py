"""The critical operations (relu, convolutions, norms, attention): their drawn inputs, NumPy references and torch forms."""

DTYPES = ("float32", "float16", "bfloat16", "float64")
