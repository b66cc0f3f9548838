"""Inductor's settings as a second axis: the same case has the same ones, they are there, and the row says them."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.backends.inductor import Inductor
from tasks.backends.shared import inductor_settings
from tasks.model import Form, Unavailable

torch = pytest.importorskip("torch")


def form(n: int) -> Form:
    return Form("torch", "user:f", "float32", [np.full(9, n, np.float32)], call=lambda x: (x * 2).relu() + 1)


def test_every_setting_is_one_that_inductor_has() -> None:
    import torch._inductor.config

    known = torch._inductor.config.get_config_copy()
    assert set(inductor_settings.SETTINGS) <= set(known)
    assert all(known[name] not in values for name, values in inductor_settings.SETTINGS.items())


def test_settings_are_drawn_by_the_case_alone() -> None:
    drawn = [inductor_settings.draw_inductor_settings(form(n)) for n in range(40)]
    assert drawn == [inductor_settings.draw_inductor_settings(form(n)) for n in range(40)]
    assert all(1 <= len(x) <= inductor_settings.MOST for x in drawn)
    assert len({name for x in drawn for name in x}) > len(inductor_settings.SETTINGS) / 2


def test_a_mapping_is_taken_as_it_is_and_anything_else_refused() -> None:
    backend = Inductor("inductor-cpu", "cpu", {"settings": {"epilogue_fusion": False}})
    assert backend.joint and backend._settings(form(0)) == {"epilogue_fusion": False}
    assert not Inductor("inductor-cpu", "cpu", {"settings": "drawn"}).joint
    assert Inductor("inductor-cpu", "cpu", {})._settings(form(0)) == {}
    with pytest.raises(ValueError, match="settings: 3 is neither 'drawn' nor a mapping"):
        Inductor("inductor-cpu", "cpu", {"settings": 3})
    for settings, says in (
        ({"epilogue_fusio": False}, "inductor has no setting 'epilogue_fusio'; did you mean epilogue_fusion"),
        ({"epilogue_fusion": "no"}, "smoke test failed"),
    ):
        with pytest.raises(Unavailable, match=says):
            Inductor("inductor-cpu", "cpu", {"settings": settings}).start()
    assert Inductor(
        "inductor-cpu", "cpu", {"settings": {"epilogue-fusion": False}}
    ).start()  # torch takes both spellings
