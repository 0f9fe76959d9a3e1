"""Spark's analyzed plan of a SELECT as plain values, and the change that keeps track of a filter over an aggregate.

``tree_of`` reads a plan into ``Node`` and ``Value``, which the rules of ``keeping.py`` judge without Spark. ``judged``
makes the frame of a SELECT whose filters over its aggregate drop no row:

    SELECT item, 6 / (n - 3) AS share FROM (SELECT item, count(*) AS n ... GROUP BY item) WHERE n <> 3
    Project [item, 6 / (n - 3) AS share]               Project [item, if (kept) 6 / (n - 3) else null AS share, kept]
    +- Filter n <> 3                            ->     +- Project [item, n, coalesce(n <> 3, false) AS kept]
       +- Aggregate [item], [item, count(1) AS n]         +- Aggregate [item], [item, count(1) AS n]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

#: The column of a judged frame that says whether the SELECT has the row.
KEPT = "headrace_sql_kept"
#: Nodes that pass on the rows of their only child unchanged.
PASSING = frozenset(("SubqueryAlias", "View", "PipeOperator", "ResolvedHint"))


@dataclass(frozen=True, slots=True)
class Value:
    """An expression. ``kind``: Spark's class; ``name``: its name in SQL, or the text of a literal. ``id``: the id of
    the column that it reads or makes. ``group``: the number of the expression of GROUP BY that it equals. ``is_fixed``:
    Spark computes the same value again from the same row. ``plan``: the plan of a subquery."""

    kind: str
    name: str = ""
    children: tuple[Value, ...] = ()
    id: int | None = None
    group: int | None = None
    is_fixed: bool = True
    plan: Node | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a plan. ``values``: its expressions; those of an Aggregate end with the ``groups`` expressions of GROUP
    BY, and those of a Table are its columns. ``join``: the kind of a join in SQL, such as ``INNER``. ``table``: the
    name of a Table."""

    kind: str
    children: tuple[Node, ...] = ()
    values: tuple[Value, ...] = ()
    groups: int = 0
    is_stream: bool = True
    join: str = ""
    table: str = ""


def tree_of(frame: DataFrame, is_table: Callable[[str], bool]) -> Node:
    """The analyzed plan of a frame. The plan ends at the views with a name for which ``is_table`` is true."""
    return _node(frame._jdf.queryExecution().analyzed(), is_table, {})


def columns_of(frame: DataFrame) -> dict[int, str]:
    """The names of a frame's columns by their ids."""
    return {each.exprId().id(): each.name() for each in _each(frame._jdf.queryExecution().analyzed().output())}


def _node(plan: Any, is_table: Callable[[str], bool], defined: Mapping[int, Any]) -> Node:
    kind = plan.nodeName()
    if kind == "WithCTE":
        known = {**defined, **{each.id(): each.child() for each in _each(plan.cteDefs())}}
        return _node(plan.plan(), is_table, known)
    if kind == "CTERelationRef":
        return Node("SubqueryAlias", (_node(defined[plan.cteId()], is_table, defined),), is_stream=plan.isStreaming())
    if kind == "View" and is_table(plan.desc().identifier().table()):
        columns = tuple(
            Value("AttributeReference", each.name(), (), each.exprId().id()) for each in _each(plan.output())
        )
        table = plan.desc().identifier().table()
        return Node("Table", values=columns, is_stream=plan.isStreaming(), table=table)

    def value(expression: Any, groups: Sequence[Any] = ()) -> Value:
        return _value(expression, groups, lambda inner: _node(inner, is_table, defined))

    groups = _each(plan.groupingExpressions()) if kind == "Aggregate" else []
    expressions = plan.aggregateExpressions() if kind == "Aggregate" else plan.expressions()
    return Node(
        kind,
        tuple(_node(child, is_table, defined) for child in _each(plan.children())),
        tuple(value(each, groups) for each in (*_each(expressions), *groups)),
        len(groups),
        plan.isStreaming(),
        plan.joinType().sql() if kind == "Join" else "",
    )


