"""Parse JSON against a schema, strictly: each row gets typed data, or a reason that names the field and its fault.

    parsed = parse_json(source, "user STRING NOT NULL, amount DOUBLE, items ARRAY<STRUCT<sku: STRING, n: INT>>")
    parsed.columns      # those of source, then data (a struct) and reason (null: the row is good)

Spark's own ``from_json`` does not say what is wrong. ``from_json`` returns null for a field of the wrong type and for a
missing field alike. ``from_json`` converts numbers to text, and ignores all text after the first JSON value.
``parse_json`` accepts only these values, and reports all other values:

    the text       valid UTF-8, one JSON object and nothing after it, each key once
    whole numbers  from a JSON number without fraction or exponent, within the range of the type
    other numbers  from any JSON number, with all its digits; a DECIMAL is rounded to its scale
    STRING         from a JSON string only
    DATE           from a JSON string with a date in ISO 8601, and nothing else
    TIMESTAMP      from a JSON string with a date, or a date and a time, in ISO 8601
    TIMESTAMP_NTZ  the same, without a zone
    VARIANT        any JSON value
    NOT NULL       the field must be present and not null; other fields may be missing

All expressions are Spark's own; no row passes through Python.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from headrace_core.errors import InvalidArgumentError

from .errors import InvalidColumnsError, UnsupportedFieldError
from .expectations import REASON
from .json_numbers import exact_numbers, numbers_of

#: Longest excerpt of a wrong value, and longest reason, in characters.
EXCERPT_CHARACTERS, REASON_CHARACTERS = 40, 1_000

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_NUMBERS = (FloatType, DoubleType, DecimalType)
_TIMES = (DateType, TimestampType, TimestampNTZType)
#: Patterns of times whose meaning Spark's cast keeps. For other texts the cast invents or drops a part: it adds today's
#: date to a time, and ignores the text after a date, or the zone of a time.
_KEPT = {
    DateType: r"^\s*[+-]?\d{4,}(-\d{1,2}){0,2}\s*$",
    TimestampType: r"^\s*[+-]?\d{4}",
    TimestampNTZType: r"^\s*[+-]?\d{4,}(-\d{1,2}){0,2}([T ][\d:.]*)?\s*$",
}
#: A marker that ends the JSON array in which a text is parsed. Spark's parser ignores all text after the first value,
#: so a text is parsed as the first element of an array of two. If further text follows the JSON value, the second
#: element of the array is this text, and not the marker. No record can have the marker, because it is random.
_END = f"headrace:end-of-record:{secrets.token_hex(8)}"


def parse_json(
    frame: DataFrame,
    schema: str | StructType,
    *,
    column: str = "value",
    value_bytes_max: int | None = None,
    refuse_unknown: bool = False,
) -> DataFrame:
    """Return ``frame`` with the columns ``data``, a struct of ``schema`` (a StructType, or DDL), and ``reason``.

    ``column`` holds the JSON, binary or string. A value with more than ``value_bytes_max`` bytes gets a reason and is
    not parsed. ``refuse_unknown``: a value with a field that ``schema`` lacks gets a reason; otherwise the field is
    ignored. In a row with a reason, ``data`` is null.

    Raises UnsupportedFieldError for a type that JSON cannot hold, and InvalidColumnsError.
    """
    wanted = cast("StructType", StructType.fromDDL(schema)) if isinstance(schema, str) else schema
    _check_type(wanted, "")
    _check_columns(frame, column)
    if value_bytes_max is not None and value_bytes_max < 1:
        raise InvalidArgumentError(f"value_bytes_max={value_bytes_max}: must be 1 or more, or None")
    value_column = F.col(column)
    text = value_column.cast("string")
    size = F.octet_length(value_column)
    is_large = size > F.lit(value_bytes_max) if value_bytes_max is not None else F.lit(False)
    in_array = F.concat(F.lit("["), text, F.lit(f',"{_END}"]'))
    parsed = frame.withColumn(
        _PARSED, F.when(value_column.isNotNull() & ~is_large & F.is_valid_utf8(text), F.try_parse_json(in_array))
    )
    everything = F.col(_PARSED)
    is_one = F.try_variant_get(everything, "$[1]", "string") == F.lit(_END)
    is_one = F.coalesce(is_one & F.try_variant_get(everything, "$[2]", "variant").isNull(), F.lit(False))
    parsed = parsed.withColumn(_PARSED, F.when(is_one, F.try_variant_get(everything, "$[0]", "variant")))
    record = F.col(_PARSED)
    numbers = None
    if (exact := exact_numbers(text, wanted)) is not None:
        parsed = parsed.withColumn(_NUMBERS_OF_TEXT, F.when(record.isNotNull(), exact))
        numbers = F.col(_NUMBERS_OF_TEXT)
    # Compute in stages, so that Spark computes each member and each typed value once.
    members = [F.col(f"{_PARSED}_{number}") for number in range(len(wanted.fields))]
    typed = [F.col(f"{_PARSED}_typed_{number}") for number in range(len(wanted.fields))]
    parsed = parsed.withColumns(
        {f"{_PARSED}_{number}": _member(record, field.name) for number, field in enumerate(wanted.fields)}
    )
    parsed = parsed.withColumns(
        {
            f"{_PARSED}_typed_{number}": _value(member, field.dataType, _in_field(numbers, field))
            for number, (member, field) in enumerate(zip(members, wanted.fields, strict=True))
        }
    )
    faults = [
        _presence_fault(
            member, field.dataType, field.nullable, F.lit(field.name), _in_field(numbers, field), value=value
        )
        for member, value, field in zip(members, typed, wanted.fields, strict=True)
    ]
    if refuse_unknown:
        known = F.array(*[F.lit(name) for name in wanted.fieldNames()]).cast("array<string>")
        unknown = F.array_except(F.map_keys(_entries(record)), known)
        faults.append(F.when(F.size(unknown) > 0, F.concat(F.lit("unknown fields: "), F.concat_ws(", ", unknown))))
    of_fields = F.concat_ws("; ", *faults)
    reason = (
        F.when(value_column.isNull(), F.lit(f"{column}: null"))
        .when(is_large, F.concat(F.lit(f"{column}: "), size, F.lit(f" bytes, more than {value_bytes_max}")))
        .when(~F.is_valid_utf8(text), F.lit(f"{column}: not UTF-8"))
        .when(record.isNull(), F.lit(f"{column}: malformed JSON"))
        .when(~text.rlike(r"^\s*\{"), _expected(record, "object", F.lit("value")))
        .when(of_fields != "", F.substring(of_fields, 1, REASON_CHARACTERS))
    )
    data = F.struct(*[value.alias(field.name) for value, field in zip(typed, wanted.fields, strict=True)])
    parsed = parsed.withColumn(REASON, reason).withColumn("data", F.when(F.col(REASON).isNull(), data))
    return parsed.select(*[F.col(f"`{name}`") for name in frame.columns], "data", REASON)


#: Temporary columns with the parsed text, and with the numbers that a VARIANT does not keep.
_PARSED, _NUMBERS_OF_TEXT = "__parsed_json", "__parsed_json_numbers"


def _check_columns(frame: DataFrame, column: str) -> None:
    if column not in frame.columns:
        raise InvalidColumnsError(f"the frame has no column {column!r}; its columns are {', '.join(frame.columns)}")
    taken = [name for name in ("data", REASON, _PARSED, _NUMBERS_OF_TEXT) if name in frame.columns]
    if taken:
        raise InvalidColumnsError(f"the frame already has the column {taken[0]!r}, which parse_json adds; rename it")
    kind = frame.schema[column].dataType.simpleString()
    if kind not in ("binary", "string"):
        raise InvalidColumnsError(f"the column {column!r} is {kind}, but parse_json needs a binary or string column")


def _check_type(kind: DataType, path: str) -> None:
    """Refuse types without a meaning in JSON, wherever they are in the schema."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            if any(character in field.name for character in "\"'`\\"):
                raise UnsupportedFieldError(f"field {field.name!r}: a name must have no quote and no backslash")
            _check_type(field.dataType, _joined(path, field.name))
    elif isinstance(kind, ArrayType):
        _check_type(kind.elementType, f"{path}[]")
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise UnsupportedFieldError(
                f"field {path}: the keys of a JSON object are text, not {kind.keyType.simpleString()}"
            )
        _check_type(kind.valueType, f"{path}[]")
    elif not isinstance(kind, (*_WHOLE, *_NUMBERS, *_TIMES, StringType, BooleanType, VariantType)):
        raise UnsupportedFieldError(
            f"field {path}: JSON has no {kind.simpleString()}; declare the field as STRING, and convert it afterwards "
            "(unbase64, CAST)"
        )


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _member(variant: Column, name: str) -> Column:
    return F.try_variant_get(variant, f'$["{name}"]', "variant")


