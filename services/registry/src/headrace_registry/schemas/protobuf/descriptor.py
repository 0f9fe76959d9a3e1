"""A .proto file as a FileDescriptorProto, the form in which Protobuf's own libraries exchange schemas.

Clients such as confluent-kafka for Python register the bytes in base64, and ask for them with ``format=serialized``.
The package does not use Protobuf's library, so the package stays pure.

Source: google/protobuf/descriptor.proto; protobuf.dev, "Encoding".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, Final

from headrace_registry.schemas.model import InvalidSchemaError
from headrace_registry.schemas.protobuf.elements import (
    SCALARS,
    Call,
    Constant,
    Enum,
    Extend,
    Extensions,
    Field,
    File,
    Group,
    Label,
    MapType,
    Message,
    OneOf,
    Option,
    OptionKind,
    Reserved,
    Service,
)
from headrace_registry.schemas.protobuf.names import Types, entry_name
from headrace_registry.schemas.protobuf.text import NESTING_MAX, unescaped

#: Maps each message of descriptor.proto to its fields: number, name and kind. A kind is s (string), i (int32), b
#: (bool), the name of a message or the name of an enum. A star marks a repeated field.
_MESSAGES: Final = {
    "File": (
        "1 name s, 2 package s, 3 dependency s*, 10 public_dependency i*, 11 weak_dependency i*, "
        "4 message_type Message*, 5 enum_type Enum*, 6 service Service*, 7 extension Field*, "
        "8 options FileOptions, 12 syntax s"
    ),
    "Message": (
        "1 name s, 2 field Field*, 6 extension Field*, 3 nested_type Message*, 4 enum_type Enum*, "
        "5 extension_range Range*, 8 oneof_decl OneOf*, 7 options MessageOptions, 9 reserved_range Range*, "
        "10 reserved_name s*"
    ),
    "Field": (
        "1 name s, 3 number i, 4 label i, 5 type i, 6 type_name s, 2 extendee s, 7 default_value s, 9 oneof_index i, "
        "10 json_name s, 8 options FieldOptions, 17 proto3_optional b"
    ),
    "Range": "1 start i, 2 end i",
    "OneOf": "1 name s",
    "Enum": "1 name s, 2 value Constant*, 3 options EnumOptions, 4 reserved_range Range*, 5 reserved_name s*",
    "Constant": "1 name s, 2 number i, 3 options ConstantOptions",
    "Service": "1 name s, 2 method Call*, 3 options ServiceOptions",
    "Call": (
        "1 name s, 2 input_type s, 3 output_type s, 4 options CallOptions, 5 client_streaming b, 6 server_streaming b"
    ),
    "FileOptions": (
        "1 java_package s, 8 java_outer_classname s, 9 optimize_for OptimizeMode, 10 java_multiple_files b, "
        "11 go_package s, 16 cc_generic_services b, 17 java_generic_services b, 18 py_generic_services b, "
        "20 java_generate_equals_and_hash b, 23 deprecated b, 27 java_string_check_utf8 b, 31 cc_enable_arenas b, "
        "36 objc_class_prefix s, 37 csharp_namespace s, 39 swift_prefix s, 40 php_class_prefix s, 41 php_namespace s, "
        "44 php_metadata_namespace s, 45 ruby_package s"
    ),
    "MessageOptions": (
        "1 message_set_wire_format b, 2 no_standard_descriptor_accessor b, 3 deprecated b, 7 map_entry b, "
        "11 deprecated_legacy_json_field_conflicts b"
    ),
    "FieldOptions": (
        "1 ctype CType, 2 packed b, 3 deprecated b, 5 lazy b, 6 jstype JSType, 10 weak b, 15 unverified_lazy b, "
        "16 debug_redact b, 17 retention OptionRetention"
    ),
    "EnumOptions": "2 allow_alias b, 3 deprecated b, 6 deprecated_legacy_json_field_conflicts b",
    "ConstantOptions": "1 deprecated b, 3 debug_redact b",
    "ServiceOptions": "33 deprecated b",
    "CallOptions": "33 deprecated b, 34 idempotency_level IdempotencyLevel",
}
#: The types of options that are enums. Maps an enum's name to the names and numbers of its constants.
_ENUMS: Final = {
    "OptimizeMode": {"SPEED": 1, "CODE_SIZE": 2, "LITE_RUNTIME": 3},
    "CType": {"STRING": 0, "CORD": 1, "STRING_PIECE": 2},
    "OptionRetention": {"RETENTION_UNKNOWN": 0, "RETENTION_RUNTIME": 1, "RETENTION_SOURCE": 2},
    "JSType": {"JS_NORMAL": 0, "JS_STRING": 1, "JS_NUMBER": 2},
    "IdempotencyLevel": {"IDEMPOTENCY_UNKNOWN": 0, "NO_SIDE_EFFECTS": 1, "IDEMPOTENT": 2},
}
_LABELS: Final = {1: Label.OPTIONAL, 2: Label.REQUIRED, 3: Label.REPEATED}
_LABEL_NUMBERS: Final = {label: number for number, label in _LABELS.items()}
_SCALAR_NAMES: Final = {number: name for name, number in SCALARS.items()}
_GROUP, _MESSAGE, _ENUM = 10, 11, 14
#: The escapes of the default of a bytes field; other bytes that are no ASCII text are octal numbers.
_BYTES: Final = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}


def _table(text: str) -> dict[int, tuple[str, str, bool]]:
    rows = (entry.split() for entry in text.split(", "))
    return {int(number): (name, kind.rstrip("*"), kind.endswith("*")) for number, name, kind in rows}


_TABLES: Final = {message: _table(text) for message, text in _MESSAGES.items()}


def read(data: bytes) -> File:
    """Read a FileDescriptorProto. Raise InvalidSchemaError for bytes that are no FileDescriptorProto."""
    return _file(_decode(data, "File", 0))


def write(file: File, types: Types) -> bytes:
    """Write a file as a FileDescriptorProto. The result has only the options that ``_MESSAGES`` lists."""
    return _encode(_Encoder(file, types).file(), "File")


def _refuse(problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(f"the schema is neither a .proto file nor a FileDescriptorProto in base64: {problem}")


def _decode(data: bytes, message: str, depth: int) -> dict[str, Any]:
    """The known fields of a message: strings, ints, bools and nested dicts; repeated fields as lists."""
    if depth > 2 * NESTING_MAX:
        raise _refuse(f"messages are nested deeper than {NESTING_MAX} levels")
    values: dict[str, Any] = {}
    table = _TABLES[message]
    for number, value in _wire_fields(data):
        if number not in table:
            continue
        name, kind, is_repeated = table[number]
        if is_repeated:
            values.setdefault(name, []).extend(_repeated(value, kind, name, depth))
        else:
            values[name] = _value(value, kind, name, depth)
    return values


def _repeated(value: int | bytes, kind: str, name: str, depth: int) -> Iterator[Any]:
    if kind == "i" and isinstance(value, bytes):  # packed
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            yield _value(number, kind, name, depth)
    else:
        yield _value(value, kind, name, depth)


def _value(value: int | bytes, kind: str, name: str, depth: int) -> Any:
    if isinstance(value, int) != (kind in ("i", "b") or kind in _ENUMS):
        raise _refuse(f"the field {name} has the wrong wire type")
    if isinstance(value, bytes):
        if kind != "s":
            return _decode(value, kind, depth + 1)
        try:
            return value.decode(errors="surrogateescape" if name == "default_value" else "strict")
        except UnicodeDecodeError:
            raise _refuse(f"the field {name} is not valid UTF-8") from None
    if kind == "b":
        return bool(value)
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message with their numbers: varints as int, length-delimited fields as bytes; fields of a fixed
    width are skipped."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        match key & 7:
            case 0:
                value, position = _varint(data, position)
                yield key >> 3, value
            case 2:
                length, position = _varint(data, position)
                if length > len(data) - position:
                    raise _refuse("the bytes end in the middle of a field")
                yield key >> 3, data[position : position + length]
                position += length
            case 1:
                position += 8
            case 5:
                position += 4
            case other:
                raise _refuse(f"the wire type {other} is unknown")
        if position > len(data):
            raise _refuse("the bytes end in the middle of a field")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position == len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise _refuse("the bytes end in the middle of a number")


def _encode(values: dict[str, Any], message: str) -> bytes:
    parts = []
    for number, (name, kind, is_repeated) in _TABLES[message].items():
        if name in values:
            each = values[name] if is_repeated else [values[name]]
            parts += [_encoded_field(number, value, kind) for value in each]
    return b"".join(parts)


def _encoded_field(number: int, value: Any, kind: str) -> bytes:
    if kind in ("i", "b") or kind in _ENUMS:
        return _encoded_varint(number << 3) + _encoded_varint(int(value) & 0xFFFFFFFFFFFFFFFF)
    data = value.encode(errors="surrogateescape") if kind == "s" else _encode(value, kind)
    return _encoded_varint(number << 3 | 2) + _encoded_varint(len(data)) + data


def _encoded_varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _options(values: dict[str, Any], message: str) -> list[Option]:
    """The options of a decoded message, in the form that the text of a .proto file has."""
    options = []
    for name, kind, _ in _TABLES[message].values():
        if name in values.get("options", {}):
            value = values["options"][name]
            if kind == "s":
                options.append(Option(name, OptionKind.STRING, value))
            elif kind == "b":
                options.append(Option(name, OptionKind.WORD, "true" if value else "false"))
            else:
                names = {constant: word for word, constant in _ENUMS[kind].items()}
                options.append(Option(name, OptionKind.WORD, names.get(value, str(value))))
    return options


def _file(values: dict[str, Any]) -> File:
    dependencies = values.get("dependency", [])
    public = values.get("public_dependency", [])
    is_public, weak = set(public), set(values.get("weak_dependency", []))
    if any(not 0 <= index < len(dependencies) for index in public):
        raise _refuse("a public import has no path")
    syntax = values.get("syntax") or None
    if syntax not in (None, "proto2", "proto3"):
        raise _refuse(f'the syntax "{syntax[:80]}" is unknown; it must be proto2 or proto3')
    is_proto3 = syntax == "proto3"
    return File(
        syntax=syntax,
        package=values.get("package", ""),
        imports=[path for index, path in enumerate(dependencies) if index not in is_public],
        public_imports=[dependencies[index] for index in public],
        weak_imports={path for index, path in enumerate(dependencies) if index in weak},
        options=_options(values, "FileOptions"),
        types=_types(values, "message_type", is_proto3),
        extensions=_extensions(values, is_proto3),
        services=[_service(one) for one in values.get("service", [])],
    )


def _types(values: dict[str, Any], messages: str, is_proto3: bool) -> list[Message | Enum]:
    return [
        *(_message(one, is_proto3) for one in values.get(messages, [])),
        *(_enum(one) for one in values.get("enum_type", [])),
    ]


def _need(values: dict[str, Any], name: str, of: str) -> Any:
    if name not in values:
        raise _refuse(f"{of} has no {name}")
    return values[name]


def _message(values: dict[str, Any], is_proto3: bool) -> Message:
    reserved: list[Reserved] = [
        *((start, end - 1) if end - 1 > start else start for start, end in _ranges(values, "reserved_range")),
        *values.get("reserved_name", []),
    ]
    message = Message(
        _need(values, "name", "a message"),
        types=_types(values, "nested_type", is_proto3),
        options=_options(values, "MessageOptions"),
        extensions=_extensions(values, is_proto3),
        extension_ranges=[Extensions([(start, end - 1)]) for start, end in _ranges(values, "extension_range")],
        reserved=[[value] for value in reserved],
        nested=[_need(one, "name", "a message") for one in values.get("nested_type", [])],
    )
    oneofs = [OneOf(_need(one, "name", "a oneof")) for one in values.get("oneof_decl", [])]
    groups_by_name: dict[str, list[Message]] = {}  # the nested messages that may be groups, the first one last
    for nested in reversed(message.types):
        if isinstance(nested, Message):
            groups_by_name.setdefault(nested.name, []).append(nested)
    taken: set[int] = set()
    for one in values.get("field", []):
        fields, groups = message.fields, message.groups
        index = one.get("oneof_index")
        is_in_oneof = index is not None and not one.get("proto3_optional")
        if is_in_oneof:
            if not 0 <= index < len(oneofs):
                raise _refuse(f'the message "{message.name}" has no oneof with the index {index}')
            fields, groups = oneofs[index].fields, oneofs[index].groups
        parsed = _field(one, is_proto3, is_in_oneof)
        if one.get("type") == _GROUP:
            group = _take_group(groups_by_name, message.name, str(parsed.type))
            taken.add(id(group))
            groups.append(Group(parsed, group))
        else:
            fields.append(parsed)
    message.types = [each for each in message.types if id(each) not in taken]
    message.oneofs = [oneof for oneof in oneofs if oneof.fields or oneof.groups]  # except the oneofs of optional fields
    return message


def _take_group(messages: dict[str, list[Message]], outer: str, type_name: str) -> Message:
    """Take the message of a group of the message ``outer`` out of its nested messages."""
    name = type_name.rpartition(".")[2]
    if not messages.get(name):
        raise _refuse(f'the group "{name[:80]}" of the message "{outer[:80]}" has no message')
    return messages[name].pop()


def _ranges(values: dict[str, Any], name: str) -> Iterator[tuple[int, int]]:
    for one in values.get(name, []):
        yield _need(one, "start", "a range"), _need(one, "end", "a range")


def _field(values: dict[str, Any], is_proto3: bool, is_in_oneof: bool) -> Field:
    name = _need(values, "name", "a field")
    number = values.get("type")
    kind = _SCALAR_NAMES.get(number or 0) or _need(values, "type_name", f'the field "{name[:80]}"')
    label = _LABELS.get(values.get("label", 1))
    if is_in_oneof or (is_proto3 and label is not Label.REPEATED and not values.get("proto3_optional")):
        label = None
    one = Field(name, _need(values, "number", f'the field "{name[:80]}"'), kind, label)
    one.options = _options(values, "FieldOptions")
    if "default_value" in values:
        default = values["default_value"]
        if kind == "bytes":
            default = unescaped(default).decode(errors="surrogateescape")
        is_text = kind in ("string", "bytes")
        one.default = Option("default", OptionKind.STRING if is_text else OptionKind.WORD, default)
    if "json_name" in values:
        one.json_name = Option("json_name", OptionKind.STRING, values["json_name"])
    return one


def _extensions(values: dict[str, Any], is_proto3: bool) -> list[Extend]:
    extends: dict[str, Extend] = {}
    for one in values.get("extension", []):
        message = _need(one, "extendee", "an extension")
        extends.setdefault(message, Extend(message)).fields.append(_field(one, is_proto3, False))
    return list(extends.values())


def _enum(values: dict[str, Any]) -> Enum:
    reserved: list[Reserved] = [
        *((start, end) if end > start else start for start, end in _ranges(values, "reserved_range")),
        *values.get("reserved_name", []),
    ]
    constants = [
        Constant(_need(one, "name", "a constant"), one.get("number", 0), _options(one, "ConstantOptions"))
        for one in values.get("value", [])
    ]
    name = _need(values, "name", "an enum")
    return Enum(name, constants, [[value] for value in reserved], _options(values, "EnumOptions"))


def _service(values: dict[str, Any]) -> Service:
    calls = [
        Call(
            _need(one, "name", "a call"),
            _need(one, "input_type", "a call"),
            _need(one, "output_type", "a call"),
            one.get("client_streaming", False),
            one.get("server_streaming", False),
            _options(one, "CallOptions"),
        )
        for one in values.get("method", [])
    ]
    return Service(_need(values, "name", "a service"), calls, _options(values, "ServiceOptions"))


class _Encoder:
    """Turns the elements of a file into the fields of descriptors; ``_types`` resolves the names of types."""

    def __init__(self, file: File, types: Types) -> None:
        self._file = file
        self._types = types

    def file(self) -> dict[str, Any]:
        file = self._file
        values = {
            "name": "default.proto",
            "dependency": [*file.imports, *file.public_imports],
            "public_dependency": [len(file.imports) + index for index in range(len(file.public_imports))],
            "weak_dependency": [index for index, path in enumerate(file.imports) if path in file.weak_imports],
            "message_type": [self._message(one, file.package) for one in file.types if isinstance(one, Message)],
            "enum_type": [_enum_values(one) for one in file.types if isinstance(one, Enum)],
            "service": [self._service(one) for one in file.services],
            "extension": self._extensions(file.extensions, file.package),
            **_option_values(file.options, "FileOptions"),
        }
        if file.package:
            values["package"] = file.package
        if file.syntax == "proto3":
            values["syntax"] = file.syntax
        return values

    def _extensions(self, extends: list[Extend], scope: str) -> list[dict[str, Any]]:
        return [
            {**self._field(one, scope), "extendee": self._full(extend.message, scope)[0]}
            for extend in extends
            for one in extend.fields
        ]

    def _full(self, name: str, scope: str) -> tuple[str, int]:
        """The full name of a type, with a leading dot, and its number in FieldDescriptorProto."""
        found = self._types.find(name, scope)
        assert found is not None, "the schema checks that all types exist"
        return f".{found.name}", _ENUM if isinstance(found.element, Enum) else _MESSAGE

    def _message(self, message: Message, outer: str) -> dict[str, Any]:
        scope = f"{outer}.{message.name}" if outer else message.name
        nested = [self._message(one, scope) for one in message.types if isinstance(one, Message)]
        fields = []
        for one in message.fields:
            if isinstance(one.type, MapType):
                nested.append(self._entry(one, one.type, scope))
            fields.append(self._field(one, scope))
        for group in message.groups:
            nested.append(self._message(group.message, scope))
            fields.append({**self._field(group.field, scope), "type": _GROUP})
        for index, oneof in enumerate(message.oneofs):
            fields += [{**self._field(one, scope), "oneof_index": index} for one in oneof.fields]
            for group in oneof.groups:
                nested.append(self._message(group.message, scope))
                fields.append({**self._field(group.field, scope), "type": _GROUP, "oneof_index": index})
        oneofs = [{"name": oneof.name} for oneof in message.oneofs]
        for values in fields:
            if values.get("proto3_optional"):  # each optional field of proto3 has its own oneof
                values["oneof_index"] = len(oneofs)
                oneofs.append({"name": f"_{values['name']}"})
        reserved = [value for values in message.reserved for value in values]
        order = {name: place for place, name in enumerate(message.nested)}
        return {
            "name": message.name,
            "field": fields,
            "nested_type": sorted(nested, key=lambda values: order.get(values["name"], len(order))),
            "enum_type": [_enum_values(one) for one in message.types if isinstance(one, Enum)],
            "oneof_decl": oneofs,
            "extension": self._extensions(message.extensions, scope),
            "extension_range": [
                {"start": start, "end": end + 1} for one in message.extension_ranges for start, end in one.ranges
            ],
            "reserved_range": [{"start": start, "end": end + 1} for start, end in _number_ranges(reserved)],
            "reserved_name": [value for value in reserved if isinstance(value, str)],
            **_option_values(message.options, "MessageOptions"),
        }

    def _entry(self, one: Field, kind: MapType, scope: str) -> dict[str, Any]:
        """The message of the entries of a map."""
        fields = [Field("key", 1, kind.key, None), Field("value", 2, kind.value, None)]
        return {
            "name": entry_name(one.name),
            "field": [self._entry_field(part, scope) for part in fields],
            "options": {"map_entry": True},
        }

    def _entry_field(self, one: Field, scope: str) -> dict[str, Any]:
        values = self._field(one, scope)
        values.pop("proto3_optional", None)
        return values

    def _field(self, one: Field, scope: str) -> dict[str, Any]:
        label = one.label or Label.OPTIONAL
        values: dict[str, Any] = {"name": one.name, "number": one.number}
        if isinstance(one.type, MapType):
            label = Label.REPEATED
            values["type"] = _MESSAGE
            values["type_name"] = f".{scope}.{entry_name(one.name)}"
        elif one.type in SCALARS:
            values["type"] = SCALARS[one.type]
        else:
            values["type_name"], values["type"] = self._full(one.type, scope)
        values["label"] = _LABEL_NUMBERS[label]
        if self._file.is_proto3 and one.label is Label.OPTIONAL:
            values["proto3_optional"] = True
        if one.default is not None:
            values["default_value"] = _default(one.type, str(one.default.value))
        if one.json_name is not None:
            values["json_name"] = str(one.json_name.value)
        return values | _option_values(one.options, "FieldOptions")

    def _service(self, service: Service) -> dict[str, Any]:
        scope = f"{self._file.package}.{service.name}" if self._file.package else service.name
        calls = [
            {
                "name": call.name,
                "input_type": self._full(call.request, scope)[0],
                "output_type": self._full(call.response, scope)[0],
                **({"client_streaming": True} if call.streams_request else {}),
                **({"server_streaming": True} if call.streams_response else {}),
                **_option_values(call.options, "CallOptions"),
            }
            for call in service.calls
        ]
        return {"name": service.name, "method": calls, **_option_values(service.options, "ServiceOptions")}


def _default(kind: str | MapType, value: str) -> str:
    """A default as Google's compiler writes it in a descriptor."""
    if kind == "bytes":
        data = value.encode(errors="surrogateescape")
        return "".join(_BYTES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in data)
    digits = value.lstrip("+-")
    if digits == "nan" and kind in ("float", "double"):
        return digits
    if kind == "string" or kind not in SCALARS or digits[:1] not in "0123456789.":
        return value  # also inf, nan, true, and the constants of enums
    number: int | float
    if digits[:2] in ("0x", "0X"):
        number = int(value, 16)
    elif digits.isdigit():
        number = int(value, 8 if digits.startswith("0") else 10)
    else:
        number = float(value)
    return str(number) if kind not in ("float", "double") else _float(float(number), is_double=kind == "double")


