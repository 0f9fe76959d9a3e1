"""The rules for continuous queries: which SELECT can a table follow? Pure.

A continuous query reads each record once and writes what has changed. The table then has the rows of the same SELECT
over all input, if each row of the SELECT depends on the records of one group, or of one record, and on nothing else:

    without an aggregate   each row is written once, and stays
    one aggregate          each changed group is written under its key; a group that a filter over the aggregate drops
                           is deleted under its key

All else is refused: rows that appear and disappear with the rows of other groups, and values that depend on the order
of records, on chance, or on the time of the computation.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .faults import SqlError
from .naming import unknown_column
from .plans import PASSING, Node, Value
from .statements import Query
from .tokens import Kind, Token

#: Nodes that turn each row into rows, whatever the other rows are.
_ROW_BY_ROW = PASSING | {
    "Project", "Filter", "Generate", "Expand", "Union", "Join", "LateralJoin", "EventTimeWatermark", "Repartition",
    "RepartitionByExpression", "RebalancePartitions",
}  # fmt: skip
#: Nodes whose rows have no order, not even those of one partition.
_MIXING = frozenset(("Join", "Union", "Repartition", "RepartitionByExpression", "RebalancePartitions"))
#: What a node is in SQL, and the words with which it begins in a statement.
_CLAUSES = {
    "Aggregate": ("a second aggregate", ()),
    "Generate": ("explode, or another function that makes rows", ("EXPLODE", "POSEXPLODE", "INLINE", "STACK")),
    "Join": ("a join", ("JOIN",)),
    "LateralJoin": ("a join", ("LATERAL", "JOIN")),
    "GlobalLimit": ("LIMIT", ("LIMIT",)),
    "LocalLimit": ("LIMIT", ("LIMIT",)),
    "Offset": ("OFFSET", ("OFFSET",)),
    "Distinct": ("DISTINCT", ("DISTINCT", "UNION")),
    "Deduplicate": ("DISTINCT", ("DISTINCT",)),
    "Union": ("UNION", ("UNION",)),
    "Except": ("EXCEPT", ("EXCEPT", "MINUS")),
    "Intersect": ("INTERSECT", ("INTERSECT",)),
    "Sort": ("ORDER BY", ("ORDER",)),
    "Window": ("a function with OVER", ("OVER",)),
    "Sample": ("TABLESAMPLE", ("TABLESAMPLE",)),
    "Expand": ("GROUPING SETS", ()),
}  # fmt: skip
#: Aggregates whose value depends on the order in which records are read.
_BY_ORDER = frozenset((
    "first", "first_value", "last", "last_value", "any_value", "nth_value", "collect_list", "collect_set", "array_agg",
    "collect_top_k", "listagg", "string_agg", "mode", "approx_percentile", "percentile_approx", "histogram_numeric",
    "approx_top_k", "approx_top_k_accumulate", "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float",
))  # fmt: skip
_LISTS = frozenset(("collect_list", "collect_set", "array_agg"))
#: Functions of an array in whose value the order of the array does not show.
_WITHOUT_ORDER = frozenset(("sort_array", "size", "cardinality", "array_size", "array_max", "array_min"))
#: Functions of the session or of the present, besides those whose names begin with ``current_``.
_OF_NOW = frozenset(("now", "localtimestamp", "curdate", "user", "session_user"))
#: Texts that Spark reads as a time of the present; all but ``now`` may have a time zone.
_FOR_NOW = re.compile(r"\s*(?:now|(?:today|tomorrow|yesterday)(?![A-Za-z])\s*\S*)\s*", re.IGNORECASE)


class NotContinuousError(SqlError):
    """A table could not follow the rows of the SELECT, so no continuous query can run it."""

    code = "NOT_CONTINUOUS"


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a table cannot follow a SELECT; ``words``: those of the statement that are to blame, in upper case."""

    what: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """What a continuous query writes. ``is_aggregate``: its rows change, and each needs a key. ``groups``: the columns
    of its SELECT that have the values of GROUP BY, with None for a value that the SELECT lacks. ``of_group``: all
    columns that only the group decides. ``drops``: a filter over the aggregate may drop a group that has been
    written. ``is_mixed``: the rows have no order, such as those of two streams. ``equals``: a column of ``groups`` and
    another column with the same values. ``table``: the table whose rows are read in the order of its partitions.
    ``sources``: columns of the SELECT, in lower case, and the columns of ``table`` that they are."""

    is_aggregate: bool = False
    groups: tuple[str | None, ...] = ()
    of_group: frozenset[str] = frozenset()
    drops: bool = False
    is_mixed: bool = False
    equals: tuple[tuple[str, str], ...] = ()
    table: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


