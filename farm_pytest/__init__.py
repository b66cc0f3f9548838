"""The pytest plug-in: a test takes `farm_case`, says by `@pytest.mark.farm(…)` of what, and is run once per case.

It stands outside of `farm`, whose import sets how many threads a process has: only tests that use it pay for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from farm.client.cases import Case, Cases

MARK = "farm"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("farm", "validation of kernels")
    group.addoption(
        "--farm-seed", type=int, default=None, metavar="N", help="the seed of all farm cases (default: the marker's)"
    )
    group.addoption(
        "--farm-cases", type=int, default=None, metavar="N", help="cases per test and dtype (default: the marker's)"
    )
    group.addoption(
        "--farm-results", default=None, metavar="PATH", help="keep the rows of all farm cases as a run of this lake"
    )


def pytest_configure(config: pytest.Config) -> None:
    words = "farm(op=None, reference=, inputs=, dims=, dtypes=, cases=20, seed=0, backward=False, double=False, imprecise=True, …): the cases of farm_case"
    config.addinivalue_line("markers", words)
    place = config.getoption("--farm-results")
    if place is not None:
        from farm import lake

        try:
            lake.check_lake_writable(lake.open_lake(place))
        except lake.LakeError as error:
            raise pytest.UsageError(f"--farm-{error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "farm_case" not in metafunc.fixturenames:
        return
    from farm.client.cases import Cases
    from farm.client.kernels import ClientError

    mark = metafunc.definition.get_closest_marker(MARK)
    option = metafunc.config.getoption
    given: dict[str, Any] = {} if mark is None else dict(mark.kwargs)
    given |= {name: option(f"--farm-{name}") for name in ("seed", "cases") if option(f"--farm-{name}") is not None}
    # Two tests of one kernel are two ops: their rows are not each other's.
    given = {"name": re.sub(r"[^\w.]", "_", f"{metafunc.module.__name__}.{metafunc.function.__qualname__}")} | given
    named = mark.args[0] if mark is not None and mark.args else given.pop("op", None)
    try:
        function = named if named is not None else _called_like(metafunc)
        cases = Cases.of(function, **given)
    except (ClientError, TypeError) as error:
        # As pytest tells of a wrong `parametrize`: of any other exception it shows its own frames.
        text = f"{metafunc.definition.nodeid}: @pytest.mark.farm: {error}"
        raise pytest.fail.Exception(text, pytrace=False) from None
    many = list(cases)
    metafunc.parametrize("farm_case", many, ids=[case.name for case in many], indirect=True)


def _called_like(metafunc: pytest.Metafunc) -> Any:
    """The declared kernel that a test is called after: test_rms_norm takes rms_norm of its module. Raises
    ClientError."""
    from farm.client.kernels import ClientError

    name = metafunc.function.__name__.removeprefix("test_")
    found = getattr(metafunc.module, name, None)
    if hasattr(found, "__farm_ops__"):
        return found
    given = metafunc.definition.get_closest_marker(MARK)
    if given is not None and "reference" in given.kwargs:
        return None
    raise ClientError(
        f"which kernel? Its module has no {name!r} with @farm.op: name one, @pytest.mark.farm(rms_norm), or give reference= "
        "and inputs="
    )


@pytest.fixture
def farm_case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """One case: ``inputs`` by name, and ``check(output)``."""
    case: Case = request.param
    place = request.config.getoption("--farm-results")
    case.keep = _keeper(request.config).add if place and case.cases.named else None
    yield case
    if not case.checked:
        pytest.fail("farm_case.check(…) was not called: nothing was judged", pytrace=False)


def _keeper(config: pytest.Config) -> Any:
    from farm.client.cases import Kept

    if not hasattr(config, "_farm_kept"):
        config._farm_kept = Kept(config.getoption("--farm-results"))  # type: ignore[attr-defined]
    return config._farm_kept  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    kept = getattr(config, "_farm_kept", None)
    if kept is not None and (said := kept.write()):
        terminalreporter.write_line(said)
