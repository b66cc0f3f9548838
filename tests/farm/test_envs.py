"""Environments: built once by content, children started in them, failures in the installer's own words."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from farm.commands import run
from farm.exits import OK
from farm.fleet import envs, inventory, pip_settings
from farm.fleet.ask_backends import probe_backends
from farm.fleet.child_process import ChildProcess, Limits, link_tasks_folder
from farm.fleet.envs import EnvError, Environment
from farm.plan.config import ConfigError, load_config
from tasks import backends, wire
from tasks.backends import BUILT_IN, BackendSpec
from tasks.devices import BY_LABEL
from tasks.model import BackendInfo
from tests.conftest import ROOT, refusal_of


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip would find: `farm-fake-runtime` 1.0 and 2.0, one that contradicts itself, one for
    another machine."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version, needs in (
        ("farm_fake_runtime", "1.0", ""),
        ("farm_fake_runtime", "2.0", ""),
        ("farm_torn", "1.0", "farm-fake-runtime==2.0"),
        ("farm_elsewhere", "1.0", ""),
    ):
        info = f"{name}-{version}.dist-info"
        tag = "cp311-cp311-macosx_14_0_arm64" if name == "farm_elsewhere" else "py3-none-any"
        with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
            wheel.writestr(f"{name}.py", f"version = {version!r}\n")
            required = f"Requires-Dist: {needs}\n" if needs else ""
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{required}",
            )
            wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{folder} {os.environ.get('PIP_FIND_LINKS', '')}".strip())
    pip_settings.read_pip_settings.cache_clear()
    yield folder
    pip_settings.read_pip_settings.cache_clear()


def test_uv_has_pips_settings_also_before_anything_is_installed(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make setup` calls it: with nothing but uv, from a checkout."""
    monkeypatch.setenv("PIP_CERT", "/etc/own.pem")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    pip_settings.read_pip_settings.cache_clear()
    assert pip_settings.make_uv_environment()["SSL_CERT_FILE"] == "/etc/own.pem"
    code = "import os, runpy; os.execve = lambda *a: print(*a[1][1:], a[2]['UV_FIND_LINKS']); runpy.run_module('farm.fleet.pip_settings', run_name='__main__')"
    command = [sys.executable, "-S", "-c", code]  # -S: without site-packages
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert str(wheels) in done.stdout and done.stdout.startswith("-m uv")


def test_an_environment_holds_its_packages_and_nothing_of_the_farm(wheels: Path, tmp_path: Path) -> None:
    python = envs.build_environment(Environment(("farm-fake-runtime==1.0",)), tmp_path)
    code = "import farm_fake_runtime, numpy, ml_dtypes; print(farm_fake_runtime.version)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout == "1.0\n"
    code = (
        "import importlib.util as u, tasks.runner\nfrom tasks import backends\nfor p in backends.list_backends().values(): p.load()\n"
        "print([n for n in ('ray', 'torch', 'onnx', 'farm', 'pandas') if u.find_spec(n)])"
    )
    child = ChildProcess(str(python), Limits())
    assert child.ask(wire.Hello()) == wire.Ready()
    child.close()
    seen = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(link_tasks_folder())},
    )
    assert seen.stdout == "[]\n"


def test_two_versions_stand_side_by_side(wheels: Path, tmp_path: Path) -> None:
    old, new = (Environment((f"farm-fake-runtime=={v}",)) for v in ("1.0", "2.0"))
    assert envs.build_environment(old, tmp_path) != envs.build_environment(new, tmp_path)
    assert [e.record(tmp_path)["versions"]["farm-fake-runtime"] for e in (old, new)] == ["1.0", "2.0"]  # type: ignore[index]


