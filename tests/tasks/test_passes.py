"""What can be turned off of a runtime's optimiser has names that the runtime knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.model import Form

torch = pytest.importorskip("torch")


def test_inductor_s_passes_are_switches_of_its_config() -> None:
    from torch._inductor import config

    backend = BackendSpec.parse("inductor-cpu").create()
    assert backend.passes() and all(isinstance(getattr(config, name), bool) for name in backend.passes())


def test_inductor_leaves_out_what_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Exception):
        pass

    def compiled(*args: Any, **given: Any) -> None:
        raise Told(given["backend"], given["options"])

    monkeypatch.setattr(torch, "compile", compiled)
    backend = BackendSpec.parse("inductor-cpu").create()
    form = Form("torch", "user:f", "float32", [np.ones(4, np.float32)], call=lambda x: x)
    for setting, told in (
        ("", ("inductor", None)),
        ("without epilogue_fusion,pattern_matcher", ("inductor", {"epilogue_fusion": False, "pattern_matcher": False})),
        ("level eager", ("eager", None)),
    ):
        with pytest.raises(Told) as found:
            backend.at(setting).build(form)
        assert found.value.args == told
    assert not backend.at("level eager").passes()
