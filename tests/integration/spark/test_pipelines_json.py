"""JSON against a schema: which rows are good, and the reasons of bad rows."""

from __future__ import annotations

import decimal
import json
import math
import random
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.errors import InvalidColumnsError, UnsupportedFieldError
from headrace_pipelines.json_parsing import parse_json

SCHEMA = (
    "user STRING NOT NULL, amount DOUBLE, n INT, at TIMESTAMP, items ARRAY<STRUCT<sku: STRING, n: INT>>, "
    "tags MAP<STRING, STRING>, geo STRUCT<lat: DOUBLE NOT NULL>"
)
GOOD = [
    '{"user":"u","amount":1.5,"n":7,"at":"2026-01-01T00:00:00Z","items":[{"sku":"a","n":1}],"tags":{"a":"b"}}',
    '{"user":"u"}',
    ' {"user":"u","amount":3,"n":null} ',
    '{"user":"u","geo":{"lat":1},"colour":"unknown fields are ignored"}',
    '{"user":"u","items":[]}',
]
#: Each invalid JSON text, and the reason that the parser gives for it.
BAD = {
    '{"amount":1}': "user: missing",
    '{"user":null}': "user: null",
    '{"user":5,"amount":"x"}': 'user: expected string, found bigint 5; amount: expected double, found string "x"',
    '{"user":"u","amount":true}': "amount: expected double, found boolean true",
    '{"user":"u","n":1.5}': "n: expected int, found decimal 1.5",
    '{"user":"u","n":3000000000}': "n: expected int, found bigint 3000000000",
    '{"user":"u","amount":1e400}': 'amount: expected double, found double "Infinity"',
    '{"user":"u","amount":-1e400}': 'amount: expected double, found double "-Infinity"',
    '{"user":"u","at":"soon"}': 'at: expected timestamp, found string "soon"',
    '{"user":"u","at":5}': "at: expected timestamp, found bigint 5",
    '{"user":"u","items":{"a":1}}': 'items: expected array, found object {"a":1}',
    '{"user":"u","items":[{"n":1},{"n":"x"}]}': 'items[1].n: expected int, found string "x"',
    '{"user":"u","items":[3]}': "items[0]: expected object, found bigint 3",
    '{"user":"u","tags":{"a":1}}': "tags.a: expected string, found bigint 1",
    '{"user":"u","geo":{}}': "geo.lat: missing",
    '{"user":"u","geo":7}': "geo: expected object, found bigint 7",
    '{"user":"u"} tail': "value: malformed JSON",
    '{"user":"u"}{"user":"v"}': "value: malformed JSON",
    '{"user":"u"},{"user":"v"}': "value: malformed JSON",
    '{"user":"u"}]': "value: malformed JSON",
    '{"user":"u","user":"v"}': "value: malformed JSON",
    '{"user":"u"': "value: malformed JSON",
    "": "value: malformed JSON",
    "[1]": "value: expected object, found array [1]",
    "7": "value: expected object, found bigint 7",
    "null": "value: expected object, found void null",
}


def test_good_records_are_typed_and_bad_ones_have_a_reason(spark: Any) -> None:
    texts = [*GOOD, *BAD]
    rows = [(text.encode(),) for text in texts] + [(b'{"user":"\xff"}',), (None,)]
    parsed = parse_json(spark.createDataFrame(rows, "value binary"), SCHEMA)
    assert parsed.columns == ["value", "data", "reason"]
    found = parsed.collect()
    reasons = {bytes(row.value).decode(): row.reason for row in found[: len(texts)]}
    assert reasons == {**dict.fromkeys(GOOD), **BAD}
    assert [row.reason for row in found[len(texts) :]] == ["value: not UTF-8", "value: null"]
    assert all((row.data is None) == (row.reason is not None) for row in found)
    first = found[0].data
    assert (first.user, first.amount, first.n, first.at.isoformat()) == ("u", 1.5, 7, "2026-01-01T00:00:00")
    assert [tuple(item) for item in first["items"]] == [("a", 1)]
    assert first.tags == {"a": "b"}
    assert found[2].data.amount == 3.0
    assert found[3].data.geo.lat == 1.0


