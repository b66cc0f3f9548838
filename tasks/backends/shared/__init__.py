"""What several backends need: ONNX forms and graphs, torch devices, modes, switches and placing, ORT, TensorRT networks and engines, ranks, artefacts, clocks and caches."""