def test_a_list_of_packages_is_built_once_whoever_asks(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = tmp_path / "uv.log", envs._find_uv_binary()
    wrapper = tmp_path / "uv"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {log}\nsleep 0.2\nexec {real} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(envs, "_find_uv_binary", lambda: str(wrapper))
    same = [Environment(p) for p in (("farm-fake-runtime==1.0", "numpy"), ("numpy", "farm-fake-runtime == 1.0"))] * 2
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pythons = set(pool.map(lambda e: envs.build_environment(e, tmp_path), same))
    assert len(pythons) == 1
    assert sum(" venv " in line for line in log.read_text().splitlines()) == 1


def test_what_a_killed_builder_left_is_built_anew(wheels: Path, tmp_path: Path) -> None:
    environment = Environment(("farm-fake-runtime==1.0",))
    (environment.path(tmp_path) / "bin").mkdir(parents=True)
    environment.interpreter(tmp_path).write_text("half")
    python = envs.build_environment(environment, tmp_path)
    assert subprocess.run([python, "-c", "import farm_fake_runtime"]).returncode == 0


def test_a_rebuilt_environment_has_the_versions_of_the_first(wheels: Path, tmp_path: Path) -> None:
    environment = Environment(("farm-fake-runtime",))
    (wheels / "farm_fake_runtime-2.0-py3-none-any.whl").rename(tmp_path / "later.whl")
    envs.build_environment(environment, tmp_path)
    (tmp_path / "later.whl").rename(wheels / "farm_fake_runtime-2.0-py3-none-any.whl")
    import shutil

    shutil.rmtree(environment.path(tmp_path))
    envs.build_environment(environment, tmp_path)
    assert environment.record(tmp_path)["versions"]["farm-fake-runtime"] == "1.0"  # type: ignore[index]


@pytest.mark.parametrize(
    "packages, python, words",
    [
        (("farm-no-such-package-at-all",), "", "farm-no-such-package-at-all"),
        (("farm-fake-runtime==1.0", "farm-torn"), "", "farm-fake-runtime"),
        (("farm-fake-runtime==7.0",), "", "7.0"),
        (("farm-fake-runtime",), "3.77", "3.77"),
        (("farm-fake-runtime==7.0",), "", "there are 2.0, 1.0. Name one of these"),
        (("farm-elsewhere",), "", "No wheel for this machine's processor and system"),
        (("farm-elsewhere",), "", "macosx_14_0_arm64"),
    ],
)
def test_a_build_that_fails_says_so_in_the_installers_words(
    wheels: Path, tmp_path: Path, packages: tuple[str, ...], python: str, words: str
) -> None:
    environment = Environment(packages, python)
    with pytest.raises(EnvError, match=r"cannot be built") as caught:
        envs.build_environment(environment, tmp_path)
    assert words in str(caught.value) and "\n" not in str(caught.value) and "Using Python" not in str(caught.value)
    assert not environment.path(tmp_path).exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/whl", "http://no-such-host.invalid/whl/cu130"])
def test_an_index_that_cannot_be_reached_is_one_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvError) as caught:
        envs.build_environment(Environment((f"--extra-index-url={url}", "farm-fake-runtime==1.0+cu130")), tmp_path)
    said = str(caught.value)
    assert f"the index {url} cannot be reached (" in said and "PIP_INDEX_URL" in said and "\n" not in said


def test_an_index_that_has_nothing_there_is_told_from_one_that_has_no_such_version(tmp_path: Path) -> None:
    """A server that answers 404, as one whose path is mistyped does: installers pass it over."""

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Nothing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"--extra-index-url=http://127.0.0.1:{server.server_port}/whl"
        with pytest.raises(EnvError, match="or the index that has it .*one that answers 404 is skipped") as caught:
            envs.build_environment(Environment((url, "farm-no-such-package==1.0")), tmp_path)
        server.shutdown()
    assert "\n" not in str(caught.value)


def test_an_installer_that_hangs_is_bounded_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "uv"
    wrapper.write_text("#!/bin/sh\nsleep 600\n")
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setattr(envs, "_find_uv_binary", lambda: str(wrapper))
    with pytest.raises(EnvError, match="hung"):
        envs.build_environment(Environment(("numpy",)), tmp_path, timeout_s=1)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(wrapper) in (p.info["cmdline"] or ())]
    assert list((tmp_path / "envs").glob("*/")) == []


def test_a_wait_for_another_builder_is_no_time_of_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(envs.time, "monotonic", lambda: now[0])

    @contextlib.contextmanager
    def held(path: Path, patience: envs.Patience) -> Iterator[None]:
        now[0] += 50
        assert patience.check()
        yield

    left: list[float] = []
    monkeypatch.setattr(envs, "_lock_environment_file", held)
    monkeypatch.setattr(
        envs, "_install_environment", lambda environment, cache, patience: left.append(patience.until - now[0])
    )
    envs.build_environment(Environment(("numpy",)), tmp_path, timeout_s=60)
    assert left == [60]


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(envs.fcntl, "flock", none)
    with pytest.raises(EnvError, match=r"without locks \(Function not implemented\).*-o flock.*FARM_CACHE"):
        envs.build_environment(Environment(("numpy",)), tmp_path)


