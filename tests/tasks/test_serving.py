"""The check serving: planted faults of engines are found by the relation that is to find them, and the right engine passes."""

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.backends.engines import EngineBackend
from tasks.catalogs.engine import catalog
from tasks.catalogs.engine.samplers import SAMPLERS
from tasks.checks.engine_float64 import compute_decoder_logits
from tasks.engines.plain import PlainEngine
from tasks.zoo.engines import FAULTS, SAMPLER_FAULTS
from tests.bench.engine_faults import PLAIN, find_fault, judge_engine
from tests.conftest import here


@pytest.mark.parametrize("name", [*FAULTS])
def test_fault_is_found_by_its_relation(name: str, cache: Path) -> None:
    fault = FAULTS[name]
    found = find_fault(fault, "float32", cache, fault.found_by)
    assert set(found.by) == set(fault.found_by)
    assert found.row is not None and (found.row.kind == "relation") == (
        fault.found_by[0] not in ("float64", "int8_cache")
    )
    assert "first in token" in (found.row.error or "") or "rank 1 returns something else" in (found.row.error or "")


def test_relations_are_blind_to_what_every_way_has(cache: Path) -> None:
    found = find_fault(FAULTS["queries_out_of_order"], "float32", cache, ["float64", "recomputed", "padded_left"])
    assert [*found.by] == ["float64"]


@pytest.mark.parametrize("dtype", catalog.DTYPES)
def test_right_engine_passes(dtype: str, cache: Path) -> None:
    rows = list(judge_engine(PLAIN, ["float64", "recomputed", "int8_cache", "padded_left"], [dtype], cache))
    assert {row.status for row in rows} == {"pass"}
    # What 8 bits of a cache do leaves bfloat16 unseen.
    assert {row.op for row in rows if row.weak} <= {"engine:int8_cache"}


@pytest.mark.parametrize("name", [*SAMPLER_FAULTS])
def test_sampler_is_judged_by_its_distribution(name: str, cache: Path) -> None:
    engine, variant = SAMPLER_FAULTS[name]
    (row,) = judge_engine(f"{engine.__module__}:{engine.__qualname__}", ["sampling"], ["float32"], cache, [variant])
    assert (row.status, row.kind) == ("wrong", "distribution")


@pytest.mark.parametrize("engine", ["engine-cpu", "transformers-cpu"])
def test_right_samplers_pass(engine: str, cache: Path) -> None:
    rows = list(judge_engine("", ["sampling"], ["float32"], cache, SAMPLERS, samples=4, like=engine))
    assert {row.status for row in rows} == {"pass"} and not any(row.weak for row in rows)
    assert len(rows) == 4 * len(SAMPLERS)


def test_logits_of_a_window_hang_on_no_token_before_it() -> None:
    decoder = catalog.DECODERS["window"]
    weights = catalog.draw_decoder_weights(decoder, 1)
    tokens = list(range(40))
    other = [7, *tokens[1:]]
    # Through two layers a token reaches two windows far.
    reach = 2 * (decoder.window - 1)
    apart = (compute_decoder_logits(decoder, weights, tokens) != compute_decoder_logits(decoder, weights, other)).any(
        -1
    )
    assert apart[: reach + 1].all() and not apart[reach + 1 :].any()


class Counting(PlainEngine):
    """Counts its steps."""

    decoded = 0

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        Counting.decoded += 1
        return super().decode(sequences, tokens)


class Mute(PlainEngine):
    """Gives tokens instead of logits."""

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, Any]:
        return super().prefill(tokens, after, cache)[0], None


class Dying(PlainEngine):
    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> Any:
        os.kill(os.getpid(), signal.SIGSEGV)


class Hanging(PlainEngine):
    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> Any:
        time.sleep(600)


def test_an_engine_without_logits_is_said_in_a_line(cache: Path) -> None:
    (row,) = judge_engine(f"{__name__}:Mute", ["float64"], ["float32"], cache, ["llama"])
    assert row.status == "unsupported"
    assert row.error == "the engine gives no logits: prefill of 1 token returned NoneType, not an array (1, 128)"


