"""A site over many nights: the regression and the flaky backend can be read off it, pages link, and bad lakes cost a line."""

from __future__ import annotations

import datetime
import html
import html.parser
import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pandas as pd
import pyarrow as pa
import pytest
import quickjs

from farm import lake
from farm.commands import report, site
from farm.report import summaries
from farm.report.faces import site as faces_site
from farm.report.faces.site import render_site_pages
from farm.report.faces.site_defects import SiteMinimal
from farm.report.faces.strip import StripBar, draw_badge, draw_failure_bars, draw_outcome_strip, draw_sparkline
from farm.report.tables.overview import make_rate_columns
from farm.report.tables.trends import (
    RunTrends,
    count_failing_runs,
    find_trend_changes,
    list_outcome_stretches,
    summarise_run_rows,
)
from farm.report.tables.view import Report, ViewColumn
from farm.work.launch import run_id_at
from tasks.model.row import Row
from tests.bench import nights
from tests.bench.nights import Planted

DOM = (Path(__file__).parent / "dom.js").read_text()
DAY = datetime.timedelta(days=1)
RECORD: dict[str, Any] = {
    "name": "nightly",
    "config": {"known_failures": [], "backends": []},
    "inventory": {"backends": {}},
}


def source() -> pa.Table:
    batches = [
        lake.make_row_batch(
            [
                Row(
                    catalog="torch",
                    op=f"torch:{op}",
                    dtype="float32",
                    sample=s,
                    status="pass",
                    started_at=1.5,
                    error_units=0.5,
                )
                for op in ("abs", "a<b>", "gelu")
                for s in range(3)
            ],
            lake.Origin("", backend, "Vendor & Sons", "CPU"),
        )
        for backend in ("good-cpu", "flaky-cpu")
    ]
    return pa.Table.from_batches(batches)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("many")
    planted = (Planted("good-cpu", "torch:gelu", 7), Planted("flaky-cpu", flaky=0.1))
    list(nights.write(lake.open_lake(where), source(), RECORD, 10, planted))
    return where


