"""Principal mapping rules (KIP-371): how the distinguished name of a client's certificate becomes a principal's name.

    ssl.principal.mapping.rules=RULE:^CN=(.*?),OU=Users.*$/$1/L, RULE:^CN=(.*?)$/$1/, DEFAULT

A rule is ``RULE:pattern/replacement/`` with an optional L (lower case) or U (upper case). The first rule whose pattern
matches the whole name applies. The rule DEFAULT returns the whole name. The syntax is that of Kafka's
SslPrincipalMapper; patterns are regular expressions, and ``$1`` in the replacement is the first group.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from ..errors import InvalidConfigError, SaslAuthenticationFailedError
from .certificates import is_node, subject_name
from .principal import PRINCIPAL_CHARS_MAX, USER, Principal

KEY = "ssl.principal.mapping.rules"
_RULE = r"(DEFAULT)|RULE:((\\.|[^\\/])*)\/((\\.|[^\\/])*)\/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(rf"\s*({_RULE})\s*(,|$)")
_PARSER = re.compile(_RULE)
#: Unicode categories of characters that make two names look alike, or that end a log line: controls, formats, line
#: separators and surrogates. (Spaces of all kinds are allowed: names of organizations have them.)
_INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Cs"))
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")  # Java's (?<name>, which is (?P<name> in Python


@dataclass(frozen=True, slots=True)
class _Rule:
    """``pattern`` None: the rule DEFAULT."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        result = self.pattern.sub(lambda match: _expand(self.replacement, match), name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


class PrincipalMapper:
    """Applies the rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises InvalidConfigError, which names the rule, for an invalid list of rules."""
        self._text = rules
        self._rules = _parse(rules)

    def name_of(self, distinguished_name: str) -> str:
        """Return the principal's name. Raises SaslAuthenticationFailedError if no rule matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise SaslAuthenticationFailedError(f"{KEY}: no rule matches the certificate of {_shown(distinguished_name)}")


def user_principal(pem: bytes, mapper: PrincipalMapper) -> Principal:
    """The principal of the client whose certificate is ``pem``. Raises SaslAuthenticationFailedError for a node's
    certificate, which names no user, and for a name that no rule matches. Raises SaslAuthenticationFailedError also for
    a user's name that is empty, too long, or has invisible characters."""
    name = subject_name(pem)
    if is_node(pem):
        raise SaslAuthenticationFailedError(
            f"the certificate of {_shown(name)} is a node's and names no user; issue a user's certificate with "
            "`headrace certs issue user NAME`"
        )
    found = Principal(USER, mapper.name_of(name))
    if not found.name or len(str(found)) > PRINCIPAL_CHARS_MAX:
        raise SaslAuthenticationFailedError(
            f"the certificate of {_shown(name)} gives a user's name of {len(found.name)} characters; 1 to "
            f"{PRINCIPAL_CHARS_MAX - len(USER) - 1} are allowed: see {KEY}"
        )
    if not _INVISIBLE.isdisjoint(map(unicodedata.category, found.name)):
        raise SaslAuthenticationFailedError(
            f"the certificate gives the user's name {found.name[:100]!a}, which has invisible characters; issue one "
            "without them"
        )
    return found


def _shown(name: str) -> str:
    """The name as text for one log line."""
    return name[:200] if name.isprintable() else ascii(name[:200])


def _parse(text: str) -> tuple[_Rule, ...]:
    rules: list[_Rule] = []
    for found in _SPLITTER.finditer(text.strip()):
        rule = found[1]
        match = _PARSER.match(rule)
        assert match is not None  # the last alternative matches the empty text
        if match.end() != len(rule):
            raise InvalidConfigError(
                f"{KEY}: the rule {rule!r} is not valid from {rule[match.end() :]!r} on; write "
                "DEFAULT, or RULE:pattern/replacement/ with an optional L (lower case) or U (upper case) at the end"
            )
        if match[1] is not None:
            rules.append(_Rule())
        elif match[2] is not None:
            try:
                pattern = re.compile(_NAMED_GROUP.sub("(?P<", match[2]))
            except re.error as error:
                raise InvalidConfigError(
                    f"{KEY}: the pattern {match[2]!r} is not a regular expression: {error}"
                ) from None
            if not pattern.groups and re.search(r"(?<!\\)\$\d", match[4]):
                raise InvalidConfigError(
                    f"{KEY}: the pattern {match[2]!r} has no group, and the replacement {match[4]!r} refers to one"
                )
            rules.append(_Rule(pattern, match[4], match[6]))
    return tuple(rules)


def _expand(replacement: str, match: re.Match[str]) -> str:
    """Replace ``$1`` by the first group, and ``\\x`` by x, as Java does. ``$12`` without a twelfth group is the first
    group and a 2; ``$3`` without a third group stays as it is."""
    result: list[str] = []
    position = 0
    while position < len(replacement):
        character = replacement[position]
        position += 1
        if character == "\\" and position < len(replacement):
            result.append(replacement[position])
            position += 1
        elif character == "$" and (group := re.match(r"\d+", replacement[position:])) is not None:
            digits = group[0]
            while digits and int(digits) > match.re.groups:
                digits = digits[:-1]
            position += len(digits)
            result.append((match[int(digits)] or "") if digits else "$")
        else:
            result.append(character)
    return "".join(result)
