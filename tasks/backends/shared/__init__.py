"""What several backends need: ONNX forms and graphs, torch devices, modes and switches, ORT, TensorRT networks, ranks, artefacts."""
