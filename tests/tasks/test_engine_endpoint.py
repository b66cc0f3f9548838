"""An engine behind an endpoint: what its server does wrong is found through logarithms of probabilities, and what it does not answer is said."""

import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from farm.exits import BAD_INPUT, FOUND
from tasks.backends import BackendSpec, checkpoint_of_decoder
from tasks.backends.checkpoint_of_decoder import make_served_decoder
from tasks.backends.engines import OwnEngine
from tasks.catalogs.engine import catalog
from tasks.checks.engine_answers import WAYS, EngineAnswer, count_answer_units, measure_answer_distances
from tasks.checks.engine_answers import ask_engine as ask_engine
from tasks.checks.engine_greedy import measure_greedy_margins
from tasks.engines import endpoint
from tasks.engines.endpoint import EndpointEngine
from tasks.engines.llama_cpp import save_gguf
from tasks.engines.plain import PlainEngine
from tasks.model import Group, Unavailable, Unsupported
from tasks.model.engine import ServedModel
from tasks.model.row import Row
from tasks.zoo import engines as zoo
from tests.bench.engine_faults import judge_backend
from tests.conftest import here
from tests.served import Manners, serve

pytest.importorskip("torch")

DECODER = catalog.DECODERS["llama"]


def load(engine: PlainEngine, dtype: str = "float32") -> PlainEngine:
    """An engine with the weights of the catalog's first decoder, as somebody serves them."""
    engine.load(make_served_decoder("llama", dtype))
    return engine


def ask(
    cache: Path,
    engine: PlainEngine,
    ops: Iterable[str],
    manners: Manners | None = None,
    dtype: str = "float32",
    variant: str = "llama",
    **options: object,
) -> dict[str, Row]:
    """Rows by op of a server around an engine."""
    with serve(load(engine, dtype), manners) as address:
        spec = BackendSpec.parse("served", like="endpoint-cpu", options={"endpoint": address, **options})
        groups = [Group(f"engine:{op}", variant, dtype, 1, check=catalog.CHECK) for op in ops]
        return {row.op.partition(":")[2]: row for row in judge_backend(spec.create(), groups, cache)}


def test_logits_that_are_no_numbers_are_no_answer() -> None:
    """NaN of an engine that gives logarithms is a token of which nothing is said; among logits it is a wrong one."""

    class Broken(PlainEngine):
        def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
            logits = np.array(super().decode(sequences, tokens))
            logits[:, 5] = np.nan
            return logits

    (answer,) = ask_engine(load(Broken()), [[7, 8, 9]], 3, DECODER.vocabulary)
    margins = measure_greedy_margins(make_served_decoder("llama", "float32"), [7, 8, 9], answer)
    assert margins[0] < 1 and np.isinf(margins[1:]).all()


