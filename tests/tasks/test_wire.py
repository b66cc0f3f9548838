"""The wire: what one process says is what the other hears, and a row knows only its columns."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks import wire
from tasks.backends import BackendSpec
from tasks.catalogs.base import Entry, Failure
from tasks.judge import policy_files
from tasks.model import BackendInfo, Group, RuntimeInfo
from tasks.model.row import COLUMNS, Row
from tasks.wire import Bad, ToExport, ToPrepare, ToRun

GROUP = Group("torch:add", "scalar", "float32", 8, 3, "backward", "nan")
FAILURE = Failure("invalid", "reference", "SIGSEGV", "it died:\n“näh”")
ROW = Row(op="torch:add", dtype="float32", status="wrong", started_at=1.5, max_diff=math.inf, signature=(1.0, -2.5))
SPEC = BackendSpec("mine", "torch", "cpu", {"is": [1, {"deep": None}]}, ("a==1",), "/usr/bin/python3")


@pytest.mark.parametrize(
    "message",
    [
        wire.Hello(),
        wire.Hello(SPEC, policy_files.load_policy("error_units")),
        wire.List("torch"),
        wire.Prepare((ToPrepare(GROUP, (Bad(2, FAILURE),)), ToPrepare(GROUP)), "/cache", (0, 4)),
        wire.Export((ToExport(GROUP, "/p", "onnx", 3, (Bad(0, FAILURE),)),), "/cache"),
        wire.Run((ToRun(GROUP, "/p", (3, 1), "/form", "/keep"),), (1,), (0, 2)),
        wire.Prepared(3, "key", "/p", (5, 0)),
        wire.Exported(3, "/p"),
        wire.Done(7, ROW),
        wire.Finished(),
        wire.Ready(
            BackendInfo(
                RuntimeInfo("1", "AVX2", flushes=("float32",)), "V", found={"x": "/x"}, canary=("int32",), start_s=0.5
            )
        ),
        wire.Refused("no such device"),
        wire.Listed((Entry("torch:add", "", ("float32",), ("forward", "backward")),)),
        wire.Misconfigured("no such file", ("catalogs", 0, "modules")),
        wire.Stopped("No space left on device: /cache"),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_line_says_what_was_meant(message: Any) -> None:
    line = wire.encode_wire_message(message)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert wire.decode_wire_message(line) == message
    assert isinstance(wire.decode_wire_message(line), wire.Answer) == isinstance(message, wire.Answer)


def test_a_policy_that_has_been_used_travels_as_it_was() -> None:
    policy = policy_files.load_policy("error_units")
    policy.limit("torch:add", "elementary", "float32")
    assert wire.decode_wire_message(
        wire.encode_wire_message(wire.Hello(None, policy))
    ).policy == policy_files.load_policy("error_units")


def test_a_row_knows_its_columns_and_their_defaults() -> None:
    assert list(ROW.values()) == [c.name for c in COLUMNS]
    assert (ROW.values()["kind"], ROW.values()["run_ms"], ROW.attempts) == ("", None, 1)
    told = {"op": "torch:add", "dtype": "float32", "status": "pass", "started_at": 0.0}
    assert Row.of(told) == Row(**told)
    assert Row.of(told).with_values({"attempts": 3}) == Row(**told, attempts=3)
    with pytest.raises(TypeError, match="no column of a row: misspelt"):
        Row.of({**told, "misspelt": 1})
