"""Reads the text of a .proto file.

Source: protobuf.dev, "Protocol Buffers Language Specification", proto2 and proto3.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

from headrace_registry.schemas.model import DEPTH_MAX, InvalidSchemaError
from headrace_registry.schemas.protobuf.elements import (
    CONSTANT_MAX,
    NUMBER_MAX,
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
    Word,
)
from headrace_registry.schemas.protobuf.names import entry_name

#: Matches a space, a comment, a string (also without its end), a word (name or unsigned number), or a single character.
_TOKEN = re.compile(
    r"""(?P<space>\s++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?P<closed>\*/)?+)
    |(?P<string>"(?:[^"\\\n]|\\.?)*+"?+|'(?:[^'\\\n]|\\.?)*+'?+)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*+|\.?[0-9](?:[eE][+-]|[A-Za-z0-9_.])*+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
_INTEGER = re.compile(r"(0[xX][0-9A-Fa-f]{1,16}|[0-9]{1,20})\Z", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9_.]", re.ASCII)
#: The name of an extension, or of a type with its URL, in the text format of messages.
_EXTENSION_KEY = re.compile(r"[A-Za-z0-9_./%~-]+\Z", re.ASCII)
#: An escape in a string; two escapes may be a surrogate pair.
_ESCAPE = re.compile(
    rb"\\([xX][0-9A-Fa-f]{1,2}|[0-7]{1,3}|u[dD][89ABab][0-9A-Fa-f]{2}\\u[dD][C-Fc-f][0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}"
    rb"|U[0-9A-Fa-f]{8}|.)",
    re.DOTALL,
)
_ESCAPES = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
#: Maximum nesting depth of messages, as in Google's compiler.
NESTING_MAX = 32
#: Maximum number of tokens (words, strings and signs) in a .proto file; comments do not count.
TOKENS_MAX = 250_000
_LABELS = {label.value: label for label in Label}


class _Token(NamedTuple):
    text: str
    start: int