def test_a_token_that_is_certain_has_a_unit() -> None:
    one, other = (EngineAnswer((3,), np.array([[np.nan, np.nan, np.nan, x]])) for x in (0.0, -1e-7))
    assert (
        measure_answer_distances([one], [one], 0, "float32") == 0
        and 0 < measure_answer_distances([one], [other], 0, "float32") < 2
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_server_passes(dtype: str, cache: Path) -> None:
    asked = ["float64", "recomputed", "padded_left", "prefix_reused", "speculative", "greedy"]
    rows = ask(cache, PlainEngine(), asked, dtype=dtype)
    assert {op: row.status for op, row in rows.items()} == dict.fromkeys(asked, "pass"), rows
    assert all(row.error_units is not None and row.error_units < 3 for row in rows.values())


@pytest.mark.parametrize(
    ("engine", "op"),
    [
        (zoo.PaddingAttended, "padded_left"),
        (zoo.PrefixOneShort, "recomputed"),
        (zoo.StaleSlot, "cropped"),
        (zoo.QueriesOutOfOrder, "float64"),
    ],
)
def test_a_servers_fault_is_found_by_its_relation(engine: type[PlainEngine], op: str, cache: Path) -> None:
    (row,) = ask(cache, engine(), [op]).values()
    assert row.status == "wrong" and "first in token" in (row.error or ""), row


def test_tokens_that_a_server_chooses_are_held_to_float64(cache: Path) -> None:
    (row,) = ask(cache, zoo.QueriesOutOfOrder(), ["greedy"]).values()
    assert (row.status, row.kind) == ("wrong", "numbers")
    assert "tokens that float64 would not choose" in (row.error or "")


def test_a_wrong_temperature_is_found_by_what_is_drawn(cache: Path) -> None:
    rows = ask(cache, PlainEngine(), ["sampling"], variant="hot_top_p")
    assert rows["sampling"].status == "pass", rows
    rows = ask(cache, PlainEngine(), ["sampling"], Manners(hot=1.05), variant="hot_top_p")
    assert (rows["sampling"].status, rows["sampling"].kind) == ("wrong", "distribution")


def test_logarithms_of_some_tokens_are_held_to_those(cache: Path) -> None:
    rows = ask(cache, PlainEngine(), ["float64", "padded_left"], Manners(most=20))
    assert {row.status for row in rows.values()} == {"pass"}
    rows = ask(cache, zoo.PaddingAttended(), ["padded_left"], Manners(most=20))
    assert rows["padded_left"].status == "wrong"


def test_logarithms_in_the_form_of_chats_are_read(cache: Path) -> None:
    """As llama.cpp's server gives them, which echoes no prompt."""
    llama_cpp = Manners(as_chat=True, echoes=False)
    rows = ask(cache, PlainEngine(), ["float64", "padded_left", "greedy"], llama_cpp)
    assert {op: row.status for op, row in rows.items()} == dict.fromkeys(rows, "pass"), rows
    rows = ask(cache, zoo.PaddingAttended(), ["padded_left"], llama_cpp)
    assert rows["padded_left"].status == "wrong"


def test_logprobs_of_chats_in_another_form_are_not_supported() -> None:
    step = {"id": 3, "top_logprobs": [{"id": 3, "logprob": None}, {"token": "t4", "logprob": -1}]}
    assert endpoint._read_logprobs({"content": [step]}) == {
        "tokens": ["token_id:3"],
        "top_logprobs": [{"token_id:3": -np.inf, "t4": -1.0}],
    }
    for top in ({"id": 3}, {"logprob": -1.0}, {"id": 3, "logprob": [1]}, {"id": 3, "logprob": "x"}, "t3"):
        with pytest.raises(Unsupported, match="not of the form of OpenAI's chats"):
            endpoint._read_logprobs({"content": [{"id": 3, "top_logprobs": [top]}]})


def test_a_decoder_with_a_window_is_no_file_for_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "w.gguf"
    monkeypatch.setattr("sys.argv", ["checkpoint_of_decoder", str(file), "--decoder", "window"])
    with pytest.raises(SystemExit) as ended:
        checkpoint_of_decoder.main()
    assert ended.value.code == 2 and "llama.cpp's Llama has no window" in capsys.readouterr().err
    assert not file.parent.exists()


def test_the_folder_of_a_file_for_llama_cpp_is_made(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    save_gguf(make_served_decoder("llama", "float32"), tmp_path / "new" / "made.gguf")
    assert (tmp_path / "new" / "made.gguf").stat().st_size > 1000


@pytest.mark.parametrize("name", ["L.9", "L.x", "Mine.0", "nothing", ""])
def test_a_class_that_is_not_there_is_unavailable(name: str, tmp_path: Path) -> None:
    (tmp_path / "e.py").write_text("L = [1]\nclass Mine: pass\n")
    with pytest.raises(Unavailable, match="e.py"):
        OwnEngine("mine", "cpu", {})._find_class(f"{tmp_path}/e.py:{name}")


def test_a_module_that_raises_anything_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_engine.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("broken_engine:Mine", f"{tmp_path}/broken_engine.py:Mine"):
        with pytest.raises(Unavailable, match="division by zero"):
            OwnEngine("mine", "cpu", {})._find_class(name)


def ask_unknown(cache: Path, engine: PlainEngine, ways: Iterable[str], manners: Manners) -> dict[str, Row]:
    """Rows by way of a server of which nobody has the weights."""
    with serve(load(engine), manners) as address:
        options = {"endpoint": address, "decoder": "unknown"}
        spec = BackendSpec.parse("served", like="endpoint-cpu", options=options)
        groups = [Group("engine:own_answers", way, "float32", 1, check=catalog.CHECK) for way in ways]
        groups.append(Group("engine:float64", "llama", "float32", 1, check=catalog.CHECK))
        return dict(zip([*ways, "float64"], judge_backend(spec.create(), groups, cache)))


def test_a_server_whose_weights_nobody_has_is_held_to_its_own_answers(cache: Path) -> None:
    manners = Manners()
    rows = ask_unknown(cache, PlainEngine(), WAYS, manners)
    other = rows.pop("float64")
    assert {way: row.status for way, row in rows.items()} == dict.fromkeys(WAYS, "pass"), rows
    assert other.status == "unsupported" and "only its own answers are judged" in (other.error or "")
    # A token at a time, one way alone takes 96.
    assert manners.asked <= 30


@pytest.mark.parametrize(
    ("engine", "way"),
    [
        (zoo.PaddingAttended, "batched"),
        (zoo.PrefixOneShort, "resumed"),
        (zoo.RotatedTwice, "recomputed"),
        (zoo.CoarseOnceWarm, "again"),
    ],
)
def test_a_fault_of_a_server_whose_weights_nobody_has_is_found(
    engine: type[PlainEngine], way: str, cache: Path
) -> None:
    row = ask_unknown(cache, engine(), [way], Manners())[way]
    assert (row.status, row.kind) == ("wrong", "relation"), row
    assert "answers otherwise than it does to each prompt alone" in (row.error or "")


def test_a_unit_of_own_answers_is_what_another_way_does_and_is_bounded() -> None:
    def count(**levels: float) -> dict[str, float]:
        found = {way: np.full((1, 2), level) for way, level in levels.items()}
        return {way: float(count_answer_units(way, found, "bfloat16").max()) for way in levels}

    # Rounding of a deep network: all ways are off alike, and one that is not does not say otherwise.
    assert max(count(again=0, recomputed=9, batched=12, permuted=14).values()) < 2
    assert count(again=0, recomputed=9, batched=120)["batched"] > 12
    # Every way is off by more than rounding can do.
    assert min(count(again=200, recomputed=200, batched=200).values()) > 12


def test_answers_that_are_named_by_text_are_not_given_back(cache: Path) -> None:
    rows = ask_unknown(cache, PlainEngine(), WAYS, Manners(by_text=True))
    unsupported = {way for way, row in rows.items() if row.status == "unsupported"}
    assert unsupported == {"recomputed", "resumed", "float64"}
    assert "names tokens by their text alone" in (rows["resumed"].error or "")


@pytest.mark.parametrize(
    ("manners", "status", "said"),
    [
        (Manners(busy=2), "pass", ""),
        (Manners(busy=10_000), "error", "answers 4 times HTTP 429: "),
        (Manners(status=500), "error", "answers HTTP 500: "),
        (Manners(status=400), "unsupported", "refuses: "),
        (Manners(silent=True), "unsupported", "gives no logprobs: start the server so that completions have them"),
        (Manners(wait_s=2.0), "error", "did not answer in 1 s (option timeout_s)"),
    ],
)
def test_what_a_server_does_not_answer_is_said_in_a_line(manners: Manners, status: str, said: str, cache: Path) -> None:
    (row,) = ask(cache, PlainEngine(), ["float64"], manners, timeout_s=1 if manners.wait_s else 60).values()
    assert row.status == status, row
    assert said in (row.error or "") and "\n" not in (row.error or "")


def test_a_server_that_echoes_no_prompt_is_asked_the_rest(cache: Path) -> None:
    rows = ask(cache, PlainEngine(), ["float64", "recomputed"], Manners(echoes=False))
    assert rows["float64"].status == "pass"
    assert rows["recomputed"].status == "unsupported" and "does it echo prompts?" in (rows["recomputed"].error or "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "endpoint is no address, such as http://localhost:8000/v1"),
        ({"endpoint": "http://127.0.0.1:9/v1"}, "nobody answers at http://127.0.0.1:9/v1 .*: is the server up"),
        ({"endpoint": "http://127.0.0.1:9/v1", "decoder": "gpt"}, "decoder: 'gpt' is none of llama, window"),
    ],
)
def test_a_server_that_is_not_there_is_said_in_a_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        BackendSpec.parse("served", like="endpoint-cpu", options=options).create().start()


def test_a_dead_server_is_a_grey_column_and_the_run_goes_on(tmp_path: Path) -> None:
    dead = {"name": "dead", "like": "endpoint-cpu", "options": {"endpoint": "http://127.0.0.1:9/v1"}}
    catalogs = [{"name": "engine", "ops": ["float64.llama"], "samples": 1}]
    config = {"checks": ["serving"], "dtypes": ["float32"], "catalogs": catalogs, "backends": [dead, "engine-cpu"]}
    path = tmp_path / "engines.yaml"
    path.write_text(json.dumps(config))
    done = here(path, "--on", "inline", "--results", tmp_path / "lake")
    rows = pd.read_parquet(tmp_path / "lake")
    assert {x.backend: x.status for x in rows.itertuples()} == {"engine-cpu": "pass"}
    assert "nobody answers at http://127.0.0.1:9/v1" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("1 / 0\nclass Mine: pass\n", FOUND, "mine.py:1: cannot be imported: ZeroDivisionError"),
        ("class Mine: pass\n", FOUND, "lacks load, prefill"),
        ("class Other: pass\n", BAD_INPUT, "there is no 'Mine' in it"),
        ("class Mine(:\n", BAD_INPUT, "mine.py:1: "),
    ],
)
def test_an_engine_of_ones_own_that_cannot_be_used_is_no_success(
    source: str, code: int, said: str, tmp_path: Path
) -> None:
    """As a model of one's own, though the other backends pass."""
    (tmp_path / "mine.py").write_text(source)
    mine = {"name": "mine", "like": "engine-cpu", "options": {"class": "mine.py:Mine"}}
    catalogs = [{"name": "engine", "ops": ["float64.llama"], "samples": 1}]
    config = {"checks": ["serving"], "dtypes": ["float32"], "catalogs": catalogs, "backends": [mine, "engine-cpu"]}
    (path := tmp_path / "engines.yaml").write_text(json.dumps(config))
    done = here(path, "--on", "inline", "--results", tmp_path / "lake")
    assert done.returncode == code and said in done.stdout + done.stderr, done


