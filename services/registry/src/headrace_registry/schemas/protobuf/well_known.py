"""The files that every Protobuf schema may import without a reference, as in Confluent's registry.

This module has only the names of the types, because no check and no text needs the fields of these types.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from headrace_registry.schemas.protobuf.elements import Enum, File, Message

#: Maps the path of a file to its types. The name of a nested type is MESSAGE.TYPE; the sign "#" marks an enum.
_TYPES: Final = {
    "google/protobuf/any.proto": "Any",
    "google/protobuf/api.proto": "Api Method Mixin",
    "google/protobuf/descriptor.proto": (
        "FileDescriptorSet #Edition FileDescriptorProto DescriptorProto DescriptorProto.ExtensionRange "
        "DescriptorProto.ReservedRange ExtensionRangeOptions ExtensionRangeOptions.Declaration "
        "#ExtensionRangeOptions.VerificationState FieldDescriptorProto #FieldDescriptorProto.Type "
        "#FieldDescriptorProto.Label OneofDescriptorProto EnumDescriptorProto EnumDescriptorProto.EnumReservedRange "
        "EnumValueDescriptorProto ServiceDescriptorProto MethodDescriptorProto FileOptions #FileOptions.OptimizeMode "
        "MessageOptions FieldOptions #FieldOptions.CType #FieldOptions.JSType #FieldOptions.OptionRetention "
        "#FieldOptions.OptionTargetType FieldOptions.EditionDefault FieldOptions.FeatureSupport OneofOptions "
        "EnumOptions EnumValueOptions ServiceOptions MethodOptions #MethodOptions.IdempotencyLevel "
        "UninterpretedOption UninterpretedOption.NamePart FeatureSet FeatureSetDefaults SourceCodeInfo "
        "SourceCodeInfo.Location GeneratedCodeInfo GeneratedCodeInfo.Annotation"
    ),
    "google/protobuf/duration.proto": "Duration",
    "google/protobuf/empty.proto": "Empty",
    "google/protobuf/field_mask.proto": "FieldMask",
    "google/protobuf/source_context.proto": "SourceContext",
    "google/protobuf/struct.proto": "Struct Value #NullValue ListValue",
    "google/protobuf/timestamp.proto": "Timestamp",
    "google/protobuf/type.proto": "Type Field #Field.Kind #Field.Cardinality Enum EnumValue Option #Syntax",
    "google/protobuf/wrappers.proto": (
        "DoubleValue FloatValue Int64Value UInt64Value Int32Value UInt32Value BoolValue StringValue BytesValue"
    ),
    "google/type/calendar_period.proto": "#CalendarPeriod",
    "google/type/color.proto": "Color",
    "google/type/date.proto": "Date",
    "google/type/datetime.proto": "DateTime TimeZone",
    "google/type/dayofweek.proto": "#DayOfWeek",
    "google/type/decimal.proto": "Decimal",
    "google/type/expr.proto": "Expr",
    "google/type/fraction.proto": "Fraction",
    "google/type/interval.proto": "Interval",
    "google/type/latlng.proto": "LatLng",
    "google/type/localized_text.proto": "LocalizedText",
    "google/type/money.proto": "Money",
    "google/type/month.proto": "#Month",
    "google/type/phone_number.proto": "PhoneNumber PhoneNumber.ShortCode",
    "google/type/postal_address.proto": "PostalAddress",
    "google/type/quaternion.proto": "Quaternion",
    "google/type/timeofday.proto": "TimeOfDay",
    "confluent/meta.proto": "Meta",
    "confluent/type/decimal.proto": "Decimal",
}


@cache
def well_known(path: str) -> File | None:
    """The file of a path, or None for a file that needs a reference."""
    types = _TYPES.get(path)
    if types is None:
        return None
    package = path.rpartition("/")[0].replace("/", ".")
    file = File("proto3", package)
    messages: dict[str, Message] = {}
    for entry in types.split():
        full = entry.removeprefix("#")
        outer, _, name = full.rpartition(".")
        element = Enum(name) if entry.startswith("#") else Message(name)
        if isinstance(element, Message):
            messages[full] = element
        (messages[outer].types if outer else file.types).append(element)
    return file