def _value(expression: Any, groups: Sequence[Any], node: Callable[[Any], Node]) -> Value:
    kind = expression.nodeName()
    inner = expression.child() if kind == "Alias" else expression
    group = next((number for number, each in enumerate(groups) if inner.semanticEquals(each)), None)
    is_column = kind in ("Alias", "AttributeReference")
    is_subquery = kind in ("ScalarSubquery", "ListQuery", "Exists", "LateralSubquery")
    return Value(
        kind,
        expression.toString() if kind == "Literal" else expression.prettyName(),
        tuple(_value(child, (), node) for child in _each(expression.children())),
        expression.exprId().id() if is_column else None,
        group,
        expression.deterministic(),
        node(expression.plan()) if is_subquery else None,
    )


def judged(frame: DataFrame) -> DataFrame:
    """The frame with all rows of its aggregate, and with the column KEPT: whether the filters above the aggregate keep
    the row. The columns that these filters guard are null in a row that is not kept. ``frame`` has only projections and
    filters above its aggregate."""
    spark = frame.sparkSession
    plan, _ = _Judging(spark).plan(frame._jdf.queryExecution().analyzed(), {})
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


class _Judging:
    """Builds the plan of ``judged`` from Spark's own classes."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._none, self._seq = jvm.scala.Option.empty(), jvm.PythonUtils.toSeq
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project
        boolean = jvm.org.apache.spark.sql.types.DataTypes.BooleanType
        self._false = self._expressions.Literal(False, boolean)

    def plan(self, plan: Any, defined: Mapping[int, Any]) -> tuple[Any, Any]:
        """The plan that drops nothing, and its column KEPT; None before the first filter."""
        kind = plan.nodeName()
        if kind == "Aggregate":
            return plan, None
        if kind == "WithCTE":
            known = {**defined, **{each.id(): each.child() for each in _each(plan.cteDefs())}}
            return self.plan(plan.plan(), known)
        if kind == "CTERelationRef":
            return self._renamed(plan, *self.plan(defined[plan.cteId()], defined))
        child, kept = self.plan(plan.child(), defined)
        if kind == "Filter":
            return self._filter(plan, child, kept)
        if kind == "Project":
            columns = [self._guarded(each, kept) for each in _each(plan.projectList())]
            return self._project(self._seq([*columns, *self._only(kept)]), child), kept
        return child, kept

    def _renamed(self, reference: Any, child: Any, kept: Any) -> tuple[Any, Any]:
        """A common table expression under the ids of one of its uses."""
        names = zip(_each(reference.output()), _each(child.output()), strict=False)
        columns = [self._alias(inner, outer.name(), outer.exprId()) for outer, inner in names]
        if [outer.exprId().id() for outer in _each(reference.output())] == [
            inner.exprId().id() for inner in _each(child.output())[: len(columns)]
        ]:
            return child, kept
        return self._project(self._seq([*columns, *self._only(kept)]), child), kept

    def _filter(self, plan: Any, child: Any, kept: Any) -> tuple[Any, Any]:
        condition = plan.condition()
        if kept is not None:
            condition = self._expressions.If(kept, condition, self._false)
        verdict = self._expressions.Coalesce(self._seq([condition, self._false]))
        new = self._alias(verdict, KEPT, self._expressions.NamedExpression.newExprId())
        others = [each for each in _each(child.output()) if kept is None or each.exprId().id() != kept.exprId().id()]
        return self._project(self._seq([*others, new]), child), new.toAttribute()

    def _guarded(self, column: Any, kept: Any) -> Any:
        """A column that is computed only for kept rows, as below a filter: it may fail for other rows."""
        if kept is None or column.nodeName() != "Alias" or column.child().nodeName() == "AttributeReference":
            return column
        value = column.child()
        null = self._expressions.Literal(None, value.dataType())
        return column.withNewChildren(self._seq([self._expressions.If(kept, value, null)]))

    def _alias(self, value: Any, name: str, expression_id: Any) -> Any:
        return self._expressions.Alias(value, name, expression_id, self._seq([]), self._none, self._seq([]))

    @staticmethod
    def _only(kept: Any) -> list[Any]:
        return [] if kept is None else [kept]


def _each(sequence: Any) -> list[Any]:
    """The elements of a Scala sequence as a Python list."""
    return [sequence.apply(at) for at in range(sequence.size())]