def test_a_dry_run_builds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    config = tmp_path / "c.yaml"
    backend = "{like: torch-cpu, packages: [farm-no-such-package==1]}"
    config.write_text(f"catalogs: [{{name: planted, ops: [none]}}]\nbackends: [{backend}]\n")
    assert run.main([str(config), "--dry-run", "--results", str(tmp_path / "r")]) == OK
    said = capsys.readouterr().out
    assert inventory.UNBUILT in said and "unavailable" not in said
    assert "0 on available backends, 1 on awaited backends" in said and " 0 cases" not in said
    assert not (tmp_path / "cache" / "envs").exists()


def test_an_environment_that_fails_is_a_line_and_the_others_go_on(wheels: Path, tmp_path: Path) -> None:
    specs = [
        BackendSpec.parse("ort-cpu"),
        BackendSpec.parse("ort-cpu@0", like="ort-cpu", packages=["farm-no-such-package-at-all"]),
    ]
    answers = probe_backends(specs, tmp_path)
    assert isinstance(answers["ort-cpu"], BackendInfo)
    assert "farm-no-such-package-at-all" in refusal_of(answers["ort-cpu@0"])


@pytest.mark.parametrize("runtime", BUILT_IN)
def test_every_backend_says_who_ships_it_and_what_it_needs(runtime: str) -> None:
    from packaging.requirements import Requirement

    part = backends.list_backends()[runtime]
    for device in part.load().devices:
        made = BackendSpec(f"{runtime}-{device}", runtime, device).create()
        assert made.vendor and made.forms
        assert made.device_vendor in ("", *BY_LABEL)
        if made.device_vendor:
            assert made.resource == BY_LABEL[made.device_vendor].resource, device
        names = {Requirement(text).name for text in Environment(made.packages).requirements}
        if "onnx" in made.forms and names:  # a cause is looked for in graphs that say something else
            assert names & {"onnx", "rknn-toolkit2"}, device
        with pytest.raises(ValueError, match="nosuchoption"):
            BackendSpec(f"{runtime}-{device}", runtime, device, {"nosuchoption": 1}).create()