def _float(number: float, *, is_double: bool) -> str:
    """The shortest of two precisions from which the number can be read again, as the compiler writes it."""
    if not is_double:
        try:
            (number,) = struct.unpack("f", struct.pack("f", number))
        except OverflowError:
            number = math.copysign(math.inf, number)
    short = f"{number:.{15 if is_double else 6}g}"
    again = float(short) if is_double or math.isinf(number) else struct.unpack("f", struct.pack("f", float(short)))[0]
    return short if again == number else f"{number:.{17 if is_double else 9}g}"


def _number_ranges(reserved: list[Reserved]) -> Iterator[tuple[int, int]]:
    """The reserved numbers as ranges, without the names."""
    for value in reserved:
        if isinstance(value, tuple):
            yield value
        elif isinstance(value, int):
            yield value, value


def _enum_values(enum: Enum) -> dict[str, Any]:
    reserved = [value for values in enum.reserved for value in values]
    return {
        "name": enum.name,
        "value": [
            {"name": one.name, "number": one.number, **_option_values(one.options, "ConstantOptions")}
            for one in enum.constants
        ],
        "reserved_range": [{"start": start, "end": end} for start, end in _number_ranges(reserved)],
        "reserved_name": [value for value in reserved if isinstance(value, str)],
        **_option_values(enum.options, "EnumOptions"),
    }


def _option_values(options: list[Option], message: str) -> dict[str, dict[str, Any]]:
    """The options that ``_MESSAGES`` lists, under the key "options" if there are any."""
    kinds = {name: kind for name, kind, _ in _TABLES[message].values()}
    values: dict[str, Any] = {}
    for option in options:
        kind = kinds.get(option.name)
        if option.is_custom or kind is None:
            continue
        if option.kind is OptionKind.STRING and kind == "s":
            values[option.name] = option.value
        elif option.kind is OptionKind.WORD and kind == "b":
            values[option.name] = option.value == "true"
        elif option.kind is OptionKind.WORD and option.value in _ENUMS.get(kind, {}):
            values[option.name] = _ENUMS[kind][option.value]
    return {"options": values} if values else {}
