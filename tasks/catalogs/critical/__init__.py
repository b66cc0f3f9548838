"""The critical operations (relu, convolutions, norms, attention): their drawn inputs, NumPy references (`conv2d`), sums and torch forms."""

DTYPES = ("float32", "float16", "bfloat16", "float64")
