"""Quality rules on DataFrames: each rule has a name, a condition and an action, and violations are counted per rule.

    RULES = Expectations(
        Expectation("amount is positive", "data.amount > 0", "quarantine"),
        Expectation("currency is known", F.col("data.currency").isin("EUR", "USD"), "warn"),
    )
    checked = RULES.apply(parsed)           # lazy; the same columns, and the column reason

A row violates a rule if the condition is false or null. The action says what happens to the row:

    warn         the row stays; only the counts show it
    drop         the row is removed; only the counts show it
    quarantine   the row stays and gets a ``reason``, so it becomes a dead letter (dead_letters.py)
    fail         the query fails, and names the rule

A row that violates several rules gets the strictest action: fail, then quarantine, then drop. Rows that already have a
``reason``, because they could not be parsed, are neither checked nor counted. The values of such rows are null.

There are two ways to count, and both are exact when Spark repeats tasks or stages (tested). ``counts`` is an
aggregation of a static frame, such as the batch of ``foreachBatch``. ``apply(observe=NAME)`` counts while the rows
pass, without a second read; ``observed`` returns the counts from the progress of the stream. Spark does not store the
progress of a stream. If the driver dies after a batch, the counts of the batch are lost, and a repeated batch reports
its counts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType, StringType

from .errors import InvalidColumnsError, InvalidExpectationError

Action = Literal["warn", "drop", "quarantine", "fail"]

#: The column that says why a row is bad; null in a good row.
REASON = "reason"
#: Maximum number of characters of an expectation's name, which is part of reasons and of names of metrics.
NAME_CHARACTERS = 100

_ROWS, _DROPPED, _QUARANTINED, _VIOLATED = "rows", "dropped", "quarantined", "violated: "


@dataclass(frozen=True, slots=True)
class Expectation:
    """A rule for rows. ``condition`` is SQL text or a Column. If the condition is false or null for a row, the row
    violates the rule. Raises InvalidExpectationError."""

    name: str
    condition: str | Column
    action: Action = "warn"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > NAME_CHARACTERS:
            raise InvalidExpectationError(
                f"name={self.name!r}: an expectation needs a name of 1 to {NAME_CHARACTERS} characters"
            )
        if self.action not in get_args(Action):
            raise InvalidExpectationError(
                f"expectation {self.name!r}: action={self.action!r} must be one of {', '.join(get_args(Action))}"
            )
        if not isinstance(self.condition, str | Column) or (
            isinstance(self.condition, str) and not self.condition.strip()
        ):
            raise InvalidExpectationError(
                f"expectation {self.name!r}: condition={self.condition!r} must be SQL text or a Column that is true "
                "for a good row"
            )

    @property
    def is_violated(self) -> Column:
        """A condition that is true for a row that violates the rule, which means that ``condition`` is false or
        null."""
        condition = F.expr(self.condition) if isinstance(self.condition, str) else self.condition
        return ~F.coalesce(condition, F.lit(False))


@dataclass(frozen=True, slots=True)
class Counts:
    """The rows that were checked, by what happened to them, and the violations of each rule. ``rows`` = ``kept`` +
    ``dropped`` + ``quarantined``; a row with several violations is in each rule's count."""

    rows: int
    dropped: int
    quarantined: int
    violations: Mapping[str, int]

    @property
    def kept(self) -> int:
        return self.rows - self.dropped - self.quarantined


