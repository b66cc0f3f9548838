"""Rockchip's toolkit: what its log says becomes the reason; chips and options that it does not know are refused."""

from __future__ import annotations

import pytest

from tasks.backends import rknn
from tasks.backends.rknn import Rknn
from tasks.model import Unsupported

LOG = """\x1b[1;33mW\x1b[0m load_onnx: ===================== WARN(1) =====================
\x1b[1;31mE\x1b[0m \x1b[1;31mrknn-toolkit2 version: 2.5.0\x1b[0m
\x1b[1;31mE\x1b[0m \x1b[1;31mload_onnx: Traceback (most recent call last):
  File "rknn/api/rknn_base.py", line 1630, in rknn.api.rknn_base.RKNNBase.load_onnx
%s\x1b[0m
I ===================== WARN(0) =====================
"""


def test_the_toolkits_words_are_the_reason() -> None:
    refused = rknn._make_rknn_refusal("load_onnx", LOG % "ValueError: Unsupport onnx opset 22, need <= 19!")
    assert isinstance(refused, Unsupported)
    assert str(refused) == "load_onnx failed: ValueError: Unsupport onnx opset 22, need <= 19!"
    failed = rknn._make_rknn_refusal("build", LOG % "ValueError: reduced: set shape = [1] fail, ori_shape = [2, 2]")
    assert not isinstance(failed, Unsupported)
    assert str(failed) == "build failed: ValueError: reduced: set shape = [1] fail, ori_shape = [2, 2]"
    assert "no reason given" in str(rknn._make_rknn_refusal("build", ""))


def test_the_simulator_takes_a_cpu_and_a_board_its_npu() -> None:
    made = Rknn("rknn-rk3588", "rk3588", {})
    assert (made.emulated, made.resource, made.device_vendor) == (True, "CPU", "")
    board = Rknn("rknn-rk3588", "rk3588", {"connected": True})
    assert (board.emulated, board.resource, board.device_vendor) == (False, "NPU", "rockchip")


def test_what_it_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="its device is one of rk3562.*, not 'rk9999'"):
        Rknn("rknn-rk9999", "rk9999", {})
    with pytest.raises(ValueError, match="unknown option 'quantize'"):
        Rknn("rknn-rk3588", "rk3588", {"quantize": True})
    with pytest.raises(ValueError, match="optimization_level is one of 0, 1, 2, 3"):
        Rknn("rknn-rk3588", "rk3588", {"optimization_level": 7})
