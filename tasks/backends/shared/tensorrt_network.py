"""What is written into or plugged into a TensorRT network: casts, quantisation, a calibrator, an output allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.devices.cuda_driver import CudaDevice


def cast_tensorrt_network(trt: Any, network: Any, dtype: Any) -> None:
    """Compute the float32 of a strongly typed network in ``dtype`` (a tensorrt.DataType); its inputs and outputs stay.

    Inputs, constants and what is cast to float32 are cast, outputs are cast back.
    """
    wide = trt.DataType.FLOAT
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    sources = [network.get_input(i) for i in range(network.num_inputs)]
    sources += [layer.get_output(0) for layer in layers if layer.type in (trt.LayerType.CONSTANT, trt.LayerType.CAST)]
    for source in [x for x in sources if x.dtype == wide]:
        rewire_tensorrt_layers(layers, source, network.add_cast(source, dtype).get_output(0))
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    for output in outputs:
        network.unmark_output(output)
    for output in outputs:
        if output.dtype == dtype:
            name, output.name = output.name, f"{output.name}_narrow"
            output = network.add_cast(output, wide).get_output(0)
            output.name = name
        network.mark_output(output)


def quantize_tensorrt_network(trt: Any, network: Any, inputs: dict[str, np.ndarray]) -> None:
    """Quantise the float32 inputs of a network to int8 and back, in steps of a 127th of their largest finite
    magnitude."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    given = [network.get_input(i) for i in range(network.num_inputs)]
    for tensor in [x for x in given if x.dtype == trt.DataType.FLOAT]:
        finite = np.abs(inputs[tensor.name][np.isfinite(inputs[tensor.name])])
        step = np.full((), (finite.max() if finite.size else 0) / 127 or 1.0, np.float32)
        scale = network.add_constant((), trt.Weights(step)).get_output(0)
        narrow = network.add_quantize(tensor, scale, trt.DataType.INT8).get_output(0)
        rewire_tensorrt_layers(layers, tensor, network.add_dequantize(narrow, scale, trt.DataType.FLOAT).get_output(0))


def rewire_tensorrt_layers(layers: list[Any], old: Any, new: Any) -> None:
    """Give each layer that takes the tensor ``old`` another one."""
    places = [(layer, k) for layer in layers for k in range(layer.num_inputs) if layer.get_input(k) is not None]
    for layer, k in places:
        if layer.get_input(k).name == old.name:
            layer.set_input(k, new)


def make_tensorrt_calibrator(trt: Any, gpu: CudaDevice, inputs: dict[str, np.ndarray]) -> Any:
    """An entropy calibrator (TensorRT up to 10) over one batch: the case's own inputs, on the device."""
    held = {name: gpu.allocate(value.nbytes) for name, value in inputs.items()}

    class OneBatch(trt.IInt8EntropyCalibrator2):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)
            self.given = False

        def get_batch_size(self) -> int:
            return 1  # explicit batch dimensions: the whole tensors are the batch

        def get_batch(self, names: list[str]) -> list[int] | None:
            if self.given:
                return None
            self.given = True
            for name in names:
                gpu.to_device(held[name], inputs[name])
            return [held[name] for name in names]

        def read_calibration_cache(self) -> None:
            return None

        def write_calibration_cache(self, cache: Any) -> None:
            return None

        def release(self) -> None:
            for address in held.values():
                gpu.free(address)

    return OneBatch()


def make_tensorrt_allocator(trt: Any, allocate: Callable[[int], int]) -> Any:
    """An IOutputAllocator for an output whose shape depends on data: ``address`` and ``shape`` hold after the run."""

    class OneOutput(trt.IOutputAllocator):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.address, self.size, self.shape = 0, -1, ()

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            if size > self.size:
                self.address, self.size = allocate(size), size
            return self.address

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return OneOutput()
