"""Principals of Kerberos, and the rules that map them to users (Kafka's KerberosShortNamer)."""

from __future__ import annotations

import pytest

from headrace_core.errors import InvalidConfigError, SaslAuthenticationFailedError
from headrace_core.security.sasl.kerberos_names import PrincipalName, ShortNames, parse_name

REALM = "CORP.EXAMPLE"


def user_of(principal: str, *rules: str) -> str:
    return ShortNames(rules or ("DEFAULT",), REALM).user_of(principal)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("alice@CORP.EXAMPLE", PrincipalName("alice", None, REALM)),
        ("kafka/host.example@CORP.EXAMPLE", PrincipalName("kafka", "host.example", REALM)),
        ("alice", PrincipalName("alice", None, None)),
        ("", None),
        ("a/b/c@CORP.EXAMPLE", None),
        ("alice@A@B", None),
        ("/host@CORP.EXAMPLE", None),
        (r"alice\/admin@CORP.EXAMPLE", None),
        (r"alice\@OTHER@CORP.EXAMPLE", None),
    ],
)
def test_principals_are_parsed(text: str, parsed: PrincipalName | None) -> None:
    assert parse_name(text) == parsed
    if parsed is not None:
        assert str(parsed) == text


@pytest.mark.parametrize(
    ("principal", "rules", "user"),
    [
        ("alice@CORP.EXAMPLE", ["DEFAULT"], "alice"),
        ("kafka/host@CORP.EXAMPLE", ["DEFAULT"], "kafka"),
        # Kafka's own examples (KerberosNameTest)
        (
            "App.service-name/example.com@REALM.COM",
            ["RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g", "DEFAULT"],
            "service-name",
        ),
        ("App.service-name@REALM.COM", ["RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g", "DEFAULT"], "service-name"),
        ("user/host@REALM.COM", ["RULE:[2:$1](.*)s/^.*$/guest/"], "guest"),
        ("User@REALM.COM", ["RULE:[1:$1]/L"], "user"),
        ("TestABC/host@FOO.COM", ["RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L", "RULE:[2:$1]/U"], "TESTABC"),
        ("ABC_User_ABC/host@FOO.COM", ["RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L"], "xyz_user_xyz"),
        ("ABC_User_ABC/host@FOO.COM", ["RULE:[2:$1](ABC.*)s/ABC/XYZ/L"], "xyz_user_abc"),
        ("alice@OTHER.EXAMPLE", [r"RULE:[1:$1@$0](.*@OTHER\.EXAMPLE)s/@.*/-other/"], "alice-other"),
        ("alice/admin@CORP.EXAMPLE", ["RULE:[2:$2.$1]"], "admin.alice"),
        ("alice@CORP.EXAMPLE", ["RULE:[2:$1]", "RULE:[1:u-$1]"], "u-alice"),
        ("alice@CORP.EXAMPLE", [r"RULE:[1:$1](alice)s/(a)(l)/$2\$$1/"], "l$aice"),
        ("alice@CORP.EXAMPLE", ["RULE:[1:$1](ali)", "RULE:[1:$1](ali.*)s/x/y/"], "alice"),
    ],
)
def test_the_first_rule_that_matches_applies(principal: str, rules: list[str], user: str) -> None:
    assert user_of(principal, *rules) == user


@pytest.mark.parametrize(
    ("principal", "rules", "why"),
    [
        ("alice@OTHER.EXAMPLE", ["DEFAULT"], "no rule of .* applies to alice@OTHER.EXAMPLE; the default realm is CORP"),
        ("alice@CORP.EXAMPLE", ["RULE:[2:$1]"], "no rule"),
        ("alice@CORP.EXAMPLE", ["RULE:[1:$1@$0]"], "converts alice@CORP.EXAMPLE to 'alice@CORP.EXAMPLE'"),
        ("alice@CORP.EXAMPLE", ["RULE:[1:$1/x]"], "converts alice@CORP.EXAMPLE to 'alice/x'"),
        ("alice@CORP.EXAMPLE", ["RULE:[1:$1](.*)s/.*//g"], "1 to 1000 printable characters"),
        ("a/b/c@CORP.EXAMPLE", ["DEFAULT"], "is not primary@REALM"),
        ("alice\n@CORP.EXAMPLE", ["DEFAULT"], "printable"),
    ],
)
def test_a_principal_without_a_user_is_refused(principal: str, rules: list[str], why: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match=why):
        user_of(principal, *rules)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("default", "is not a rule"),
        ("DEFAULT/g", "is not a rule"),
        ("RULE:[1:$1", "is not a rule"),
        ("RULE:[x:$1]", "is not a rule"),
        ("RULE:[1:$1]s/a/b", "is not a rule"),
        ("RULE:[1:$1]/LU", "is not a rule"),
        ("RULE:[1:$2]", r"\$2 is outside the range \$0 to \$1"),
        ("RULE:[1:$1]([)", "is not a regular expression"),
        ("RULE:[1:$1]s/(a)/$2/", "names a group"),
    ],
)
def test_a_wrong_rule_is_named(rule: str, why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why):
        ShortNames(["DEFAULT", rule], REALM)
