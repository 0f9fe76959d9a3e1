"""The numbers of a JSON text with all their digits, for ``json_parsing``.

Spark's VARIANT keeps a number as a double if it has an exponent or more than 38 digits, and drops the sign of -0.0.
Spark also writes a nested object anew, with doubles, where it reads it as a STRING (``from_json``,
``get_json_object``). Only ``from_json`` with the field's own type reads the digits themselves.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, DoubleType, FloatType, MapType, StructField, StructType

#: A text that may have a number that a VARIANT does not keep. Other texts are not parsed a second time.
INEXACT = r"[0-9][eE][+-]?[0-9]|[0-9.]{39}|[:,\[\s]-0"
#: An exponent of five digits or more. To fit such a number into a DECIMAL Spark would write it out, in minutes and
#: gigabytes. With the exponent 9999 in its place it is still 0, or too large for every type.
ENDLESS, _SHORT = r"([0-9][eE][+-]?)0*[1-9][0-9]{4,}", "$19999"
#: Spark reads the double -0 as 0, but -0.0 with its sign.
NEGATIVE_ZERO, _WITH_SIGN = r"(?<=[:,\[\s])-0(?=[\s,}\]])", "-0.0"
#: A column for faults that no schema has, so that from_json does not take a field of the schema for it.
_UNUSED = "__json_numbers_fault"


def numbers_of(kind: DataType) -> DataType | None:
    """The part of a type that holds numbers with a fraction; None if there is none."""
    if isinstance(kind, DecimalType | DoubleType | FloatType):
        return kind
    if isinstance(kind, ArrayType):
        element = numbers_of(kind.elementType)
        return None if element is None else ArrayType(element)
    if isinstance(kind, MapType):
        valued = numbers_of(kind.valueType)
        return None if valued is None else MapType(kind.keyType, valued)
    if isinstance(kind, StructType):
        fields = [(field.name, numbers_of(field.dataType)) for field in kind.fields]
        found = [StructField(name, each) for name, each in fields if each is not None]
        return StructType(found) if found else None
    return None


def exact_numbers(text: Column, kind: StructType) -> Column | None:
    """The numbers of a JSON object as a struct, ``numbers_of(kind)``; None if ``kind`` has none. The struct is null for
    a text whose numbers a VARIANT keeps. The replacements may change strings too, which are not read here."""
    numbers = numbers_of(kind)
    if not isinstance(numbers, StructType):
        return None
    safe = F.regexp_replace(F.regexp_replace(text, ENDLESS, _SHORT), NEGATIVE_ZERO, _WITH_SIGN)
    found = F.from_json(safe, numbers, {"columnNameOfCorruptRecord": _UNUSED})
    return F.when(text.rlike(INEXACT), found)
