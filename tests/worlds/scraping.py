"""Scrape the nodes of a cluster, and read the text as Prometheus does."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)\Z")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line of a scrape. ``node``: (role, id) of the node."""

    node: tuple[str, int]
    name: str
    labels: Mapping[str, str]
    value: float


class Scrape:
    """The samples of one scrape of all nodes."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)

    def of(self, name: str, **labels: str) -> list[Sample]:
        """The samples of a name with exactly these labels; a label "*" may have any value."""
        return [
            each
            for each in self.samples
            if each.name == name
            and each.labels.keys() == labels.keys()
            and all(value in ("*", each.labels[label]) for label, value in labels.items())
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all nodes."""
        return sum(each.value for each in self.of(name, **labels))

    def names(self) -> set[str]:
        return {each.name for each in self.samples}


def text_of(url: str, accept: str = "") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def scrape(nodes: Iterable[Mapping[str, Any]]) -> Scrape:
    """Scrape the nodes, which are rows of ``ps``; dead nodes are left out."""
    return Scrape(
        sample
        for node in nodes
        if node["pid"] is not None
        for sample in samples_of(text_of(node["metrics"]), (node["role"], node["id"]))
    )


def samples_of(text: str, node: tuple[str, int] = ("", 0)) -> Iterator[Sample]:
    """Parse a text. Raises AssertionError for a line that is neither a sample nor a comment."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = _LINE.match(line)
            assert match is not None, line
            yield Sample(node, match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"]))