def shape_of(plan: Node, columns: Mapping[int, str]) -> Shape | Fault:
    """The shape of a SELECT with the given plan; ``columns``: the names of its columns by their ids. A Fault if a table
    cannot follow the SELECT."""
    above, rest = _above(plan)
    if (fault := _fault(above, rest)) is not None:
        return fault
    if rest.kind != "Aggregate":
        return _shape_of_rows(list(_nodes(plan)), columns)
    outputs = rest.values[: len(rest.values) - rest.groups]
    by_id = {each.id: each.group for each in outputs if each.id is not None and each.group is not None}
    of_group = {each.id for each in outputs if each.id is not None and not _has_aggregate(each)}
    drops = False
    for node in reversed(above):
        if node.kind == "Filter":
            drops = drops or not all(_ids(each) <= of_group for each in node.values)
        for each in node.values if node.kind == "Project" else ():
            renamed = each.children[0].id if each.kind == "Alias" else None
            # (a row that a filter drops has null in the columns that are computed above the filter: plans.judged)
            is_guarded = drops and each.kind == "Alias" and renamed is None
            if each.id is not None and _ids(each) <= of_group and not is_guarded:
                of_group.add(each.id)
            if each.id is not None and renamed is not None and renamed in by_id:
                by_id[each.id] = by_id[renamed]
    names: dict[int, str] = {}
    found = [(number, name) for at, name in columns.items() if (number := by_id.get(at)) is not None]
    equals = tuple((names[number], name) for number, name in found if names.setdefault(number, name) != name)
    keys = rest.values[len(outputs) :]
    groups = tuple(names.get(number) for number, each in enumerate(keys) if each.group in (None, number))
    of_columns = frozenset(columns[at] for at in of_group if at in columns)
    return Shape(True, groups, of_columns, drops, equals=equals)


def _shape_of_rows(nodes: Sequence[Node], columns: Mapping[int, str]) -> Shape:
    """The shape of a SELECT without an aggregate; ``nodes``: its plan from the top."""
    if any(node.kind in _MIXING or any(_streams_in(node)) for node in nodes):
        return Shape(is_mixed=True)
    table = next((node for node in nodes if node.kind == "Table" and node.is_stream), Node(""))
    sources = {each.id: each.name for each in table.values}
    for node in reversed(nodes):
        for each in node.values if node.kind == "Project" else ():
            if each.kind == "Alias" and each.children[0].id in sources:
                sources[each.id] = sources[each.children[0].id]
    return Shape(
        table=table.table, sources={name.lower(): sources[at] for at, name in columns.items() if at in sources}
    )


def partition_fault(key: Sequence[str], shape: Shape, source: Sequence[str]) -> str | None:
    """The reason why rows with one ``key`` may come from several partitions of the stream ``shape.table``, whose order
    is not determined; None if they come from one. ``source``: the key of the stream's records."""
    given = {shape.sources.get(name.lower(), "").lower() for name in key}
    if source and all(name.lower() in given for name in source):
        return None
    keyed = f"whose records have the key {', '.join(source)}" if source else "which has no key"
    return (
        f"rows with the same {', '.join(key)} can come from several partitions of {shape.table}, {keyed}, so the "
        f"newest is not determined; use GROUP BY {', '.join(key)} with max_by(column, _timestamp)"
        + ("" if source else f", or declare the key of {shape.table}: CREATE STREAM ... WITH (key = '...')")
    )


