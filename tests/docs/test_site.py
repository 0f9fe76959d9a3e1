"""The site (tools/site.py): its links and sections. `make site` fails on a warning, and on a file of another host."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.docs import documented_pages as pages


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_tool", pages.ROOT / "tools" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["site_tool"] = module
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_where_a_page_is_in_the_site(site: ModuleType) -> None:
    text = "[a](docs/cli/README.md#profiles) [`b`](examples) [c](https://kafka.apache.org) [d](CHANGELOG.md) `[e](f)`"
    shown = "[a](cli/README.md#profiles) `b` [c](https://kafka.apache.org) [d](changelog.md) `[e](f)`"
    assert site.linked(text, "README.md") == shown
    assert site.linked("[a](../../README.md)", "docs/cli/README.md") == "[a](../index.md)"


def test_every_page_is_in_one_section(site: ModuleType) -> None:
    every = [path for path, _ in [*site.written(), *site.generated()]]
    shown = [page for section in site.navigation(every) for inside in section.values() for page in inside]
    assert sorted(shown) == sorted(every), "name a new page in SECTIONS of tools/site.py"


def test_the_references_name_what_there_is(site: ModuleType) -> None:
    made = dict(site.generated())
    assert "| `NOT_ENOUGH_REPLICAS` | 19 | `NotEnoughReplicasError` | yes |" in made["reference/errors.md"]
    assert "## headrace topics create" in made["reference/commands.md"]
    assert "### FindCoordinator" in made["reference/protocol.md"]