def test_an_engine_that_dies_or_hangs_costs_its_case_alone(tmp_path: Path) -> None:
    own = [{"name": x, "like": "engine-cpu", "options": {"class": f"{__name__}:{x}"}} for x in ("Dying", "Hanging")]
    catalogs = [{"name": "engine", "ops": ["padded_left.llama", "float64.llama"], "samples": 1}]
    config = {"checks": ["serving"], "dtypes": ["float32"], "catalogs": catalogs, "backends": own, "deadline_s": 20}
    path = tmp_path / "engines.yaml"
    path.write_text(json.dumps(config))
    done = here(path, "--on", "processes", "--results", tmp_path / "lake")
    rows = pd.read_parquet(tmp_path / "lake")
    found = {(row.backend, row.op): row.status for row in rows.itertuples()}
    assert done.returncode == 1
    assert found == {
        ("Dying", "engine:float64"): "pass",
        ("Dying", "engine:padded_left"): "crash",
        ("Hanging", "engine:float64"): "pass",
        ("Hanging", "engine:padded_left"): "timeout",
    }


def test_layer_and_heads_are_named(cache: Path) -> None:
    found = find_fault(FAULTS["queries_out_of_order"], "float32", cache, ["float64"])
    assert found.row is not None and (found.row.error or "").endswith("there in layer 0, heads 1, 2")
    found = find_fault(FAULTS["tied_head"], "float32", cache, ["float64"])
    assert found.row is not None and (found.row.error or "").endswith("behind all layers")


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("mean_for_sum", "layer 0, behind its heads"),
        ("attention_not_reduced", "layer 1, behind its heads"),
        ("keys_of_first_rank", "layer 0, heads 2, 3"),
        ("last_rank_alone", "behind all layers"),
    ],
)
def test_layer_of_a_fault_of_ranks_is_named(fault: str, place: str, cache: Path) -> None:
    found = find_fault(FAULTS[fault], "float32", cache, ["tensor_parallel"])
    assert found.row is not None and place in (found.row.error or "")


def test_several_ranks_compute_what_one_does(cache: Path) -> None:
    (row,) = judge_engine(PLAIN, ["tensor_parallel"], ["float32"], cache, ["llama"])
    assert row.status == "pass" and (row.apart_units or 0) > 0


def test_the_usual_way_is_asked_once_for_all_relations(cache: Path) -> None:
    asked = f"{__name__}:Counting"
    assert {
        row.status for row in judge_engine(asked, ["recomputed", "chunked", "again"], ["float32"], cache, ["llama"])
    } == {"pass"}
    # Once as the usual way, twice where a relation asks the same again; and what reads in chunks decodes, too.
    assert Counting.decoded == 4 * 23 * (1 + 1 + 2)


def test_an_engine_in_one_rank_is_said_in_a_line(cache: Path) -> None:
    (row,) = judge_engine("", ["tensor_parallel"], ["float32"], cache, ["llama"], like="transformers-cpu")
    assert row.status == "unsupported" and (row.error or "").startswith(
        "the engine runs in one rank: it has no rank_class"
    )


def test_tokens_beyond_the_margin_are_wrong(cache: Path) -> None:
    for name, status in ((PLAIN, "pass"), ("tasks.zoo.engines:RotatedTwice", "wrong")):
        (row,) = judge_engine(name, ["greedy"], ["float32"], cache, ["llama"])
        assert row.status == status and not row.weak, row


class Lukewarm(PlainEngine):
    """Its logits are off by a thousandth once it decodes, which changes no token."""

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return 1.001 * super().decode(sequences, tokens)


def test_what_tokens_are_chosen_from_is_held_to_float64_as_well(cache: Path) -> None:
    (row,) = judge_engine(f"{__name__}:Lukewarm", ["greedy"], ["float32"], cache, ["llama"])
    assert row.status == "wrong" and "or not from these logarithms" in (row.error or "")


def test_an_engines_file_is_named_from_the_folder_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farm.plan.config import load_config
    from tests.conftest import ROOT

    monkeypatch.chdir(tmp_path)
    (mine,) = (x for x in load_config(ROOT / "examples/own_engine/farm.yaml").backends if x.name == "mine")
    backend = mine.spec().create()
    backend.start()
    assert isinstance(backend, EngineBackend) and type(backend.make_engine()).__name__ == "MyEngine"


def test_an_engine_without_a_method_is_said_in_a_line() -> None:
    from tasks.backends import BackendSpec
    from tasks.model import Unavailable

    for name, said in (("tasks.nowhere:Engine", "module:Class"), ("tasks.model.engine:Decoder", "lacks load, prefill")):
        with pytest.raises(Unavailable, match=said):
            BackendSpec.parse("own", like="engine-cpu", options={"class": name}).create().start()
