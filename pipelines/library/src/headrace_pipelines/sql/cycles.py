"""Find continuous queries that read their own output, directly or through other queries. Pure.

The topics are the nodes of a graph: each query leads from the topics that it reads to the topic that it writes. The
nodes are topics, not tables, because two tables may have the same topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .catalog import Catalog, ContinuousQuery
from .faults import Source, SqlError


class Step(NamedTuple):
    """An edge of the graph: a query leads from one topic to another topic."""

    source: str
    query: str
    target: str


class QueryCycleError(SqlError):
    """A continuous query would read its own rows, and write more and more rows."""

    code = "QUERY_CYCLE"


def cycle_of(query: ContinuousQuery, catalog: Catalog) -> list[Step]:
    """The shortest path of rows from ``query`` back to itself, beginning with a topic that ``query`` reads; empty if
    there is no such path. ``query`` need not be in the catalog."""
    others = [each for each in catalog.queries.values() if each.id != query.id]
    first = _steps(query, catalog)
    steps = [step for each in others for step in _steps(each, catalog)]
    ways = {step.source: [step] for step in first}
    target = catalog.tables[query.target].topic
    reached, front = {target: list[Step]()}, [target]
    while front:
        if found := [topic for topic in front if topic in ways]:
            return [*ways[found[0]], *reached[found[0]]]
        further = {step.target: [*reached[topic], step] for topic in front for step in steps if step.source == topic}
        front = [topic for topic in further if topic not in reached]
        reached |= {topic: further[topic] for topic in front}
    return []


def check_acyclic(query: ContinuousQuery, catalog: Catalog, source: Source, at: int, end: int) -> None:
    """Raise QueryCycleError, which points at the characters ``at`` to ``end``, if the query reads its own rows."""
    cycle = cycle_of(query, catalog)
    if cycle:
        others = ", or TERMINATE another query of this cycle" if len(cycle) > 1 else ""
        what = (
            f"the query would read its own rows in an endless loop: {_described(cycle)}; write to a table with another "
        )
        raise QueryCycleError(f"{what}topic{others}", source, at, end)


def _steps(query: ContinuousQuery, catalog: Catalog) -> list[Step]:
    """The edges of a query: one from each topic that the query reads to the topic that it writes. Tables that the
    catalog lacks are left out."""
    target = catalog.tables[query.target].topic
    topics = dict.fromkeys(catalog.tables[name].topic for name in query.reads if name in catalog.tables)
    return [Step(topic, query.id, target) for topic in topics]


def _described(cycle: Iterable[Step]) -> str:
    """``words -(query copy)-> copies -(query back)-> words``."""
    steps = list(cycle)
    return steps[0].source + "".join(f" -(query {step.query})-> {step.target}" for step in steps)