@pytest.fixture(scope="module")
def made(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    assert site.main([str(out), str(many)]) == 0
    return out


def page(made: Path, folder: str, name: str) -> str:
    (path,) = (made / folder).glob(f"{name}-*.html")
    return path.read_text()


class Links(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in given if name in ("href", "src") and value]


def test_every_page_is_there_and_every_link_leads_to_one(made: Path) -> None:
    pages = list(made.rglob("*.html"))
    assert len(pages) >= 1 + 2 + 3
    for one in pages:
        text = one.read_text()
        assert "a<b>" not in text and "<script>" not in text  # nothing of a lake is code
        assert re.findall(r"<script[^>]*>", text) == [
            f'<script src="{"../" * (one.parent != made)}{name}.js" defer>' for name in ("names", "site")
        ]
        for link in Links(text).found:
            if not link.startswith(("#", "data:")):
                assert (one.parent / link).resolve().is_file(), (one, link)
        reached = {(one.parent / link).resolve() for link in Links(text).found}
        assert one.name == "index.html" or made / "index.html" in reached


def test_a_long_table_goes_on_in_pages_that_lead_to_one_another(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faces_site, "LINES", 2)
    told = dict(
        render_site_pages(
            RunTrends.of(
                [summarise_run_rows(lake.read(many, run), lake.read_run(many, run)) for run in lake.run_ids(many)]
            )
        )
    )
    assert list(told)[-1] == "index.html" and {"index-ops-2.html", "index-runs-5.html"} < set(told)
    assert "Ops, worst first: 3 ops" in told["index-ops-2.html"] and "torch:gelu" in told["index.html"]
    for path, text in told.items():
        for link in Links(text).found:
            if not link.startswith(("#", "data:")):
                assert posixpath.normpath(f"{posixpath.dirname(path)}/{link.partition('#')[0]}").lstrip("/") in told


def test_the_regression_is_told_with_its_night(made: Path) -> None:
    told = page(made, "backend", "good-cpu")
    assert "2025-01-08" in told and "regression" in told
    assert "wrong 2025-01-08 to 2025-01-10 (3 runs)" in told
    front = (made / "index.html").read_text()
    stayed, _, rest = front.partition("Flaky: ")
    assert "regression" in stayed and "torch:gelu" in stayed and "flaky-cpu" in rest
    assert "good-cpu" in front and "Vendor &amp; Sons" in front
    (picture,) = made.glob("badge-nightly-*.svg")
    assert "nightly" in picture.read_text()


def test_the_gate_and_the_release_that_closed_it_are_told() -> None:
    """Of a config with a gate its state night by night; of a change the runtime's versions before and after."""
    rows = source().to_pandas().query("backend == 'good-cpu'")
    record = RECORD | {"config": RECORD["config"] | {"gate": {"new": 0}}, "finished_at": "x"}
    every, earlier = [], None
    for at, (version, status) in enumerate((("1.0", "pass"), ("1.0", "pass"), ("1.1", "wrong"))):
        mine = rows.assign(run_id=str(at), runtime_version=version, status=status)
        run = {**record, "run_id": str(at), "started_at": f"2025-01-0{at + 1}", "planned": len(mine)}
        every.append(summarise_run_rows(mine, run, earlier))
        earlier = mine, run
    assert [one.facts["gate"] for one in every] == ["open", "open", "closed"]
    told = dict(render_site_pages(RunTrends.of(every)))
    front = told["index.html"]
    assert "gate CLOSED: 3 cells with new failures" in front and "1.0 → 1.1" in front and "1 of 3" in front
    assert "open 2025-01-01 to 2025-01-02 (2 runs)" in front and "closed 2025-01-03 (1 run)" in front
    mine = next(text for path, text in told.items() if path.startswith("backend/"))
    assert "Versions of its runtime" in mine and "1.0 → 1.1" in mine
    bare = RunTrends.of([summarise_run_rows(rows, {**RECORD, "run_id": "r"})])
    assert "Gates" not in dict(render_site_pages(bare))["index.html"]


def test_a_flaky_square_is_told_by_how_often_it_turned(many: Path) -> None:
    every = [summarise_run_rows(lake.read(many, run), lake.read_run(many, run)) for run in lake.run_ids(many)]
    trends = RunTrends.of(every[::-1])
    assert [n.facts["run_id"] for n in trends.runs] == lake.run_ids(many)
    turned = {
        (line.label, line.backend): (
            count_failing_runs(trends.series(at)),
            trends.runs[trends.series(at)[-1].first].began[:10],
        )
        for at, line in enumerate(trends.squares.itertuples())
    }
    assert turned["torch:gelu", "good-cpu"] == ((3, 1, 0), "2025-01-08")
    assert turned["torch:abs", "good-cpu"] == ((0, 0, 0), "2025-01-01")
    assert max(times for (_, backend), ((_, times, _), _) in turned.items() if backend == "flaky-cpu") > 1
    found = find_trend_changes(trends)
    regressed = found[(found["backend"] == "good-cpu") & (found["change"] == "regression")]
    assert regressed[["run", "label"]].to_numpy().tolist() == [[7, "torch:gelu"]]
    assert int(trends.sums("backend").loc[(9, "good-cpu"), "failed"]) == 3


def test_modes_of_one_code_count_once_for_their_vendor() -> None:
    """By the worst outcome, as the report of a run counts; two backends that run other code count twice."""
    rows = source().to_pandas().query("op == 'torch:abs' and sample == 0").assign(run_id="r", status="wrong")
    for like, failed in (("good-cpu", 1), ("", 2)):
        config = {"backends": [{"name": "good-cpu"}, {"name": "flaky-cpu", "like": like}]}
        trends = RunTrends.of([summarise_run_rows(rows, {"run_id": "r", "config": config})])
        assert trends.once()["failed"].sum() == failed and trends.squares["failed"].sum() == 2


def test_failures_of_a_series_are_counted_with_how_they_end() -> None:
    def counted(text: str) -> tuple[int, int, int]:
        return count_failing_runs(
            list_outcome_stretches((at, {"p": "pass", "w": "wrong"}[x]) for at, x in enumerate(text))
        )

    assert counted("ppww") == (2, 1, 0) and counted("ppwp") == (1, 1, 1) and counted("pwpw") == (2, 2, 1)
    assert counted("wwpp") == (2, 0, 0) and counted("p") == (0, 0, 0) and counted("pwwpp") == (2, 1, 0)


def test_a_kept_summary_tells_what_the_rows_do_until_they_change(tmp_path: Path, capsys: Any) -> None:
    opened = lake.open_lake(tmp_path / "lake")
    (run,) = nights.write(opened, source(), RECORD, 1)
    assert summaries.read_run_summary(opened, run) is None
    texts = []
    for out in ("first", "again"):
        assert site.main([str(tmp_path / out), opened.root]) == 0
        texts.append({one.name: one.read_bytes() for one in (tmp_path / out).rglob("*.*")})
        told = summaries.read_run_summary(opened, run)
        assert told is not None and told.facts["rows"] == 18 and told.facts["results"] == opened.uri
    assert texts[0] == texts[1]
    assert len(lake.read(opened, run)) == 18 and len(pd.read_parquet(opened.root)) == 18
    began = nights.FIRST - DAY
    earlier = nights.keep(opened, nights.moved(source(), run_id_at(began), began), RECORD, began)
    assert earlier < run and summaries.read_run_summary(opened, run) is None, "it would be compared with another run"
    assert site.main([str(tmp_path / "other"), opened.root]) == 0
    told = summaries.read_run_summary(opened, run)
    assert told is not None and told.facts["since"] == earlier
    shutil.rmtree(opened.path(earlier))
    assert summaries.read_run_summary(opened, run) is None and site.main([str(tmp_path / "gone"), opened.root]) == 0
    assert summaries.read_run_summary(opened, run) is not None
    lake.append_part(opened, run, [source().to_batches()[0].slice(0, 1)])
    assert summaries.read_run_summary(opened, run) is None, "its rows are others"
    lake.write_run_record(opened, run, {**RECORD, "run_id": run})
    assert site.main([str(tmp_path / "third"), opened.root]) == 0
    assert summaries.read_run_summary(opened, run) is None, "it has not ended"
    Path(opened.path(run, "_summary.parquet")).write_bytes(b"PAR1")
    assert site.main([str(tmp_path / "fourth"), opened.root]) == 0 and not capsys.readouterr().err


def test_two_lakes_the_newest_runs_and_one_config(many: Path, tmp_path: Path, capsys: Any) -> None:
    list(nights.write(lake.open_lake(tmp_path / "other"), source(), {**RECORD, "name": "else"}, 3, hours=1.0))
    assert site.main([str(tmp_path / "a"), str(many), str(tmp_path / "other"), "--last", "2"]) == 0
    assert "files of 4 runs" in capsys.readouterr().out
    assert site.main([str(tmp_path / "b"), str(many), str(tmp_path / "other"), "--config", "else"]) == 0
    assert "files of 3 runs" in capsys.readouterr().out
    assert len(list((tmp_path / "a").glob("badge-*"))) == 2


def test_what_cannot_be_shown_costs_a_line(many: Path, tmp_path: Path, capsys: Any) -> None:
    assert site.main([str(tmp_path / "out"), str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert site.main([str(tmp_path / "out"), str(many), "--config", "none"]) == 2
    assert "no runs of config none" in (said := capsys.readouterr().err) and "nightly" in said
    opened = lake.open_lake(tmp_path / "odd")
    list(nights.write(opened, source(), RECORD, 2))
    first, second = lake.run_ids(opened)
    Path(opened.path(first, "_run.json")).unlink()
    Path(opened.path(second, "part-x.parquet")).write_bytes(b"PAR1")
    capsys.readouterr()
    assert site.main([str(tmp_path / "out"), str(tmp_path / "odd")]) == 0
    said = capsys.readouterr()
    days = [one.began[:10] for one in map(summarise_run_rows, [lake.read(opened, first)], [{"run_id": first}])]
    assert days == ["2025-01-01"]  # as its id says
    assert said.err.count("warning: ") == 2 == said.err.count("\n") and "of 2 runs" in said.out
    assert site.main([str(tmp_path / "out"), str(many), str(many), "--last", "2"]) == 0
    said = capsys.readouterr()
    assert said.err.count("is also in") == 2 and "of 2 runs" in said.out
    (tmp_path / "bare").mkdir()
    assert site.main([str(tmp_path / "out"), str(many), str(tmp_path / "bare"), str(tmp_path / "typo")]) == 0
    bare, typo = capsys.readouterr().err.splitlines()
    assert f"no runs in '{tmp_path}/bare': it has no folder run=…" in bare and "typo': there is no such place" in typo
    (tmp_path / "file").write_text("")
    assert site.main([str(tmp_path / "file"), str(many), "--last", "1"]) == 2


def test_pictures_escape_what_they_say() -> None:
    hostile = StripBar("<b>", "<b>", 3, 1)
    drawn = (
        draw_outcome_strip([("pass", 2, "<b>"), ("wrong", 1, "x")])
        + draw_failure_bars([hostile], "<b>")
        + draw_badge("<b>", "&", "ok")
    )
    assert "<b>" not in drawn
    assert 'height="2.0"' in draw_failure_bars([StripBar("a day", "one of thousands", 5000, 1)], "failures")
    assert draw_failure_bars([], "failures") and draw_outcome_strip([("pass", 1, "once")]).count("<rect") == 1
    assert draw_sparkline((0, -1, 3)).count("M") == 2 and "0, –, 3" in draw_sparkline((0, -1, 3))


def test_a_chart_has_axes_ticks_that_differ_and_thin_bars_for_few_runs() -> None:
    two = draw_failure_bars(
        [StripBar("2025-01-01 00:10", "one", 0, 0), StripBar("2025-01-01 00:15", "two", 4, 1)], "failures"
    )
    assert ">failures<" in two and ">runs by their start (UTC)<" in two
    assert [two.count(f">{tick}</text>") for tick in range(5)] == [1] * 5
    assert two.count(">2025-01-01 00:10</text>") == two.count(">2025-01-01 00:15</text>") == 1
    wide = [float(one) for one in re.findall(r'<rect[^>]* width="([0-9.]+)"', two)]
    assert len(wide) == 3 and max(wide) <= 18
    year = draw_failure_bars([StripBar(f"day {at}", "x", at * 7, 0) for at in range(120)], "failures")
    assert year.count(">day ") == 3 and ">500</text>" in year and ">1,000</text>" in year


def test_a_copied_run_is_said_once_and_the_others_are_summed_up_all_the_same(tmp_path: Path, capsys: Any) -> None:
    opened = lake.open_lake(tmp_path / "lake")
    runs = list(nights.write(opened, source(), RECORD, 2))
    shutil.copytree(opened.path(runs[0]), f"{opened.path(runs[0])} copy")
    with pytest.warns(lake.LakeWarning, match="is a copy of run") as said:
        assert site.main([str(tmp_path / "out"), opened.root]) == 0
    assert len(said) == 1 and not capsys.readouterr().err
    assert all(summaries.read_run_summary(opened, run) for run in runs)


def test_a_run_of_another_name_is_shown_once_and_said_once(tmp_path: Path, capsys: Any) -> None:
    opened = lake.open_lake(tmp_path / "lake")
    runs = list(nights.write(opened, source(), RECORD, 2))
    copy, renamed = "20250103-020000-aaaa", "20250104-020000-aaaa"
    shutil.copytree(opened.path(runs[0]), opened.path(copy))
    Path(opened.path(runs[1])).rename(opened.path(renamed))
    for kept in (False, True):
        assert (summaries.read_run_summary(opened, copy) is None) or kept
        assert site.main([str(tmp_path / "out"), opened.root]) == 0
        first, second = (said := capsys.readouterr()).err.splitlines()
        assert f"run={copy} holds run {runs[0]}, which is also in {opened.uri}/run={runs[0]};" in first
        assert (
            f"run={renamed} holds the rows of run {runs[1]}: a copy, or renamed" in second and "of 2 runs" in said.out
        )
    assert report.main([opened.root, "--run", copy, "--out", str(tmp_path / "report")]) == 0
    said = capsys.readouterr()
    assert said.err.count("warning") == 1 and f"holds the rows of run {runs[0]}" in said.err
    assert "could not be read" not in said.out


def test_somebody_elses_page_is_not_written_over(many: Path, tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "index.html"
    page.write_text("<title>Holidays</title>")
    assert site.main([str(tmp_path), str(many), "--last", "1"]) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}: its index.html is not a farm site and was kept; choose another place\n"
    )
    assert page.read_text() == "<title>Holidays</title>" and len(list(tmp_path.iterdir())) == 1
    page.unlink()
    for _ in range(2):
        assert site.main([str(tmp_path), str(many), "--last", "1"]) == 0


def test_the_last_night_of_a_flaky_backend_is_said_to_be_of_one() -> None:
    """Of a backend of which five ops came and went; what breaks on a sound one that night is a regression and no
    more."""
    rows = source().to_pandas().query("op == 'torch:abs' and sample == 0")
    every, earlier = [], None
    for at in range(4):
        made = [rows.assign(op=f"torch:op{n}", case_id=f"case{n}") for n in range(6)]
        mine = pd.concat(made).assign(run_id=str(at), status="pass")
        flaky = (mine["backend"] == "flaky-cpu") & (mine["op"] != "torch:op5") & (at == 1)
        mine.loc[flaky | ((mine["op"] == "torch:op5") & (at == 3)), "status"] = "wrong"
        run = {**RECORD, "run_id": str(at), "started_at": f"2025-01-0{at + 1}"}
        every.append(summarise_run_rows(mine, run, earlier))
        earlier = mine, run
    for nights_told, said in ((every, 1), (every[2:], 0)):
        front = dict(render_site_pages(RunTrends.of(nights_told)))["index.html"]
        stayed = front.partition("Changes that stayed")[2].partition("</table>")[0]
        assert stayed.count("regression, of a flaky backend") == said and stayed.count("regression") == 2


HOSTILE = "</script><img src=x onerror=alert(1)>"


def failing(**more: Any) -> pd.DataFrame:
    """Rows of which one op fails on one backend, in numbers, and is imprecise on the other."""
    rows = source().to_pandas().assign(run_id="r", runtime_version="1.2", farm_version="1.0+gabc", variant="")
    mine = (rows["op"] == "torch:gelu") & (rows["backend"] == "good-cpu")
    rows.loc[mine, ["status", "kind", "error_units", "max_diff", "limit"]] = ["wrong", "numbers", 40.0, 0.25, 8.0]
    rows.loc[mine, "worst"] = "1.5 for 1.25, at 3"
    rows.loc[mine, "case_id"] = [f"forward/torch:gelu/float32/{n}" for n in range(int(mine.sum()))]
    rows.loc[(rows["op"] == "torch:gelu") & ~mine, "status"] = "imprecise"
    return rows.assign(**more)


def run_of(at: int, **more: Any) -> dict[str, Any]:
    return {**RECORD, "run_id": f"r{at}", "started_at": f"2025-01-01T00:{at:02}:00", "finished_at": "x", **more}


LISTED = {
    "config": {"known_failures": [{"op": "torch:none", "reason": "elsewhere", "status": "crash"}], "backends": []}
}


def told_of(runs: list[Any], minimal: tuple[SiteMinimal, ...] = ()) -> dict[str, str]:
    return dict(render_site_pages(RunTrends.of(runs), minimal))


def one_page(told: dict[str, str], begin: str) -> str:
    (text,) = (html.unescape(text) for path, text in told.items() if path.startswith(begin))
    return text


def test_a_defects_page_says_what_it_is_where_since_when_and_how_to_see_it() -> None:
    sound = summarise_run_rows(source().to_pandas().assign(run_id="r0", runtime_version="1.1"), run_of(0, **LISTED))
    broken = summarise_run_rows(failing(run_id="r5"), run_of(5, **LISTED))
    told = told_of([sound, broken])
    text = one_page(told, "defect/numbers-gelu")
    assert "torch:gelu of float32 on good-cpu: wrong. Worst case: numbers; 40 units, limit 8" in text
    assert "New: no known failure covers it." in text
    assert "1.5 for 1.25, at 3" in text and ">40 units, limit 8<" in text and ">0.25<" in text
    assert "farm reproduce 'r5:forward/torch:gelu/float32/0:good-cpu'" in text
    assert "farm minimise 'r5:forward/torch:gelu/float32/0:good-cpu'" in text
    assert "1 of 2 runs" in text and "2025-01-01 00:05: 3 rows" in text and "2025-01-01 00:00: not seen" in text
    assert "good-cpu 1.2" in text and "3 rows, 3 cases" in text
    there = [link for link in Links(text).found if link.startswith("../")]
    assert {link.split("/")[1] for link in there} >= {"op", "backend", "index.html"}
    for folder, name in (("op", "torch-gelu"), ("backend", "good-cpu")):
        back = one_page(told, f"{folder}/{name}")
        assert any(link.startswith("../defect/numbers-gelu") for link in Links(back).found), "and back"


def test_a_defect_of_two_configs_is_shown_as_the_newest_run_of_each_has_it() -> None:
    """A later run of another config hides neither that it is new in the first nor where."""
    new = summarise_run_rows(failing(run_id="r5"), run_of(5, **LISTED))
    elsewhere = failing(run_id="r6")
    elsewhere["backend"] = elsewhere["backend"].replace("good-cpu", "other-cpu")
    other = summarise_run_rows(elsewhere, run_of(6, name="other"))
    text = one_page(told_of([new, other]), "defect/numbers-gelu")
    assert "New: no known failure covers it." in text and "6 rows, 6 cases" in text
    assert "farm reproduce 'r5:forward/torch:gelu/float32/0:good-cpu'" in text
    assert "torch:gelu of float32 on good-cpu and other-cpu: wrong" in text
    mended = source().to_pandas().assign(run_id="r7", runtime_version="1.3")
    text = one_page(told_of([new, other, summarise_run_rows(mended, run_of(7, **LISTED))]), "defect/numbers-gelu")
    assert "torch:gelu of float32 on other-cpu: wrong" in text and "3 rows, 3 cases" in text


def test_a_defects_page_shows_the_minimal_case_that_its_lake_has() -> None:
    record = {
        "run_id": "r5",
        "case_id": "forward/torch:gelu/float32/1",
        "backend": "good-cpu",
        "op": "torch:gelu",
        "original": {"status": "wrong", "kind": "numbers", "op": "torch:gelu"},
        "inputs": [{"name": "x", "dtype": "float32", "shape": [1], "how": "as it was", "values": "[-8.0]"}],
        "expected": "0.5",
        "got": HOSTILE,
        "folder": "lake/run=r5/_minimal/abc",
    }
    made = [summarise_run_rows(failing(run_id="r5"), run_of(5))]
    told = told_of(made, (SiteMinimal(record, f"torch.gelu(x)  # {HOSTILE}"),))
    (raw,) = (text for path, text in told.items() if path.startswith("defect/"))
    assert HOSTILE not in raw and "torch.gelu(x)" in raw and "x float32 [1] [-8.0]" in raw
    assert "lake/run=r5/_minimal/abc" in raw and "farm minimise" not in raw
    other = {**record, "original": {**record["original"], "kind": "shape"}, "case_id": "forward/torch:gelu/float32/9"}
    (raw,) = (text for path, text in told_of(made, (SiteMinimal(other, "x"),)).items() if path.startswith("defect/"))
    assert "Minimal case" not in raw, "it is another defect's"


def test_failures_and_new_ones_are_those_of_the_verdict() -> None:
    """What is imprecise is no new failure, and nothing is new where nothing is listed; a page and the runs' table say
    one number."""
    bare, listed = (summarise_run_rows(failing(run_id="r1"), run_of(1, **more)) for more in ({}, LISTED))
    for one, new in ((bare, 0), (listed, 3)):
        assert one.facts["failures"] == 3 == int(one.squares["failures"].sum())
        assert one.facts["new"] == new == int(one.squares["new"].sum())
    front = told_of([bare])["index.html"]
    assert "3 failures; the config lists none as known" in front and ">new<" not in front
    assert ">new</th>" in told_of([listed])["index.html"]


def test_the_site_names_coverage_and_pass_rate_as_the_report_does() -> None:
    rows, run = failing(run_id="r1"), run_of(1)
    front = told_of([summarise_run_rows(rows, run)])["index.html"]
    view = next(one for one in Report.of(rows, run).views if one.name == "coverage")
    words = {one.words for one in view.columns if isinstance(one, ViewColumn)} & {
        one.words for one in make_rate_columns()
    }
    assert len(words) == 2 and all(f">{one}</th>" in front for one in words)
    for line in view.all_lines():
        for column in make_rate_columns():
            assert line["vendor"] and f">{column.cell(line)}</td>" in front
    assert ">judged<" not in front


def test_no_page_counts_nights(made: Path) -> None:
    for one in [*made.rglob("*.html"), *made.rglob("*.js")]:
        text = re.sub(r"nightly", "", one.read_text())  # the config's own name
        assert "night" not in text, one


def test_a_run_leads_to_its_report_where_it_lies_or_as_a_copy(tmp_path: Path, capsys: Any) -> None:
    opened = lake.open_lake(tmp_path / "a lake")
    runs = list(nights.write(opened, source(), RECORD, 2))
    report_page = Path(opened.path(runs[1], "_report/report.html"))
    report_page.parent.mkdir()
    report_page.write_text("the report")
    for more, name in (([], "beside"), (["--copy-reports"], "copied")):
        out = tmp_path / name
        assert site.main([str(out), opened.root, *more]) == 0
        assert ("1 report linked in the lake" in capsys.readouterr().out) == (not more)
        front = (out / "index.html").read_text()
        (to,) = [link for link in Links(front).found if "report" in link and not link.startswith("#")]
        assert (out / unquote(to)).read_text() == "the report"
        assert to.startswith("report/" if more else "../a%20lake/run=") or to.startswith("../a%20lake/run%3D")
    assert "2025-01-02" in front and runs[1] in front and "tests" not in front


def test_a_site_of_before_is_written_over(many: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<title>Validation, night by night</title>")
    assert site.main([str(tmp_path), str(many), "--last", "1"]) == 0


def test_the_search_finds_ops_backends_and_defects(made: Path) -> None:
    """In an engine without a browser; names of a lake are data, whatever they say."""
    rows = failing(run_id="r5").assign(op=lambda x: x["op"].replace({"torch:abs": f"torch:{HOSTILE}"}))
    told = told_of([summarise_run_rows(rows, run_of(5))])
    assert "<" not in told["names.js"] and HOSTILE not in told["index.html"]
    context = quickjs.Context()
    context.eval(DOM)
    context.eval(
        "document.body.dataset ??= {}; const search = document.createElement('div');"
        "document.getElementById = () => search; document.querySelectorAll = () => [];"
    )
    context.eval(told["names.js"].replace("const NAMES", "var NAMES"))
    context.eval(told["site.js"].partition("\n")[2])

    def found(typed: str) -> list[list[str]]:
        context.eval(f"search.children[0].value = {json.dumps(typed)}; search.children[0].fire('input')")
        return json.loads(
            context.eval(
                "JSON.stringify([...search.children[1].all()].filter((x) => x.tag === 'a')"
                ".map((x) => [x.textContent, x.attributes.href]))"
            )
        )

    names = found("gelu")
    assert [name for name, _ in names] == ["torch:gelu", "numbers: gelu"]
    assert all(to in told for _, to in names)
    assert [name for name, _ in found("backend cpu")] == ["flaky-cpu", "good-cpu"] and not found("nothing like it")
    assert [name for name, _ in found("onerror")] == [f"torch:{HOSTILE}"]


def test_the_first_page_of_many_runs_is_small(made: Path) -> None:
    assert (made / "index.html").stat().st_size < 100 * 1024
