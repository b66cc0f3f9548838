"""What a child may take: a backend's own, and of those that prepare for them as much as the largest."""

from __future__ import annotations

from farm.plan.config_schema import BackendConfig, CatalogConfig, Config
from farm.work.state import make_child_limits


def test_what_prepares_for_backends_may_take_what_the_largest_may() -> None:
    backends = [BackendConfig(name="torch-cpu"), BackendConfig(name="ort-cpu", memory_gib=20)]
    config = Config(catalogs=[CatalogConfig(name="critical")], backends=backends)
    assert [make_child_limits(config, name).memory_gib for name in ("torch-cpu", "ort-cpu", "")] == [6, 20, 20]
    few = Config(catalogs=[CatalogConfig(name="critical")], backends=[BackendConfig(name="torch-cpu", memory_gib=2)])
    assert [make_child_limits(few, name).memory_gib for name in ("torch-cpu", "")] == [2, 6]
