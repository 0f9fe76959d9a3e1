"""Parse ``sasl.jaas.config``: ``MODULE required key="value" …;``, in the syntax of Kafka's clients and listeners."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import InvalidConfigError
from ..references import dereferenced

JAAS_CHARS_MAX = 100_000
_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<quoted>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
      | (?P<mark>[=;])
      | (?P<word>[^\s=;"']+)
    )""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LoginModule:
    """``name``: the class's name without its package, such as ScramLoginModule. The options are never shown, because
    they contain passwords."""

    name: str
    options: Mapping[str, str] = field(repr=False)

    def option(self, name: str) -> str:
        """Return the value of an option that the module needs. Raises InvalidConfigError if the option is missing."""
        value = self.options.get(name)
        if not value:
            raise InvalidConfigError(f'sasl.jaas.config: {self.name} needs the option {name}="…"')
        return value

    def flag(self, name: str) -> bool:
        return self.options.get(name, "").lower() == "true"


def parse_jaas(text: str, key: str = "sasl.jaas.config") -> LoginModule:
    """Parse the value of ``key``. Raises InvalidConfigError, which does not repeat the text."""
    if len(text) > JAAS_CHARS_MAX:
        raise InvalidConfigError(f"{key}: the value is longer than {JAAS_CHARS_MAX} characters")
    tokens = _tokens(text, key)
    if len(tokens) < 3 or tokens[0][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        raise InvalidConfigError(
            f'{key}: write MODULE required key="value" …; such as '
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="…";'
        )
    if tokens[-1] != ("mark", ";"):
        raise InvalidConfigError(f"{key}: the text does not end with a semicolon; add one")
    name, options = tokens[0][1].rpartition(".")[2], {}
    rest = tokens[2:-1]
    if len(rest) % 3:
        raise _no_pairs(key)
    for start in range(0, len(rest), 3):
        (kind, option), equals, (value_kind, value) = rest[start : start + 3]
        if kind != "word" or equals != ("mark", "=") or value_kind == "mark":
            raise _no_pairs(key)
        if option in options:
            raise InvalidConfigError(f"{key}: the option {option[:100]} is given twice")
        options[option] = dereferenced(value, f"{key}: {option[:100]}")
    return LoginModule(name, options)


def _no_pairs(key: str) -> InvalidConfigError:
    return InvalidConfigError(
        f'{key}: after the flag, write pairs key="value", and one semicolon at the end; quote values that have spaces, '
        "= or ;"
    )


def _tokens(text: str, key: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise InvalidConfigError(f'{key}: a quotation mark is not closed; write \\" for one inside a value')
        at = found.end()
        kind = found.lastgroup or ""
        value = found[kind]
        if kind == "quoted":
            value = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
        tokens.append((kind, value))
    return tokens
