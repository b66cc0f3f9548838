"""What several backends need: ONNX forms, graphs and their protobuf, torch devices, modes, switches and placing, ORT, TensorRT networks and engines, ranks, artefacts, clocks and caches."""