def _elements(variant: Column) -> Column:
    return F.try_variant_get(variant, "$", "array<variant>")


def _entries(variant: Column) -> Column:
    return F.try_variant_get(variant, "$", "map<string,variant>")


def _bound(variant: Column, function: Callable[[Column], Column]) -> Column:
    """The result of ``function`` for ``variant``; Spark computes ``variant`` only once. Without ``_bound``, the
    expression of a nested field would repeat the expression of its parent several times, at each level."""
    return F.get(F.transform(F.array(variant), function), F.lit(0))


def _is_absent(variant: Column) -> Column:
    return variant.isNull() | F.is_variant_null(variant)


def _in_field(numbers: Column | None, field: StructField) -> Column | None:
    """The exact numbers in a field; None if it has none. ``numbers``: those of the struct."""
    return None if numbers is None or numbers_of(field.dataType) is None else numbers[field.name]


def _in_element(numbers: Column | None, index: Column) -> Column | None:
    return None if numbers is None else F.get(numbers, index)


def _in_entry(numbers: Column | None, key: Column) -> Column | None:
    return None if numbers is None else F.try_element_at(numbers, key)


def _fault(variant: Column, kind: DataType, path: Column, numbers: Column | None) -> Column:
    """A text that describes the fault of a present, non-null value; null for a correct value. ``path`` names the value
    in the text. ``numbers``: the exact numbers in the value, see json_numbers."""
    if isinstance(kind, VariantType):
        return F.lit(None).cast("string")
    if isinstance(kind, StructType):
        of_fields = [_member_fault(variant, field, path, numbers) for field in kind.fields]
        inner = F.nullif(F.concat_ws("; ", *of_fields), F.lit(""))
        return F.when(_entries(variant).isNull(), _expected(variant, "object", path)).otherwise(inner)
    if isinstance(kind, ArrayType):
        nullable, element = kind.containsNull, kind.elementType

        def at(each: Column, index: Column) -> Column:
            at_index = F.concat(path, F.lit("["), index, F.lit("]"))
            return _presence_fault(each, element, nullable, at_index, _in_element(numbers, index))

        return _of_many(variant, _elements(variant), "array", path, lambda many: F.transform(many, at))
    if isinstance(kind, MapType):
        nullable, valued = kind.valueContainsNull, kind.valueType

        def entry(each: Column) -> Column:
            at_key = F.concat(path, F.lit("."), each["key"])
            return _presence_fault(each["value"], valued, nullable, at_key, _in_entry(numbers, each["key"]))

        return _of_many(
            variant, _entries(variant), "object", path, lambda many: F.transform(F.map_entries(many), entry)
        )
    return F.when(_value(variant, kind, numbers).isNull(), _expected(variant, kind.simpleString(), path))