def key_fault(key: Sequence[str], columns: Sequence[str], shape: Shape) -> str | None:
    """The reason why ``key`` cannot be the key of the rows that a SELECT with the columns ``columns`` writes; None if
    the key is valid."""
    if (fault := unknown_column(key, columns)) is not None or not shape.is_aggregate:
        return fault
    given = {name.lower() for name in key}
    given |= {group.lower() for group, other in shape.equals if other.lower() in given}
    if not shape.groups:
        return (
            "an aggregate without GROUP BY has one row, and no column that could be its key; write SELECT 1 AS one, "
            "... GROUP BY one"
        )
    for group in shape.groups:
        if group is None:
            return "GROUP BY has an expression that the SELECT lacks; add it to the SELECT and to the key"
        if group.lower() not in given:
            return f"the key lacks {group}, a column of GROUP BY, so two groups could have the same key"
    fixed = {name.lower() for name in shape.of_group}
    for name in key:
        if name.lower() not in fixed:
            return f"the key has {name}, which changes with its group: the row of the old key would stay; leave it out"
    return None


def not_continuous(fault: Fault, query: Query) -> NotContinuousError:
    """The error for a fault. It points at the words that are to blame, or at the start of a query that has them only in
    its views."""
    tokens = query.piece.tokens[query.first : query.last]
    blamed = [token for token in tokens if token.is_name and token.value.upper() in fault.words]
    at = blamed[0] if blamed else tokens[0]
    return NotContinuousError(fault.what, query.piece.source, at.at, at.end)


def time_of_now(tokens: Sequence[Token]) -> Fault | None:
    """A fault if a text has a literal such as ``TIMESTAMP 'now'``, which Spark replaces before it plans."""
    for before, token in itertools.pairwise(tokens):
        if before.word.startswith(("TIMESTAMP", "DATE")) and token.kind is Kind.STRING and _is_now(token.value):
            return Fault(_now(f"{before.word} '{token.value.strip()}'"), (before.word,))
    return None


# -- nodes


def _above(plan: Node) -> tuple[list[Node], Node]:
    """The nodes above the aggregate, from the top, that neither add nor drop rows except by a filter; and the first
    node that is different."""
    above = []
    while plan.kind in PASSING or plan.kind in ("Project", "Filter"):
        above.append(plan)
        (plan,) = plan.children
    return above, plan


def _fault(above: Sequence[Node], rest: Node) -> Fault | None:
    below = list(_nodes(rest))
    aggregates = [node for node in below if node.kind == "Aggregate"]
    if rest.kind == "Aggregate":
        below = below[1:]
    elif aggregates:
        return _over_aggregate(rest)
    for node in below:
        if _needs_rows(node):
            return _between_rows(node, is_below=rest.kind == "Aggregate")
        if node.join not in ("", "INNER", "CROSS") and all(each.is_stream for each in node.children):
            return Fault(
                f"a {node.join} JOIN of two streams: whether a row has a match is open as long as rows arrive; write "
                "INNER JOIN, or use CREATE VIEW, which is computed when it is read", ("JOIN",)
            )  # fmt: skip
    for node in (*above, rest, *below):
        is_over = rest.kind == "Aggregate" and any(node is each for each in above)
        for value in node.values:
            if (fault := _fault_of_value(value)) is not None:
                return fault
            if is_over and any(each.plan is not None for each in _values(value)):
                return Fault(
                    "a subquery over an aggregate; compare with values, or use CREATE VIEW, which is computed when it "
                    "is read", ("IN", "EXISTS")
                )  # fmt: skip
        for inner in _streams_in(node):
            if (between := next((each for each in _nodes(inner) if _needs_rows(each)), None)) is not None:
                return _between_rows(between, is_below=False)
    return None