#: For each type, the values that keep their meaning, and those of which Spark's cast would invent or drop a part.
TIMES = {
    "DATE": (
        {"2026-02-28": "2026-02-28", "2026-02": "2026-02-01", "+12345-01-01": "+12345-01-01"},
        ["2026-02-28 and more", "2026-02-28T12:00:00Z", "2026-02-28T99:99", "12:30", "2026-02-30", "today"],
    ),
    "TIMESTAMP": (
        {
            "2026-02-28": "2026-02-28 00:00:00",
            "2026-02-28T12:30:00+05:30": "2026-02-28 07:00:00",
            "2026-02-28 12:30:00.000001Z": "2026-02-28 12:30:00.000001",
            "+12345-01-01T00:00:00Z": "+12345-01-01 00:00:00",
        },
        ["12:30", "T12:30:00", "12:30:00Z", "2026-02-28T24:00:00Z", "now"],
    ),
    "TIMESTAMP_NTZ": (
        {"2026-02-28T12:30:00": "2026-02-28 12:30:00", "2026-02-28 12:30:00.5": "2026-02-28 12:30:00.5"},
        ["2026-02-28T12:30:00+05:30", "2026-02-28T12:30:00Z", "2026-02-28 12:30:00 Europe/Paris", "12:30"],
    ),
}


@pytest.mark.parametrize("kind", TIMES)
def test_a_time_keeps_its_meaning_or_has_a_reason(spark: Any, kind: str) -> None:
    kept, refused = TIMES[kind]
    texts = [json.dumps({"at": text}) for text in (*kept, *refused)]
    rows = parse_json(spark.createDataFrame([(text,) for text in texts], "value string"), f"at {kind}")
    found = {
        row.value: (row.at, row.reason) for row in rows.selectExpr("value", "string(data.at) AS at", "reason").collect()
    }
    expected = [(at, None) for at in kept.values()]
    expected += [(None, f'at: expected {kind.lower()}, found string "{text}"') for text in refused]
    assert [found[text] for text in texts] == expected


#: DECIMAL types and the numbers that each of them keeps, in every form that a writer may choose.
DECIMALS = {
    "DECIMAL(38,24)": ["9.87654321098765432E-7", "0.000000987654321098765432", "1.25E+3", "-1e-24", "1E-30", "-0"],
    "DECIMAL(38,0)": [
        "9" * 38,
        f"-{'9' * 38}",
        f"{2**53 + 1}",
        "9." + "9" * 37 + "E37",
        "9" * 38 + ".4",
        "1e-12345678",
    ],
    "DECIMAL(38,38)": [f"0.{'1' * 38}", f"-1.{'2' * 37}e-1", f"0.{'0' * 37}15"],
    "DECIMAL(20,2)": ["90071992547409931.25", "9.007199254740993150E16", "0E-3", "1e-99999999999"],
}
DOUBLES = [
    "-0.0",
    "-0",
    "-0e5",
    "0.0",
    "5e-324",
    "1.7976931348623157e308",
    "0.1",
    "9007199254740993",
    "1" * 40,
    "1e-99999",
]
_WIDE = decimal.Context(prec=2_000)


def fitted(text: str, kind: str) -> Decimal:
    """The number as a DECIMAL, rounded to its scale."""
    scale = int(kind.partition(",")[2][:-1])
    number = Decimal("0") if "e-9999" in text or "e-1234" in text else Decimal(text)
    return number.quantize(Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, _WIDE)


def numbers_in(kind: str, text: str) -> str:
    """A record with the number at the top, in a struct in an array, and in a map."""
    return f'{{"n": {text}, "many": [null, {{"n":{text}}}], "named": {{"a":{text} , "b":null}}, "note": "{text},-0"}}'


def read_numbers(spark: Any, kind: str, texts: list[str]) -> list[Any]:
    frame = spark.createDataFrame([(numbers_in(kind, text),) for text in texts], "value string")
    schema = f"note STRING, n {kind}, many ARRAY<STRUCT<n: {kind}>>, named MAP<STRING, {kind}>"
    rows = parse_json(frame, schema).collect()
    assert [row.reason for row in rows] == [None] * len(texts)
    assert [row.data.note for row in rows] == [f"{text},-0" for text in texts], "strings stay as they are"
    found = [[row.data.n, row.data.many[1].n, row.data.named["a"]] for row in rows]
    assert all(row.data.many[0] is None and row.data.named["b"] is None for row in rows)
    assert [list(map(repr, each)) for each in found] == [[repr(each[0])] * 3 for each in found]
    return [each[0] for each in found]