class Expectations:
    """A set of expectations with different names, in the order in which reasons name them.

    Raises InvalidExpectationError if there is no expectation, or if two have the same name.
    """

    def __init__(self, *expectations: Expectation) -> None:
        wrong = [each for each in expectations if not isinstance(each, Expectation)]
        if wrong or not expectations:
            raise InvalidExpectationError(
                f"Expectations({', '.join(map(repr, wrong))}): pass one or more Expectation objects"
            )
        twice = [name for name, count in Counter(each.name for each in expectations).items() if count > 1]
        if twice:
            raise InvalidExpectationError(
                f"two expectations are named {', '.join(map(repr, twice))}; violations are counted by name, "
                "so rename one"
            )
        self.expectations = expectations

    def apply(self, frame: DataFrame, *, observe: str | Observation | None = None) -> DataFrame:
        """Return ``frame``, static or streaming, without the dropped rows and with the column ``reason``.

        ``observe``: a name for counts in the progress of a stream (``observedMetrics``), or an Observation of a static
        frame. A row that violates a rule with the action ``fail`` fails the query with EXPECTATION_FAILED. Raises
        InvalidExpectationError if a condition does not fit the columns of ``frame``, and InvalidColumnsError if its
        column ``reason`` is not a string.
        """
        judged = self._judged(frame)
        if observe is not None:
            judged = judged.observe(observe, *self._metrics())
        passes = F.when(self._any("fail"), self._failure()).otherwise(~self._is_dropped())
        reasons = [
            F.when(F.array_contains(_violated(), each.name), F.lit(each.name)) for each in self._of("quarantine")
        ]
        reason = F.col(REASON)
        if reasons:
            text = F.concat(F.lit("expectation: "), F.concat_ws("; ", *reasons))
            reason = F.coalesce(reason, F.when(self._any("quarantine"), text))
        return judged.where(passes).withColumn(REASON, reason).drop(_COLUMN)

    def counts(self, frame: DataFrame) -> Counts:
        """Count the rows and violations of a static ``frame``: the frame that ``apply`` receives, not its result.

        The count is a Spark job that reads the frame, so persist a batch that you also write. Raises
        InvalidExpectationError, also for a streaming frame.
        """
        if frame.isStreaming:
            raise InvalidExpectationError(
                "counts() needs a static frame: call it with the batch of foreachBatch, or use apply(observe=NAME) "
                "and observed()"
            )
        return self.observed(self._judged(frame).agg(*self._metrics()).collect()[0])

    def observed(self, metrics: Any) -> Counts:
        """Return the counts in ``metrics``, the row that Spark reports under the name of ``apply(observe=...)``:
        ``progress.observedMetrics[NAME]``, or ``Observation.get``."""
        found = metrics.asDict() if hasattr(metrics, "asDict") else dict(metrics)
        return Counts(
            found[_ROWS],
            found[_DROPPED],
            found[_QUARANTINED],
            {each.name: found[_VIOLATED + each.name] for each in self.expectations},
        )

    def _judged(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` with an added column: the names of the rules that the row violates. The column is null for a
        row that already has a ``reason``."""
        if REASON not in frame.columns:
            frame = frame.withColumn(REASON, F.lit(None).cast("string"))
        elif not isinstance(frame.schema[REASON].dataType, StringType):
            kind = frame.schema[REASON].dataType.simpleString()
            raise InvalidColumnsError(f"the column {REASON!r} is {kind}, not a text with a reason; rename it")
        for each in self.expectations:
            _check_condition(each, frame)
        names = [F.when(each.is_violated, F.lit(each.name)) for each in self.expectations]
        return frame.withColumn(_COLUMN, F.when(F.col(REASON).isNull(), F.array_compact(F.array(*names))))

    def _of(self, action: Action) -> list[Expectation]:
        return [each for each in self.expectations if each.action == action]

    def _any(self, action: Action) -> Column:
        """True for a row that violates a rule with this action."""
        names = F.array(*[F.lit(each.name) for each in self._of(action)]).cast("array<string>")
        return F.coalesce(F.arrays_overlap(_violated(), names), F.lit(False))

    def _is_dropped(self) -> Column:
        return self._any("drop") & ~self._any("quarantine")

    def _failure(self) -> Column:
        names = F.array(*[F.lit(each.name) for each in self._of("fail")]).cast("array<string>")
        text = F.concat(
            F.lit("[EXPECTATION_FAILED] a row violates: "),
            F.concat_ws("; ", F.array_intersect(_violated(), names)),
            F.lit("; correct the input, or choose another action for this expectation"),
        )
        return F.raise_error(text).cast("boolean")

    def _metrics(self) -> list[Column]:
        def number(condition: Column) -> Column:
            return F.count(F.when(condition, F.lit(1)))

        return [
            number(_violated().isNotNull()).alias(_ROWS),
            number(self._is_dropped()).alias(_DROPPED),
            number(self._any("quarantine")).alias(_QUARANTINED),
            *[
                number(F.array_contains(_violated(), each.name)).alias(_VIOLATED + each.name)
                for each in self.expectations
            ],
        ]


#: Temporary column with the names of the violated rules.
_COLUMN = "__violated_expectations"


def _violated() -> Column:
    return F.col(_COLUMN)


def _check_condition(expectation: Expectation, frame: DataFrame) -> None:
    """Analyse the condition alone, so that an error names its expectation."""
    condition = expectation.condition
    try:
        column = F.expr(condition) if isinstance(condition, str) else condition
        kind = frame.withColumn(_COLUMN, column).schema[_COLUMN].dataType
    except AnalysisException as error:  # ParseException too
        why = str(error).strip().splitlines()[0]
        raise InvalidExpectationError(
            f"expectation {expectation.name!r}: the condition does not fit the frame: {why}"
        ) from error
    if not isinstance(kind, BooleanType | NullType):
        raise InvalidExpectationError(
            f"expectation {expectation.name!r}: the condition is {kind.simpleString()}, but must be boolean; compare "
            "it with a value"
        )


def time_within(name: str, column: str, *, past: str, future: str, action: Action = "quarantine") -> Expectation:
    """An expectation that the timestamp ``column`` is at most ``past`` before, and ``future`` after, the start of the
    batch (intervals such as ``"7 days"``).

    A single record with a clock years in the future moves the watermark, and then Spark drops all other rows as late.
    Apply the expectation before ``withWatermark``, and pass only ``good`` rows on. Spark stores the start of a batch in
    the checkpoint, so a repeated batch has the same outcome.
    """
    return Expectation(
        name,
        f"{column} BETWEEN current_timestamp() - INTERVAL {past} AND current_timestamp() + INTERVAL {future}",
        action,
    )