def _over_aggregate(node: Node) -> Fault:
    what, words = _CLAUSES.get(node.kind, (node.kind, ()))
    return Fault(
        f"{what} over an aggregate: each change of a group could add or remove rows that the query has written, and "
        "the table could not follow. A filter (WHERE, HAVING) may stand there; for all else use CREATE VIEW, which is "
        "computed when it is read",
        words,
    )


def _between_rows(node: Node, *, is_below: bool) -> Fault:
    what, words = _CLAUSES.get(node.kind, (node.kind, ()))
    where = "below an aggregate" if is_below else "in a continuous query"
    groups = "GROUP BY all columns, or " if node.kind in ("Distinct", "Deduplicate") and not is_below else ""
    return Fault(
        f"{what} {where}: whether a row belongs to the result depends on other rows, which come later or in another "
        f"order; use {groups}CREATE VIEW, which is computed when it is read",
        words,
    )


def _nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.children:
        yield from _nodes(child)


def _needs_rows(node: Node) -> bool:
    """Whether a row of a node may depend on other rows of its child."""
    return node.kind not in _ROW_BY_ROW and bool(node.children)


def _streams_in(node: Node) -> Iterator[Node]:
    """The plans of the subqueries of a node that read a stream, at any depth."""
    for value in node.values:
        for plan in (each.plan for each in _values(value) if each.plan is not None):
            if plan.is_stream:
                yield plan
            for inner in _nodes(plan):
                yield from _streams_in(inner)


# -- values


def _values(value: Value) -> Iterator[Value]:
    yield value
    for child in value.children:
        yield from _values(child)


def _ids(value: Value) -> set[int | None]:
    """The columns that an expression reads."""
    return {each.id for each in _values(value) if each.kind == "AttributeReference"}


def _has_aggregate(value: Value) -> bool:
    return any(each.kind == "AggregateExpression" for each in _values(value))


def _fault_of_value(value: Value, *, without_order: bool = False) -> Fault | None:
    """A fault if the value of an expression depends on more than its row or its group. ``without_order``: the order of
    an array does not show in what is made of it."""
    if value.kind == "Literal":
        return None
    name = value.name.lower() if value.kind != "AggregateExpression" else ""  # its child has the name
    words = (name.upper(),)
    if name in _BY_ORDER and not (_is_sorted(value) or (without_order and name in _LISTS)):
        return Fault(
            f"{name}() depends on the order in which records are read, so a restart could give another value; use "
            "max_by(column, _offset), min, max, or sort_array(collect_list(column))", words
        )  # fmt: skip
    if name.startswith("current_") or name in _OF_NOW:
        return Fault(_now(f"{name}()"), words)
    if value.kind == "Cast" and value.children[0].kind == "Literal" and _is_now(value.children[0].name):
        return Fault(_now(f"'{value.children[0].name.strip()}'"))
    inner = name in _WITHOUT_ORDER or (without_order and value.kind == "AggregateExpression")
    for child in value.children:
        if (fault := _fault_of_value(child, without_order=inner)) is not None:
            return fault
    if not value.is_fixed:
        return Fault(
            f"{name}() depends on chance: a batch that is repeated after a failure would have another value; use a "
            "column, or a function of columns such as xxhash64()", words
        )  # fmt: skip
    for node in () if value.plan is None else _nodes(value.plan):
        for each in node.values:
            if (fault := _fault_of_value(each)) is not None:
                return fault
    return None


def _is_sorted(value: Value) -> bool:
    """Whether a list of texts is ordered by its own texts: ``listagg(x) WITHIN GROUP (ORDER BY x)``."""
    return any(each.kind == "SortOrder" and each.children[:1] == value.children[:1] for each in value.children)


def _is_now(text: str) -> bool:
    return _FOR_NOW.fullmatch(text) is not None


def _now(what: str) -> str:
    return (
        f"{what} depends on when or where the query runs, so the rows would be untrue later; use _timestamp, the "
        "time of the record, or use CREATE VIEW, which is computed when it is read"
    )