def test_a_config_names_packages_and_the_version_names_the_column(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    head = "catalogs: [critical]\nbackends:\n"
    file.write_text(head + '  - {like: ort-cpu, packages: ["onnxruntime==1.20.1", "numpy<2"], python: "3.10"}\n')
    spec = load_config(file).backends[0].spec()
    assert (spec.name, spec.packages, spec.python) == ("ort-cpu@1.20.1", ("onnxruntime==1.20.1", "numpy<2"), "3.10")
    made = envs.find_environment(spec)
    assert made and made.version == "3.10" and made.key != Environment(made.packages).key
    for bad, words in (
        ('  - {like: ort-cpu, packages: ["onnxruntime=1"]}\n', r"a\.yaml:3.*no pip requirement"),
        ("  - {name: x, like: ort-cpu, python: 3.10}\n", r"a\.yaml:3.*in quotes"),
        ('  - {like: ort-cpu, packages: ["onnxruntime"]}\n', r"a\.yaml:3.*name"),
    ):
        file.write_text(head + bad)
        with pytest.raises(ConfigError, match=words):
            load_config(file)


def test_the_command_lists_builds_and_removes(wheels: Path, tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    config.write_text(
        'catalogs: [critical]\nbackends:\n  - {name: old, like: ort-cpu, packages: ["farm-fake-runtime==1.0"]}\n'
    )

    def farm(*args: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"FARM_CACHE": str(tmp_path / "cache")}
        return subprocess.run([sys.executable, "-m", "farm.envs", *args], capture_output=True, text=True, env=env)

    first, again = farm("build", str(config)), farm("build", str(config))
    assert first.returncode == 0 and "built in" in first.stdout and "already built" in again.stdout
    key = first.stdout.split()[1]
    assert key in farm("list").stdout
    assert farm("remove", "nosuch").returncode == 2
    assert farm("remove", key).returncode == 0
    assert key not in farm("list").stdout
    assert farm("build", "ort-nosuch-device-of-no-runtime").returncode in (0, 2)
    assert farm("build", "nosuchruntime-cpu").returncode == 2


# --- what is here --------------------------------------------------------------------------------------------------


def test_an_interpreter_that_is_there_is_taken_as_it_is(wheels: Path, tmp_path: Path) -> None:
    """A backend's packages are not installed into it: whoever has a build of their own has put them there."""
    there = str(envs.build_environment(Environment(("farm-fake-runtime==1.0",)), tmp_path))
    spec = BackendSpec.parse("jax-cpu", python=there)
    found = envs.find_environment(spec)
    assert found is not None and found.existing and found.there(tmp_path / "nothing")
    started = envs.build_interpreter_of_backend(spec, tmp_path / "nothing")
    assert (started.python, started.folders, started.launcher) == (there, (), ())  # it lacks nothing
    assert not (tmp_path / "nothing").exists()
    record = found.record(tmp_path)
    assert record is not None and record["versions"]["farm-fake-runtime"] == "1.0"
    assert found.python_version(tmp_path) == record["python"] == ".".join(map(str, sys.version_info[:2]))
    answer = probe_backends([spec], tmp_path)["jax-cpu"]
    said = f"No module named 'jax'; install it into {there}, into which the farm puts nothing, or name another"
    assert said in refusal_of(answer), answer


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "cannot be started: there is no {} on this node; name the path of a Python 3.9 or later"),
        (
            "#!/bin/sh\necho no such thing >&2\nexit 3\n",
            "is no Python that starts (exit code 3; no such thing): name the path",
        ),
    ],
)
def test_an_interpreter_that_cannot_serve_is_one_line(script: str | None, says: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(script)
        python.chmod(0o755)
    (answer,) = probe_backends([BackendSpec.parse("jax-cpu", python=str(python))], tmp_path).values()
    said = refusal_of(answer)
    assert said.startswith(f"python: {python} ") and says.format(python) in said and "\n" not in said


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("{like: jax-cpu, name: x, python: /usr/bin/python3, packages: [jax==0.10.2]}", "leave out one of the two"),
        ("{like: jax-cpu, name: x, python: python3}", "or the path of an interpreter"),
    ],
)
def test_a_python_that_is_neither_version_nor_path_or_has_packages_is_refused(
    backend: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(f"catalogs: [torch]\nbackends: [{backend}]\n")
    with pytest.raises(ConfigError, match=says):
        load_config(str(tmp_path / "c.yaml"))


def test_the_farms_own_environment_serves_where_it_has_all_that_a_class_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """jax beside the farm: in the version that its backend names, no second one is installed; in another, one is,
    unless nothing may be downloaded."""
    monkeypatch.setattr(envs, "_is_requirement_met", envs._is_requirement_met.__wrapped__)
    installed = {"jax": "0.10.2"}
    monkeypatch.setattr(envs, "_find_package_version", lambda name: installed.get(name, ""))
    spec = BackendSpec.parse("jax-cpu")
    assert envs.find_environment(spec) is None
    assert envs.find_environment(BackendSpec.parse("jax-cpu", packages=["jax==0.10.2"])) is not None, (
        "the config's own list"
    )
    installed["jax"] = "0.11.2"
    other = envs.find_environment(spec)
    assert other is not None and other.here()
    cuda = envs.find_environment(BackendSpec.parse("jax-cuda"))
    assert cuda is not None and cuda.here(), "the parts of CUDA may be the system's"
    installed.clear()
    assert not other.here() and not cuda.here()


def test_extras_count_as_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "_is_requirement_met", envs._is_requirement_met.__wrapped__)
    monkeypatch.setattr(envs.metadata, "requires", lambda name: ['part==2; extra == "gpu"', "always"])
    installed = {"whole": "1.0", "part": "1.0"}
    monkeypatch.setattr(envs, "_find_package_version", lambda name: installed.get(name, ""))
    assert envs._is_requirement_met("whole==1.0") and not envs._is_requirement_met("whole[gpu]==1.0")
    installed["part"] = "2"
    assert envs._is_requirement_met("whole[gpu]==1.0") and envs._is_requirement_met(
        'nothing; sys_platform == "nowhere"'
    )


def test_offline_what_would_be_downloaded_is_one_line_with_three_ways(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of wheels is no download."""
    monkeypatch.setenv(envs.OFFLINE, "1")
    with pytest.raises(EnvError) as raised:
        envs.build_environment(Environment(("farm-nowhere==1.0",)), tmp_path)
    said = str(raised.value)
    assert said.startswith("not installed here, and nothing is downloaded: ") and "\n" not in said
    assert all(way in said for way in ("PIP_INDEX_URL=URL", "PIP_FIND_LINKS=FOLDER", "python: /path/to/python"))
    versions = [f"{name}=={envs.metadata.version(name)}" for name in envs.OWN_PACKAGES]
    with contextlib.suppress(EnvError):  # where no cache of uv's has the packages that every environment has
        python = envs.build_environment(Environment(("farm-fake-runtime==1.0", *versions)), tmp_path)
        assert subprocess.run([python, "-c", "import farm_fake_runtime"]).returncode == 0
