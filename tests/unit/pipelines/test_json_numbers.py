"""Which JSON texts are parsed for their exact numbers, and what is replaced in them first. Java and Python read these
patterns alike."""

from __future__ import annotations

import re
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from headrace_pipelines.json_numbers import ENDLESS, INEXACT, NEGATIVE_ZERO, numbers_of

_DIGITS = st.from_regex(r"(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?", fullmatch=True)
_EXPONENTS = st.from_regex(r"[eE][+-]?[0-9]{1,9}", fullmatch=True)


def kept_by_a_variant(text: str) -> bool:
    """Whether Spark's VARIANT keeps a number: as an integer or a decimal of at most 38 digits, without an exponent."""
    whole, _, fraction = text.lstrip("-").partition(".")
    return "e" not in text.lower() and len((whole + fraction).lstrip("0")) <= 38 and len(fraction) <= 38


def replaced(text: str) -> str:
    return re.sub(NEGATIVE_ZERO, "-0.0", re.sub(ENDLESS, r"\g<1>9999", text))


@given(st.sampled_from(["", "-"]), _DIGITS, st.one_of(st.just(""), _EXPONENTS))
def test_each_number_that_a_variant_changes_is_read_again(sign: str, digits: str, exponent: str) -> None:
    text = sign + digits + exponent
    if not kept_by_a_variant(text) or re.fullmatch(r"-0(\.0*)?", text):
        for place in (f'{{"a":{text}}}', f"[1,{text}]", f'{{"a": [\n{text}]}}'):
            assert re.search(INEXACT, place), place


@given(st.sampled_from(["", "-"]), _DIGITS, st.one_of(st.just(""), _EXPONENTS))
def test_a_replaced_number_is_the_same_or_beyond_every_type(sign: str, digits: str, exponent: str) -> None:
    text = sign + digits + exponent
    after = replaced(f"[{text}]")[1:-1]
    power = int(exponent[1:] or 0)
    if abs(power) < 10_000:
        assert Decimal(after) == Decimal(text)
    else:
        assert after == sign + digits + re.sub(r"[0-9]+$", "9999", exponent)
    assert not re.search(ENDLESS, after)


def test_only_a_whole_negative_zero_becomes_a_double() -> None:
    assert (
        replaced('{"a":-0,"b":[-0, -0],"c":-0.5,"d":-01,"e":"-0"}')
        == '{"a":-0.0,"b":[-0.0, -0.0],"c":-0.5,"d":-01,"e":"-0"}'
    )


def test_the_numbers_of_a_schema_are_those_with_a_fraction() -> None:
    price, items = DecimalType(9, 2), StructType().add("sku", StringType())
    kind = (
        StructType()
        .add("user", StringType())
        .add("amount", DoubleType())
        .add("items", ArrayType(items.add("price", price)))
        .add("tags", MapType(StringType(), IntegerType()))
        .add("rates", MapType(StringType(), FloatType()))
        .add("geo", StructType().add("name", StringType()))
        .add("any", VariantType())
    )
    assert numbers_of(kind) == (
        StructType()
        .add("amount", DoubleType())
        .add("items", ArrayType(StructType().add("price", price)))
        .add("rates", MapType(StringType(), FloatType()))
    )
    assert numbers_of(StructType().add("user", StringType()).add("n", IntegerType())) is None
