"""Find the tables, views and functions that a definition reads, directly or through views and functions. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .catalog import Catalog, ContinuousQuery
from .faults import Source
from .parsing import select_of
from .rewriting import rewrite
from .statements import Query
from .tokens import Token, tokens


@dataclass(frozen=True, slots=True)
class Uses:
    """The tables, views and functions that a definition uses; names are in lower case."""

    tables: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)


def uses_of(query: Query, catalog: Catalog) -> Uses:
    """The tables, views and functions that a query reads. For the query of a view that reads itself, the result
    contains this view."""
    found = Uses()
    _add_query(query, catalog, found)
    return found


def with_uses(query: ContinuousQuery, catalog: Catalog) -> ContinuousQuery:
    """The query, completed with the names of the tables, views and functions that its text uses. Raises SqlError for a
    text that is not a SELECT."""
    found = uses_of(select_of(query.text, f"query {query.id}"), catalog)
    reads, views, functions = (tuple(sorted(each)) for each in (found.tables, found.views, found.functions))
    return replace(query, reads=reads, views=views, functions=functions)


def uses_of_function(text: str, catalog: Catalog) -> set[str]:
    """The functions that a function calls. ``text``: the text of the calling function, which begins with the function's
    name."""
    found: set[str] = set()
    _add_calls(list(tokens(Source(text)))[1:], catalog.functions, found)
    return found


def _add_query(query: Query, catalog: Catalog, found: Uses) -> None:
    _add_calls(query.piece.tokens[query.first : query.last], catalog.functions, found.functions)
    for use in rewrite(query, catalog.names).uses:
        if use.name in catalog.tables:
            found.tables.add(use.name)
        elif use.name not in found.views:
            found.views.add(use.name)
            _add_query(select_of(catalog.views[use.name], f"view {use.name}"), catalog, found)


def _add_calls(all_tokens: Sequence[Token], functions: Mapping[str, str], found: set[str]) -> None:
    for token, after in itertools.pairwise(all_tokens):
        name = token.value.lower()
        if token.is_name and after.is_sign("(") and name in functions and name not in found:
            found.add(name)
            _add_calls(list(tokens(Source(functions[name])))[1:], functions, found)
