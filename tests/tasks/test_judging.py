"""The judge's steps: which there are, and that their order is what runs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasks import judging
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.judge import policy_files
from tasks.judge.error_metrics import Metrics
from tasks.judging import JudgedCase, Judgement, judge_outputs
from tasks.model import Flushes, Form, Group, Leaf, OpClass, Oracle, RuntimeInfo, Status
from tasks.passport.composites import Composite
from tasks.passport.own_arithmetic import HeldSum, OwnArithmetic
from tasks.prepare.cases import PreparedGroup, PreparedSample, save_sample_alone

EVERY = (*judging.READING, *judging.STEPS, *judging.SECOND_LOOK, *judging.LAST_LOOK)
INFO, POLICY = RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units")
Y = np.linspace(1, 2, 64)


def sample(tmp_path: Path, **values: object) -> PreparedSample:
    x = Y.astype(np.float32)
    made = Sample(0, (TensorSpec(0),), {}, [x], [Leaf("float32", Y.shape, Y)], OpClass.REDUCTION)
    save_sample_alone(tmp_path / "x.pack", Group("user:f", "", "float32", 1), replace(made, **values))  # type: ignore[arg-type]
    return PreparedGroup(tmp_path / "x.pack").samples[0]


def test_every_step_says_what_it_decides() -> None:
    for step in EVERY:
        assert inspect.getdoc(step), step.__name__
    assert len({step.__name__ for step in EVERY}) == len(EVERY)


def test_the_steps_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def spied(step: judging.Step) -> judging.Step:
        def run(case: JudgedCase, found: Judgement) -> Judgement:
            seen.append(step.__name__)
            return step(case, found)

        return run

    choose = judging._choose_judge_steps
    asked, of_failures = choose((False,) * len(judging._OF_TRAITS)), judging._OF_FAILURES
    spies = {step: spied(step) for step in (*judging.STEPS, *judging.SECOND_LOOK)}
    monkeypatch.setattr(judging, "_choose_judge_steps", lambda traits: tuple(spies[step] for step in choose(traits)))
    monkeypatch.setattr(judging, "_OF_FAILURES", {spies[step] for step in of_failures})
    names = [step.__name__ for step in (*asked, *judging.SECOND_LOOK)]
    monkeypatch.setattr(judging, "SECOND_LOOK", tuple(spies[step] for step in judging.SECOND_LOOK))
    one = sample(tmp_path)
    right, wrong = [Y.astype(np.float32)], [Y.astype(np.float32) + 1]
    assert judge_outputs(one, [right], POLICY, INFO, measure_flushes=lambda dtypes: Flushes()).status is Status.PASS
    assert seen == [step.__name__ for step in asked if step not in of_failures]
    seen.clear()
    assert judge_outputs(one, [wrong], POLICY, INFO, measure_flushes=lambda dtypes: Flushes()).fails
    assert seen == names


def test_a_step_about_a_trait_is_asked_of_the_cases_that_have_it() -> None:
    none, every = ((trait,) * len(judging._OF_TRAITS) for trait in (False, True))
    assert judging._choose_judge_steps(every) == judging.STEPS
    for place, (_, steps) in enumerate(judging._OF_TRAITS):
        one = judging._choose_judge_steps((*none[:place], True, *none[place + 1 :]))
        assert set(one) - set(judging._choose_judge_steps(none)) == set(steps)
        assert one == tuple(step for step in judging.STEPS if step in one)


def test_a_final_judgement_is_the_last_word(tmp_path: Path) -> None:
    """Oracles that disagree end it: nothing that a later step would have found is said of the outputs."""
    one = sample(tmp_path, others=[Oracle("other", [Y * 1.1])])
    found = judge_outputs(one, [[np.zeros(64, np.float32)]], POLICY, INFO)
    assert (found.status, found.kind) == (Status.INVALID, "oracle") and "cause" not in found.columns
    assert judge_outputs(sample(tmp_path), [[np.zeros(64, np.float32)]], POLICY, INFO).columns["cause"]


def test_a_step_changes_nothing_of_what_it_is_given() -> None:
    first = Judgement(Metrics(), Status.WRONG, "numbers", {"limit": 32.0})
    assert first.rule(Status.IMPRECISE, "kept", {"cause": "x"}).columns == {"limit": 32.0, "cause": "x"}
    assert first.columns == {"limit": 32.0} and first.note({}) is first


def test_a_flag_stands_beside_those_that_other_steps_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a device that takes subnormal numbers for zero, and whose arithmetic bounds nothing."""
    exact = np.append(Y[1:], 1e-40)
    one = sample(tmp_path, expected=[Leaf("float32", Y.shape, exact)])
    own, form = OwnArithmetic(()), Form("torch", op="user:f", dtype="float32", arrays=[exact.astype(np.float32)])
    for is_bounded, said in ((False, "own=unbounded flushes=float32"), (True, "flushes=float32")):
        held = HeldSum(0.5, 0.5, 0, Composite("softmax", 0, lambda arrays: exact), is_bounded=is_bounded)
        monkeypatch.setattr(judging, "_hold_to_bounds", lambda *given, held=held: held)
        found = judge_outputs(one, [[np.zeros(64, np.float32)]], POLICY, INFO, form, measure_flushes=Flushes, own=own)
        assert found.fails and found.columns["flags"] == said
        assert ("own_units" in found.columns) is is_bounded
    assert judging._note_own_units(found.flag(own="unbounded"), held).columns["flags"] == said


def test_outputs_are_read_before_they_are_judged(tmp_path: Path) -> None:
    """Elements that may have changed places are put back first; their digest is that of what came."""
    ties = np.zeros(64)
    one = sample(tmp_path, expected=[Leaf("float32", Y.shape, Y, ties=ties)])
    turned = judge_outputs(one, [[Y[::-1].astype(np.float32)]], POLICY, INFO)
    straight = judge_outputs(one, [[Y.astype(np.float32)]], POLICY, INFO)
    assert turned.status is straight.status is Status.PASS
    assert turned.columns["output_digest"] != straight.columns["output_digest"]