def _member_fault(variant: Column, field: StructField, path: Column, numbers: Column | None) -> Column:
    at = F.concat(path, F.lit(f".{field.name}"))
    member, within = _member(variant, field.name), _in_field(numbers, field)
    return _bound(member, lambda each: _presence_fault(each, field.dataType, field.nullable, at, within))


def _member_value(variant: Column, field: StructField, numbers: Column | None) -> Column:
    within = _in_field(numbers, field)
    return _bound(_member(variant, field.name), lambda each: _value(each, field.dataType, within))


def _of_many(variant: Column, many: Column, name: str, path: Column, faults: Callable[[Column], Column]) -> Column:
    """The first fault of the elements of ``many``. If ``many`` is null, the value has another type: the fault then says
    that the value should be an array or a map (``name``)."""
    first = F.get(F.array_compact(faults(many)), F.lit(0))
    return F.when(many.isNull(), _expected(variant, name, path)).otherwise(first)


def _presence_fault(
    variant: Column,
    kind: DataType,
    nullable: bool,
    path: Column,
    numbers: Column | None,
    value: Column | None = None,
) -> Column:
    """The fault of a member that may be absent; null if the member is correct. ``value``: the typed value, if it is
    known; a scalar with a typed value has no fault."""
    fault = F.when(~_is_absent(variant), _fault(variant, kind, path, numbers))
    if value is not None and not isinstance(kind, StructType | ArrayType | MapType):
        fault = F.when(value.isNull(), fault)
        if not nullable:
            return F.when(value.isNull(), _presence_fault(variant, kind, nullable, path, numbers))
    if nullable:
        return fault
    missing = F.when(variant.isNull(), F.concat(path, F.lit(": missing")))
    return F.coalesce(missing, F.when(F.is_variant_null(variant), F.concat(path, F.lit(": null"))), fault)


