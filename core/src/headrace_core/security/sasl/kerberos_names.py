"""Names of Kerberos principals, and the rules that convert them to users' names.

A principal is ``primary@REALM`` or ``primary/instance@REALM``. The rules are those of Kafka's
``sasl.kerberos.principal.to.local.rules`` (MIT Kerberos' auth_to_local), and the first rule that matches applies::

    DEFAULT                              the primary, if the realm is the default realm
    RULE:[n:FORMAT](REGEX)s/A/B/gL       principals with n components: FORMAT has $0 (the realm), $1 and $2
                                         (REGEX), s/A/B/, g (all matches) and L or U (lower or upper case) may be absent

``RULE:[1:$1@$0](.*@CORP\\.EXAMPLE)s/@.*//`` converts ``alice@CORP.EXAMPLE`` to ``alice``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InvalidConfigError, SaslAuthenticationFailedError
from .exchange import GSSAPI, check_user, failed

RULES_KEY = "sasl.kerberos.principal.to.local.rules"
_NAME = re.compile(r"([^/@\\]+)(?:/([^/@\\]+))?(?:@([^/@\\]*))?")
_RULE = re.compile(r"RULE:\[(\d+):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?(L|U)?")
_PARAMETER = re.compile(r"\$(\d+)")
_REPLACED = re.compile(r"\\(.)|\$(\d)")


@dataclass(frozen=True, slots=True)
class PrincipalName:
    """A parsed principal. ``instance``: the host of a service, or None. ``realm``: None if the name has none."""

    primary: str
    instance: str | None
    realm: str | None

    def __str__(self) -> str:
        instance = "" if self.instance is None else f"/{self.instance}"
        return f"{self.primary}{instance}" + ("" if self.realm is None else f"@{self.realm}")


def parse_name(text: str) -> PrincipalName | None:
    """Parse ``primary[/instance][@REALM]``. Returns None for any other name, such as a name with three components or
    with escaped characters."""
    found = _NAME.fullmatch(text)
    return None if found is None else PrincipalName(found[1], found[2], found[3])


@dataclass(frozen=True, slots=True)
class _Default:
    realm: str

    def apply(self, parameters: Sequence[str]) -> str | None:
        """The rule DEFAULT: the first component of a name in the default realm."""
        return parameters[1] if parameters[0] == self.realm else None


@dataclass(frozen=True, slots=True)
class _Rule:
    components: int
    format: str
    match: re.Pattern[str] | None
    pattern: re.Pattern[str] | None
    replacement: str
    repeats: bool
    case: str

    def apply(self, parameters: Sequence[str]) -> str | None:
        """The user's name; None if the rule does not match."""
        if len(parameters) - 1 != self.components:
            return None
        result = _PARAMETER.sub(lambda found: parameters[int(found[1])], self.format)
        if self.match is not None and not self.match.fullmatch(result):
            return None
        if self.pattern is not None:
            result = self.pattern.sub(self._replace, result, count=0 if self.repeats else 1)
        return {"L": result.lower(), "U": result.upper()}.get(self.case, result)

    def _replace(self, match: re.Match[str]) -> str:
        return _REPLACED.sub(lambda found: found[1] or match[int(found[2])] or "", self.replacement)


class ShortNames:
    """Maps principals to users' names. ``default_realm``: the realm of the rule DEFAULT."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Raises InvalidConfigError, which names the wrong rule."""
        self.default_realm = default_realm
        self._rules = tuple(_Default(default_realm) if rule == "DEFAULT" else _parsed(rule) for rule in rules)

    def user_of(self, principal: str) -> str:
        """Return the user's name of a principal. Raises SaslAuthenticationFailedError if no rule applies."""
        name = parse_name(principal)
        if name is None:
            raise failed(GSSAPI, f"the principal {principal[:200]!r} is not primary@REALM or primary/instance@REALM")
        realm = self.default_realm if name.realm is None else name.realm
        parameters = [realm, name.primary] + ([] if name.instance is None else [name.instance])
        for rule in self._rules:
            user = rule.apply(parameters)
            if user is not None:
                return _checked(user, principal)
        raise failed(
            GSSAPI, f"no rule of {RULES_KEY} applies to {principal[:200]}; the default realm is {self.default_realm}"
        )


def _checked(user: str, principal: str) -> str:
    if "/" in user or "@" in user:
        raise _not_simple(user, principal)
    return check_user(user, GSSAPI)


def _not_simple(user: str, principal: str) -> SaslAuthenticationFailedError:
    return failed(
        GSSAPI, f"{RULES_KEY} converts {principal[:200]} to {user[:200]!r}; a user's name must not contain / or @"
    )


def _parsed(rule: str) -> _Rule:
    found = _RULE.fullmatch(rule)
    if found is None:
        raise InvalidConfigError(
            f"{rule[:200]!r} is not a rule; write DEFAULT or RULE:[n:FORMAT](REGEX)s/PATTERN/REPLACEMENT/g and L or U"
        )
    components, text, match, pattern, replacement, repeats, case = found.groups()
    count = int(components)
    for index in _PARAMETER.findall(text):
        if int(index) > count:
            raise InvalidConfigError(f"{rule[:200]!r}: ${index} is outside the range $0 to ${count}")
    compiled = _compiled(pattern, rule)
    replacement = replacement or ""
    groups = 0 if compiled is None else compiled.groups
    if any(index and int(index) > groups for _, index in _REPLACED.findall(replacement)):
        raise InvalidConfigError(f"{rule[:200]!r}: the replacement names a group that the pattern does not have")
    return _Rule(count, text, _compiled(match, rule), compiled, replacement, repeats == "g", case or "")


def _compiled(pattern: str | None, rule: str) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidConfigError(f"{rule[:200]!r}: {pattern[:100]!r} is not a regular expression: {error}") from None
