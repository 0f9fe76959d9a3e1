"""The site (tools/site.py): its links, its sections, and the detection of a page that loads a file from another host.
CI's step `site` checks that the site builds without a warning.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import diagrams
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


def test_lists_begin_after_a_blank_line(site: ModuleType) -> None:
    assert site.as_python_markdown("Two:\n* a\n  more\n* b\n") == "Two:\n\n* a\n  more\n* b\n"
    assert site.as_python_markdown("* a\n\n  second\n  more\n* b\n") == "* a\n\n    second\n  more\n\n* b\n"
    assert site.as_python_markdown("```\ntext\n* a\n```\n") == "```\ntext\n* a\n```\n"


def test_each_diagram_of_the_pages_becomes_a_picture(site: ModuleType) -> None:
    written = dict(site.written())
    for page, pictures in (("architecture.md", 1), ("life-of-a-record.md", 5)):
        assert written[page].count("<svg ") == pictures
    assert [page for page, text in written.items() if "```mermaid" in text] == []
    texts = "".join(ElementTree.fromstring(re.findall("<svg .*</svg>", written["architecture.md"])[0]).itertext())
    assert "coordinator" in texts
    assert "append and read" in texts


def test_a_diagram_is_drawn_as_it_is_written() -> None:
    source = "sequenceDiagram\n participant A as you\n participant B\n A->>B: <hello>\n B->>B: think\n B--xA: lost"
    diagram = diagrams.parsed(source)
    assert diagram.labels == [["you"], ["B"]]
    assert [(each.start, each.end, each.label, each.lost) for each in diagram.arrows] == [
        (0, 1, "<hello>", False),
        (1, 1, "think", False),
        (1, 0, "lost", True),
    ]
    left, right, edge = diagrams.columns(diagram)
    assert left < right < edge
    assert "&lt;hello&gt;" in diagrams.svg(source)


@pytest.mark.parametrize("source", ["pie\n", "sequenceDiagram\n Note over A: hm", "flowchart LR\n a --> b"])
def test_a_diagram_that_cannot_be_drawn_fails_the_build(source: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        diagrams.svg(source)


def test_every_page_is_in_one_section(site: ModuleType) -> None:
    every = [path for path, _ in [*site.written(), *site.generated()]]
    shown = [page for section in site.navigation(every) for inside in section.values() for page in inside]
    assert sorted(shown) == sorted(every), "name a new page in SECTIONS of tools/site.py"


def test_the_references_name_what_there_is(site: ModuleType) -> None:
    made = dict(site.generated())
    assert "| `NOT_ENOUGH_REPLICAS` | 19 | `NotEnoughReplicasError` | yes |" in made["reference/errors.md"]
    assert "## headrace topics create" in made["reference/commands.md"]
    assert "### FindCoordinator" in made["reference/protocol.md"]


@pytest.mark.parametrize(
    ("html", "loaded"),
    [
        ('<script src="https://unpkg.com/x.js"></script>', ["https://unpkg.com/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', ["//fonts.example/x.css"]),
        ('<img src="../pictures/top.svg"><a href="https://kafka.apache.org">Kafka</a>', []),
        ('<link rel="canonical" href="https://example.org/">', []),
    ],
)
def test_what_a_page_loads_from_another_host_is_found(site: ModuleType, html: str, loaded: list[str]) -> None:
    assert site.external_assets(html) == loaded