def read(text: str) -> File:
    """Read a file. Raise InvalidSchemaError, whose message has the line and column."""
    return _Reader(text.removeprefix("\ufeff")).file()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0
        self._nesting = 0

    def _split(self) -> list[_Token]:
        tokens = []
        depth = 0
        for found in _TOKEN.finditer(self._text):
            token = found.group()
            if found["space"]:
                if token.startswith("/*") and not found["closed"]:
                    self._refuse("a comment has no end; add */", found.start())
                continue
            if found["string"] and (len(token) == 1 or token[-1] != token[0] or _is_open(token)):
                self._refuse("a string has no closing quote", found.start())
            if token in "{[<":  # the text format of options has messages in <>
                depth += 1
                if depth > DEPTH_MAX:
                    self._refuse(f"the schema is nested deeper than {DEPTH_MAX} levels", found.start())
            elif token in "}]>":
                depth -= 1
            tokens.append(_Token(token, found.start()))
            if len(tokens) > TOKENS_MAX:
                self._refuse(f"the schema has more than {TOKENS_MAX} words and signs; split the file", found.start())
        return tokens

    def _refuse(self, problem: str, start: int) -> NoReturn:
        line = self._text.count("\n", 0, start) + 1
        column = start - self._text.rfind("\n", 0, start)
        raise InvalidSchemaError(f"invalid Protobuf schema at line {line}, column {column}: {problem}")

    def _wrong(self, problem: str) -> NoReturn:
        """Refuse the token that was read last."""
        self._refuse(problem, self._tokens[self._next - 1].start)

    @property
    def _peeked(self) -> str:
        """The text of the next token; empty at the end of the file."""
        return self._tokens[self._next].text if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        if self._next == len(self._tokens):
            self._refuse("the file ends in the middle of a declaration; close what is open", len(self._text))
        self._next += 1
        return self._tokens[self._next - 1].text

    def _takes(self, text: str) -> bool:
        """Take the next token if it is ``text``."""
        if self._peeked != text:
            return False
        self._next += 1
        return True

    def _expect(self, text: str) -> None:
        token = self._take()
        if token != text:
            self._wrong(f'"{text}" is expected, not "{token[:80]}"')

    def _name(self, what: str) -> str:
        token = self._take()
        if not _NAME.match(token):
            self._wrong(f'the name of {what} is expected, not "{token[:80]}"')
        return token

    def _type_name(self, what: str) -> str:
        """Read a name with dots, between which may be spaces and comments."""
        parts = ["."] if self._takes(".") else []
        while True:
            parts.append(self._name(what))
            if not self._takes("."):
                return "".join(parts)
            parts.append(".")

    def _integer(self, what: str) -> int:
        sign = -1 if self._takes("-") else 1
        token = self._take()
        if not _INTEGER.match(token):
            self._wrong(f'{what} is expected, not "{token[:80]}"')
        if token[:2] in ("0x", "0X"):
            return sign * int(token, 16)
        if token.startswith("0") and len(token) > 1:
            if not set(token) <= set("01234567"):
                self._wrong(f'"{token}" is not an octal number')
            return sign * int(token, 8)
        return sign * int(token)

    def _string(self, what: str) -> str:
        """Read a string. Bytes that are not UTF-8 become surrogates, as in Python's ``surrogateescape``."""
        token = self._take()
        if token[0] not in "\"'":
            self._wrong(f'{what} in quotes is expected, not "{token[:80]}"')
        parts = [unescaped(token[1:-1])]
        while self._peeked[:1] in ("'", '"'):  # neighbours are one string
            parts.append(unescaped(self._take()[1:-1]))
        data = b"".join(parts)
        text = data.decode(errors="surrogateescape")
        if what != "a value" and (b"\0" in data or not _is_unicode(text)):
            self._wrong(f"{what} has a character of number 0, or bytes that are not UTF-8")
        return text

    def file(self) -> File:
        file = File()
        while self._peeked:
            word = self._take()
            match word:
                case ";":
                    pass
                case "syntax":
                    self._syntax(file)
                case "package":
                    if file.package:
                        self._wrong("the file has two packages; keep one")
                    file.package = self._type_name("a package").lstrip(".")
                    self._expect(";")
                case "import":
                    self._import(file)
                case "option":
                    file.options.append(self._option_statement())
                case "message":
                    file.types.append(self._message())
                case "enum":
                    file.types.append(self._enum())
                case "service":
                    file.services.append(self._service())
                case "extend":
                    file.extensions.append(self._extend())
                case "edition":
                    self._wrong('editions are not supported; use syntax = "proto3" or "proto2"')
                case _:
                    self._wrong(f'a declaration such as "message" is expected, not "{word[:80]}"')
        return file

    def _syntax(self, file: File) -> None:
        self._expect("=")
        syntax = self._string("a syntax")
        if syntax not in ("proto2", "proto3"):
            self._wrong(f'the syntax "{syntax[:80]}" is unknown; proto2 and proto3 exist')
        if file.syntax is not None:
            self._wrong("the file has two syntaxes; keep one")
        file.syntax = syntax
        self._expect(";")

    def _import(self, file: File) -> None:
        where = file.imports
        if self._takes("public"):
            where = file.public_imports
        is_weak = where is file.imports and self._takes("weak")
        where.append(self._string("the path of a file"))
        if is_weak:
            file.weak_imports.add(where[-1])
        self._expect(";")

    def _message(self) -> Message:
        message = Message(self._name("a message"))
        self._expect("{")
        self._message_body(message)
        return message

    def _message_body(self, message: Message) -> None:
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            self._wrong(f"messages are nested deeper than {NESTING_MAX} levels; declare them side by side")
        while not self._takes("}"):
            word = self._take()
            match word:
                case ";":
                    pass
                case "message":
                    message.types.append(self._message())
                    message.nested.append(message.types[-1].name)
                case "enum":
                    message.types.append(self._enum())
                case "extend":
                    message.extensions.append(self._extend())
                case "oneof":
                    message.oneofs.append(self._oneof(message))
                case "option":
                    message.options.append(self._option_statement())
                case "reserved":
                    message.reserved.append(self._reserved(NUMBER_MAX))
                case "extensions":
                    message.extension_ranges.append(self._extension_ranges())
                case _ if word in _LABELS:
                    self._member(message, _LABELS[word], message.fields, message.groups)
                case _:
                    self._next -= 1
                    self._member(message, None, message.fields, message.groups)
        self._nesting -= 1

    def _member(self, message: Message, label: Label | None, fields: list[Field], groups: list[Group]) -> None:
        """Read a field or a group after its label."""
        kind = self._type()
        if kind == "group":
            groups.append(self._group(label))
            message.nested.append(groups[-1].message.name)
            return
        if isinstance(kind, MapType) and label is not None:
            self._wrong("a map has no label; remove it")
        name = self._name("a field")
        if isinstance(kind, MapType):
            message.nested.append(entry_name(name))
        self._expect("=")
        fields.append(self._field_options(Field(name, self._number(), kind, label)))
        self._expect(";")

    def _type(self) -> str | MapType:
        name = self._type_name("a type")
        if name != "map" or not self._takes("<"):
            return name
        key = self._type_name("a type")
        self._expect(",")
        value = self._type_name("a type")
        self._expect(">")
        return MapType(key, value)

    def _number(self) -> int:
        number = self._integer("the number of the field")
        if not 1 <= number <= NUMBER_MAX or 19000 <= number <= 19999:
            self._wrong(f"the number of a field is from 1 to {NUMBER_MAX}, without 19000 to 19999, which are reserved")
        return number

    def _group(self, label: Label | None) -> Group:
        name = self._name("a group")
        self._expect("=")
        one = self._field_options(Field(name.lower(), self._number(), name, label))
        message = Message(name)
        self._expect("{")
        self._message_body(message)
        return Group(one, message)

    def _field_options(self, one: Field) -> Field:
        for option in self._bracketed_options():
            if option.name == "default" and not option.is_custom:
                one.default = option
            elif option.name == "json_name" and not option.is_custom:
                if not _is_unicode(str(option.value)):
                    self._wrong("the name has bytes that are not UTF-8")
                one.json_name = option
            else:
                one.options.append(option)
        return one

    def _oneof(self, message: Message) -> OneOf:
        oneof = OneOf(self._name("a oneof"))
        self._expect("{")
        while not self._takes("}"):
            if self._peeked == "option":
                self._take()
                oneof.options.append(self._option_statement())
            elif not self._takes(";"):
                if self._peeked in _LABELS:
                    self._take()
                    self._wrong("a field of a oneof has no label; remove it")
                self._member(message, None, oneof.fields, oneof.groups)
        return oneof

    def _reserved(self, largest: int) -> list[Reserved]:
        values: list[Reserved] = []
        while True:
            if self._peeked[:1] in ("'", '"'):
                values.append(self._string("a name"))
            elif _NAME.match(self._peeked):
                values.append(self._take())
            else:
                start, end = self._range(largest)
                values.append(start if end is None else (start, end))
            if not self._takes(","):
                self._expect(";")
                return values

    def _range(self, largest: int) -> tuple[int, int | None]:
        start = self._integer("a number")
        if not self._takes("to"):
            return start, None
        return start, largest if self._takes("max") else self._integer("a number or max")

    def _extension_ranges(self) -> Extensions:
        ranges = []
        while True:
            start, end = self._range(NUMBER_MAX)
            ranges.append((start, start if end is None else end))
            if not self._takes(","):
                options = self._bracketed_options()
                self._expect(";")
                return Extensions(ranges, options)

    def _enum(self) -> Enum:
        enum = Enum(self._name("an enum"))
        self._expect("{")
        while not self._takes("}"):
            if self._takes(";"):
                continue
            word = self._name("a constant")
            if word == "option" and self._peeked != "=":
                enum.options.append(self._option_statement())
            elif word == "reserved" and self._peeked != "=":
                enum.reserved.append(self._reserved(CONSTANT_MAX))
            else:
                self._expect("=")
                number = self._integer("the number of the constant")
                if not -CONSTANT_MAX - 1 <= number <= CONSTANT_MAX:
                    self._wrong("the number of a constant has 32 bits")
                enum.constants.append(Constant(word, number, self._bracketed_options()))
                self._expect(";")
        return enum

    def _extend(self) -> Extend:
        extend = Extend(self._type_name("a message"))
        self._expect("{")
        groups: list[Group] = []
        while not self._takes("}"):
            if not self._takes(";"):
                label = _LABELS.get(self._peeked)
                if label is not None:
                    self._take()
                self._member(Message(""), label, extend.fields, groups)
        if groups:
            self._wrong("groups as extensions are not supported; use a message")
        return extend

    def _service(self) -> Service:
        service = Service(self._name("a service"))
        self._expect("{")
        while not self._takes("}"):
            if self._takes("option"):
                service.options.append(self._option_statement())
            elif self._takes("rpc"):
                service.calls.append(self._call())
            else:
                self._expect(";")
        return service

    def _call(self) -> Call:
        name = self._name("a call")
        streams_request, request = self._message_of_call()
        self._expect("returns")
        streams_response, response = self._message_of_call()
        call = Call(name, request, response, streams_request, streams_response)
        if self._takes("{"):
            while not self._takes("}"):
                if self._takes("option"):
                    call.options.append(self._option_statement())
                else:
                    self._expect(";")
        else:
            self._expect(";")
        return call

    def _message_of_call(self) -> tuple[bool, str]:
        self._expect("(")
        streams = self._takes("stream")
        name = "stream" if streams and self._peeked == ")" else self._type_name("a message")
        streams = streams and name != "stream"
        self._expect(")")
        return streams, name

    def _option_statement(self) -> Option:
        option = self._option()
        self._expect(";")
        return option

    def _bracketed_options(self) -> list[Option]:
        """The options in brackets after a field or a constant, if there are any."""
        options: list[Option] = []
        if self._takes("["):
            while True:
                options.append(self._option())
                if not self._takes(","):
                    self._expect("]")
                    break
        return options

    def _option(self) -> Option:
        """Read ``name = value``. A name has parts such as ``a`` and, for an extension, ``(x.y)``, with dots between
        them."""
        parts: list[tuple[str, bool]] = []
        while not parts or self._takes("."):
            is_custom = self._takes("(")
            parts.append((self._type_name("an option") if is_custom else self._name("an option"), is_custom))
            if is_custom:
                self._expect(")")
        if len(parts) > DEPTH_MAX:
            self._wrong(f"the name of an option has more than {DEPTH_MAX} parts")
        self._expect("=")
        kind, value = self._option_value()
        for name, is_custom in reversed(parts[1:]):
            kind, value = OptionKind.OPTION, Option(name, kind, value, is_custom)
        name, is_custom = parts[0]
        return Option(name, kind, value, is_custom)

    def _option_value(self) -> tuple[OptionKind, Any]:
        if self._peeked[:1] in ("'", '"'):
            return OptionKind.STRING, self._string("a value")
        if self._takes("{"):
            return OptionKind.MAP, self._message_value("}")
        if self._takes("["):
            return OptionKind.LIST, self._list_value()
        return OptionKind.WORD, self._word()

    def _word(self) -> str:
        sign = self._take() if self._peeked in ("-", "+") else ""
        token = self._take()
        if not _VALUE.match(token):
            self._wrong(f'a value is expected, not "{token[:80]}"')
        is_name = _NAME.match(token)
        while is_name and self._takes("."):
            token += f".{self._name('a value')}"
        return sign + token

    def _message_value(self, end: str) -> dict[str, Any]:
        """Read a message in the text format. If a key appears more than once, the result has the list of the key's
        values."""
        values: dict[str, Any] = {}
        while not self._takes(end):
            key = f"[{self._extension_key()}]" if self._takes("[") else self._name("a field")
            has_colon = self._takes(":")
            value = self._nested_value() if has_colon or self._peeked == "[" else self._braced_value()
            if key in values:
                known = values[key] if isinstance(values[key], list) else [values[key]]
                known += value if isinstance(value, list) else [value]
                values[key] = known
            else:
                values[key] = value
            if not self._takes(","):
                self._takes(";")
        return values

    def _extension_key(self) -> str:
        key = ""
        while not self._takes("]"):
            key += self._take()
        if not _EXTENSION_KEY.match(key):
            self._wrong(f'the name of an extension is expected, not "{key[:80]}"')
        return key

    def _nested_value(self) -> Any:
        if self._peeked in ("{", "<"):
            return self._braced_value()
        if self._takes("["):
            return self._list_value()
        kind, value = self._option_value()
        return Word(value) if kind is OptionKind.WORD else value

    def _braced_value(self) -> dict[str, Any]:
        if self._takes("<"):
            return self._message_value(">")
        self._expect("{")
        return self._message_value("}")

    def _list_value(self) -> list[Any]:
        values: list[Any] = []
        while not self._takes("]"):
            values.append(self._nested_value())
            if not self._takes(","):
                self._expect("]")
                break
        return values


def _is_open(token: str) -> bool:
    """Whether the quote at the end of a string is escaped, so that the string continues."""
    slashes = len(token) - 1 - len(token[:-1].rstrip("\\"))
    return slashes % 2 == 1


def _is_unicode(text: str) -> bool:
    """Whether a string is without bytes that are not UTF-8."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def unescaped(text: str) -> bytes:
    """The bytes that a string in quotes means."""
    return _ESCAPE.sub(_escape, text.encode(errors="surrogatepass"))


def _escape(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    if escape[:1] in b"xX" and len(escape) > 1:
        return bytes([int(escape[1:], 16)])
    if escape[:1] in b"uU" and len(escape) > 1:
        code, *low = (int(part, 16) for part in escape[1:].split(b"\\u"))
        if low:
            code = 0x10000 + ((code & 0x3FF) << 10) + (low[0] & 0x3FF)
        return chr(code).encode(errors="surrogatepass") if code <= 0x10FFFF else "�".encode()
    if escape[:1] in b"01234567":
        return bytes([int(escape, 8) & 0xFF])
    return _ESCAPES.get(escape, escape)
