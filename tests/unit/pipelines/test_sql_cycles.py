"""A continuous query that reads its own rows is refused, also through other queries and two names of a topic."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from headrace_pipelines.sql.catalog import Catalog, ContinuousQuery, Table
from headrace_pipelines.sql.cycles import QueryCycleError, check_acyclic, cycle_of
from headrace_pipelines.sql.faults import Source


def catalog_of(*queries: tuple[str, str, str], topics: dict[str, str] | None = None) -> Catalog:
    """A catalog with queries (id, the tables that it reads, its target). ``topics``: topics by table, where they have
    another name."""
    tables = {name: Table(name, (topics or {}).get(name, name)) for name in "abcdef"}
    made = [query_of(*each) for each in queries]
    return Catalog(Path("nowhere"), tables, queries={each.id: each for each in made})


def query_of(name: str, reads: str, target: str) -> ContinuousQuery:
    return ContinuousQuery(name, target, "SELECT 1", f"sql.{name}", tuple(reads.split()))


def cycle(new: ContinuousQuery, catalog: Catalog) -> str:
    return " ".join(f"{step.source}>{step.query}>{step.target}" for step in cycle_of(new, catalog))


def test_a_query_that_reads_its_target_is_a_cycle() -> None:
    assert cycle(query_of("new", "a", "a"), catalog_of()) == "a>new>a"
    assert cycle(query_of("new", "b a", "a"), catalog_of()) == "a>new>a"
    assert cycle(query_of("new", "a", "b"), catalog_of()) == ""


def test_a_chain_of_queries_is_a_cycle() -> None:
    chain = catalog_of(("one", "a", "b"), ("two", "b", "c"), ("side", "b", "f"))
    assert cycle(query_of("new", "c", "a"), chain) == "c>new>a a>one>b b>two>c"
    assert cycle(query_of("new", "f", "a"), chain) == "f>new>a a>one>b b>side>f"
    assert cycle(query_of("new", "c", "d"), chain) == ""
    assert cycle(query_of("new", "d", "a"), chain) == ""


def test_two_names_of_a_topic_are_one_topic() -> None:
    assert cycle(query_of("new", "a", "b"), catalog_of(topics={"a": "t", "b": "t"})) == "t>new>t"
    chain = catalog_of(("one", "c", "b"), topics={"a": "t", "b": "t"})
    assert cycle(query_of("new", "a", "c"), chain) == "t>new>c c>one>t"


def test_the_query_itself_may_be_in_the_catalog() -> None:
    there = catalog_of(("one", "a", "b"), ("two", "b", "a"))
    assert cycle(there.queries["two"], there) == "b>two>a a>one>b"


def test_the_error_names_the_cycle_and_points() -> None:
    source = Source("INSERT INTO a SELECT * FROM b", "q.sql")
    with pytest.raises(QueryCycleError) as error:
        check_acyclic(query_of("new", "b", "a"), catalog_of(("one", "a", "b")), source, 12, 13)
    assert error.value.message == (
        "q.sql:1:13: the query would read its own rows in an endless loop: b -(query new)-> a -(query one)-> b; "
        "write to a table with another topic, or TERMINATE another query of this cycle\n"
        "  1 | INSERT INTO a SELECT * FROM b\n"
        "    |             ^"
    )
    assert error.value.code == "QUERY_CYCLE"


@pytest.mark.parametrize("seed", range(40))
def test_random_catalogs_equal_a_transitive_closure(seed: int) -> None:
    chance = random.Random(seed)
    queries = [
        (f"q{number}", " ".join(chance.sample("abcdef", chance.randint(1, 2))), chance.choice("abcdef"))
        for number in range(chance.randint(0, 6))
    ]
    new = query_of("new", " ".join(chance.sample("abcdef", 2)), chance.choice("abcdef"))
    # Warshall's algorithm over the topics that rows of a topic reach
    reach = {(read, target) for _, reads, target in queries for read in reads.split()} | {(t, t) for t in "abcdef"}
    for middle, first, last in itertools.product("abcdef", repeat=3):
        if (first, middle) in reach and (middle, last) in reach:
            reach.add((first, last))
    found = cycle_of(new, catalog_of(*queries))
    assert bool(found) == any((new.target, read) in reach for read in new.reads)
    if found:
        assert (found[0].query, found[0].target) == ("new", new.target)
        assert all(one.target == other.source for one, other in itertools.pairwise([*found, found[0]]))