def _expected(variant: Column, name: str, path: Column) -> Column:
    found = F.lower(F.schema_of_variant(variant))
    excerpt = F.substring(F.to_json(variant), 1, EXCERPT_CHARACTERS)
    kind = F.regexp_extract(found, "^[a-z_]+", 0)
    return F.concat(path, F.lit(f": expected {name}, found "), kind, F.lit(" "), excerpt)


def _value(variant: Column, kind: DataType, numbers: Column | None) -> Column:
    """The typed value of a variant; null if the variant is null, or is of another type. ``numbers``: the exact numbers
    in the value, see json_numbers."""
    if isinstance(kind, VariantType):
        return variant
    if isinstance(kind, StructType):
        fields = [_member_value(variant, field, numbers).alias(field.name) for field in kind.fields]
        return F.when(_entries(variant).isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(_elements(variant), lambda each, index: _value(each, element, _in_element(numbers, index)))
    if isinstance(kind, MapType):
        valued = kind.valueType
        return F.transform_values(_entries(variant), lambda key, each: _value(each, valued, _in_entry(numbers, key)))
    found = F.schema_of_variant(variant)
    if isinstance(kind, _WHOLE):
        fits = found == "BIGINT"
    elif isinstance(kind, _NUMBERS):
        fits = found.isin("BIGINT", "DOUBLE", "FLOAT") | found.startswith("DECIMAL")
    elif isinstance(kind, BooleanType):
        fits = found == "BOOLEAN"
    else:
        fits = found == "STRING"
    if isinstance(kind, _TIMES):
        fits &= F.try_variant_get(variant, "$", "string").rlike(_KEPT[type(kind)])
    value = F.try_variant_get(variant, "$", kind.simpleString())
    if isinstance(kind, DecimalType) and numbers is not None:
        value = F.when(found == "DOUBLE", numbers).otherwise(value)
    elif isinstance(kind, FloatType | DoubleType) and numbers is not None:
        value = F.coalesce(numbers, value)
    if isinstance(kind, FloatType | DoubleType):
        # JSON has no infinity: Spark converts a number beyond the type's range, such as 1e400, to Infinity.
        fits &= F.abs(value) < F.lit(float("inf"))
    return F.when(fits, value)
