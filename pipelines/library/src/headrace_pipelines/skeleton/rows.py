"""The columns of a row, and the rules that good rows meet: pure functions of DataFrames, which tests call with small
frames."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headrace_pipelines.expectations import Expectation, Expectations
from headrace_pipelines.json_parsing import parse_json

SCHEMA = "user STRING NOT NULL, amount DOUBLE NOT NULL"
RULES = Expectations(
    Expectation("amount is positive", "data.amount > 0", "quarantine"),
    Expectation("amount is usual", "data.amount < 10000", "warn"),
)


def judged(records: DataFrame) -> DataFrame:
    """Return the records with the columns ``data``, a struct of SCHEMA, and ``reason``, which is null in a good row."""
    return RULES.apply(parse_json(records, SCHEMA))