def test_another_decoder_is_not_asked() -> None:
    engine = EndpointEngine("http://127.0.0.1:9/v1", DECODER)
    with pytest.raises(Unsupported, match="another decoder is served there"):
        engine.load(ServedModel(catalog.DECODERS["window"], "float32", {}))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm-cuda", "vllm is not installed here; give the backend the interpreter"),
        ("sglang-cuda", "sglang is not installed here; give the backend the interpreter"),
        ("tensorrtllm-cuda", "tensorrt_llm is not installed here; give the backend the interpreter"),
        ("llamacpp-cpu", r"not installed here; pip install llama-cpp-python gguf"),
    ],
)
def test_an_engine_that_is_not_installed_is_said_with_the_fix(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=said):
        BackendSpec.parse(name).create().probe()


def test_llama_cpp_keeps_the_relations_that_it_has(cache: Path) -> None:
    pytest.importorskip("llama_cpp")
    asked = ["float64", "recomputed", "padded_left", "prefix_reused", "preempted", "greedy"]
    groups = [Group(f"engine:{op}", "llama", "float32", 1, check=catalog.CHECK) for op in asked]
    rows = list(judge_backend(BackendSpec.parse("llamacpp-cpu").create(), groups, cache))
    assert {row.op: row.status for row in rows} == {f"engine:{op}": "pass" for op in asked}
    fused = BackendSpec.parse("fused", like="llamacpp-cpu", options={"flash": "on"}).create()
    (row,) = judge_backend(fused, groups[:1], cache)
    assert row.status == "wrong" and (row.error_units or 0) > 100