@pytest.mark.parametrize("kind", DECIMALS)
def test_decimals_have_all_their_digits_in_every_form_and_place(spark: Any, kind: str) -> None:
    precision, scale = map(int, kind[8:-1].split(","))
    chance = random.Random(50)
    texts = list(DECIMALS[kind])
    for _ in range(60):
        digits = chance.randint(1, precision)
        number = Decimal(chance.randrange(10**digits)).scaleb(-scale)
        texts += [f"{number:f}", f"{number:e}", f"{-number:E}"]
    assert read_numbers(spark, kind, texts) == [fitted(text, kind) for text in texts]


def test_doubles_keep_their_sign_and_their_value(spark: Any) -> None:
    found = read_numbers(spark, "DOUBLE", DOUBLES)
    assert [(each, math.copysign(1, each)) for each in found] == [
        (float(text), math.copysign(1, float(text))) for text in DOUBLES
    ]


@pytest.mark.parametrize("text", ["1e38", "9" * 39, "1e999999999", "-1e400", f"9.{'9' * 38}E37"])
def test_a_number_that_no_decimal_holds_has_a_reason(spark: Any, text: str) -> None:
    frame = spark.createDataFrame([(f'{{"n":[{text}]}}',)], "value string")
    (row,) = parse_json(frame, "n ARRAY<DECIMAL(38,0)>").collect()
    assert row.data is None
    assert row.reason.startswith("n[0]: expected decimal(38,0), found double ")


def test_no_record_ends_itself(spark: Any) -> None:
    text = '{"user":"u"},"headrace:end-of-record"] tail'
    (row,) = parse_json(spark.createDataFrame([(text,)], "value string"), "user STRING").collect()
    assert row.reason == "value: malformed JSON"


def test_a_changed_schema_is_ignored_or_refused_as_asked(spark: Any) -> None:
    frame = spark.createDataFrame([('{"user":"u","colour":"red","size":3}',)], "value string")
    assert parse_json(frame, "user STRING").collect()[0].reason is None
    assert parse_json(frame, "user STRING", refuse_unknown=True).collect()[0].reason == "unknown fields: colour, size"
    assert parse_json(frame, "user STRING, colour STRING, size INT", refuse_unknown=True).collect()[0].reason is None


def test_a_value_above_the_limit_is_not_parsed(spark: Any) -> None:
    frame = spark.range(1).select(F.concat(F.lit('{"user":"'), F.repeat(F.lit("x"), 5_000_000), F.lit('"}')).alias("v"))
    (row,) = parse_json(frame, "user STRING", column="v", value_bytes_max=1_048_576).select("data", "reason").collect()
    assert (row.data, row.reason) == (None, "v: 5000011 bytes, more than 1048576")
    (row,) = parse_json(frame, "user STRING", column="v").select(F.length("data.user").alias("n"), "reason").collect()
    assert (row.n, row.reason) == (5_000_000, None)


def test_schemas_and_frames_that_do_not_fit_are_refused(spark: Any) -> None:
    frame = spark.createDataFrame([("{}",)], "value string")
    with pytest.raises(UnsupportedFieldError, match=r"field items\[\]\.photo: JSON has no binary; declare"):
        parse_json(frame, "items ARRAY<STRUCT<photo: BINARY>>")
    with pytest.raises(UnsupportedFieldError, match="the keys of a JSON object are text, not int"):
        parse_json(frame, "counts MAP<INT, INT>")
    with pytest.raises(InvalidColumnsError, match="no column 'body'; its columns are value"):
        parse_json(frame, "user STRING", column="body")
    with pytest.raises(InvalidColumnsError, match="already has the column 'data'"):
        parse_json(frame.withColumn("data", F.lit(1)), "user STRING")
    with pytest.raises(InvalidColumnsError, match="is int, but parse_json needs a binary or string column"):
        parse_json(frame.withColumn("n", F.lit(1)), "user STRING", column="n")
    with pytest.raises(InvalidArgumentError, match="value_bytes_max=0"):
        parse_json(frame, "user STRING", value_bytes_max=0)
