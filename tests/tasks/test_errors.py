"""What an exception of a framework comes down to: one line, without advice, and the place in the user's file."""

from __future__ import annotations

import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.model.errors import (
    describe_error_with_place,
    find_error_essence,
    find_error_place,
    format_error_essence,
    list_error_causes,
)
from tasks.stranger.records import write_error_record

EXPORT = (
    "Failed to export the model with torch.export. \x1b[96mThis is step 1/3\x1b[0m of exporting the model to ONNX. "
    "Next steps:\n- Modify the model code for `torch.export.export` to succeed.\n\n## Exception summary\n\nshapes differ"
)
TRACED = (
    "RuntimeError when making fake tensor call\n  Explanation: Dynamo failed to run FX node with fake tensors: call_function mm: "
    "got RuntimeError('a and b must have same reduction dim')\n  Hint: Your code may result in an error when running in eager.\n\n"
    'from user code:\n   File "/home/me/doc.py", line 7, in forward\n    v1 = torch.mm(x1, inp)\n\nSet TORCHDYNAMO_VERBOSE=1\n'
)


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def in_package(source: str, **names: Any) -> Callable[[], Any]:
    """A function ``f`` whose file is an installed package's."""
    module = types.ModuleType("framework")
    vars(module).update(names)
    exec(compile(source, f"{sysconfig.get_path('purelib')}/framework/core.py", "exec"), vars(module))
    return module.f  # type: ignore[no-any-return]


class Untold(RuntimeError):
    def __bool__(self) -> bool:
        raise ValueError("neither")


class Unnumbered(PermissionError):
    @property
    def errno(self) -> int:  # type: ignore[override]
        raise ValueError("no number")


def test_causes_that_lead_round_in_a_circle_come_to_an_end() -> None:
    first, second = ValueError("a"), Untold("b")
    first.__cause__, second.__cause__ = second, first
    assert len(list_error_causes(first)) == len(list_error_causes(second, contexts=True)) == 100
    assert format_error_essence(first) in ("ValueError: a", "Untold: b") and not find_error_place(first)
    assert (
        write_error_record(first, None, [])["text"] == "a"
        and write_error_record(Unnumbered(1, "c"), None, [])["base"] == "PermissionError"
    )


def test_a_context_is_followed_where_it_is_asked_for_and_there_is_no_cause() -> None:
    cause, context = ValueError("a"), ValueError("b")
    error = RuntimeError("c")
    error.__context__ = context
    assert list_error_causes(error) == [error] and list_error_causes(error, contexts=True) == [error, context]
    error.__cause__ = cause
    assert list_error_causes(error, contexts=True) == list_error_causes(error) == [error, cause]


def test_what_a_framework_wraps_is_told_by_itself() -> None:
    f = in_package(f"def f():\n    raise RuntimeError({EXPORT!r}) from ValueError('shapes differ (2x3 and 2x3)')")
    assert format_error_essence(raised(f)) == "ValueError: shapes differ (2x3 and 2x3)"


def test_what_the_user_raises_from_another_stays() -> None:
    def call() -> None:
        raise ValueError("no such key: width") from KeyError("width")

    assert format_error_essence(raised(call)) == "ValueError: no such key: width"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRACED, "RuntimeError: a and b must have same reduction dim"),
        (
            "Data-dependent branching\n  Explanation: Detected it.\n  Hint: consider",
            "RuntimeError: Data-dependent branching",
        ),
        ("Error(s) in loading:\n\tMissing key(s): w.", "RuntimeError: Error(s) in loading: Missing key(s): w."),
        ("Wrong shapes:\n\n2 and 3\n\nmore of it", "RuntimeError: Wrong shapes: 2 and 3"),
        ("\x1b[31mred\x1b[0m words", "RuntimeError: red words"),
        ("device-side assert\nCUDA kernel errors might be asynchronously reported", "RuntimeError: device-side assert"),
        ("", "RuntimeError"),
    ],
)
def test_advice_colours_and_stacks_are_left_out(text: str, says: str) -> None:
    assert format_error_essence(RuntimeError(text)) == says


def test_a_long_line_ends_with_its_beginning() -> None:
    kind, text = find_error_essence(RuntimeError("shapes differ " + "x" * 1000))
    assert kind == "RuntimeError" and text.startswith("shapes differ") and text.endswith("…") and len(text) == 501


def test_the_place_is_the_user_s_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def g(f):\n    return f()\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    f = in_package("def f():\n    raise RuntimeError('no')")
    assert describe_error_with_place(raised(lambda: names["g"](f))) == f"RuntimeError: no ({file}:2)"
    assert find_error_place(RuntimeError(TRACED)) == "/home/me/doc.py:7"
    assert find_error_place(SyntaxError("invalid syntax", ("/home/me/doc.py", 3, 1, "class M("))) == "/home/me/doc.py:3"
