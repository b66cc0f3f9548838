"""Names what makes a model fail on a backend: a node, a window of nodes, an optimiser's pass, a precision, the exporter.

A search is a generator: it asks for models to be run on the backend and is told what they returned. So it knows nothing of
processes, and a stand-in can answer it. It needs onnx, which a backend's environment may lack: it runs in the farm's own.
"""
