"""Principal mapping rules, as Kafka's SslPrincipalMapper applies them (KIP-371)."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_core.errors import InvalidConfigError, SaslAuthenticationFailedError
from headrace_core.security.mapping import PrincipalMapper, user_principal
from tests.worlds.security import TestAuthority

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    r"DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=duke,OU=Engineering", "CN=duke,OU=Engineering"),
        ("", "CN=duke", None),
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (RULES, "CN=duke.x,O=y", "DUKE.X"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
        (r"RULE:^CN=(.*?),OU=(.*?)$/$1/", "CN=a", None),
        (r"RULE:^CN=(.*?)$/$1-$2/", "CN=a", "a-$2"),  # no second group: Kafka keeps the text
        (r"RULE:^CN=(.*?)$/$12/", "CN=a", "a2"),
        (r"RULE:^CN=(.*?)$/\$1/", "CN=a", "$1"),
        (r"RULE:^CN=(?<who>.*?)$/$1/", "CN=a", "a"),
        (r"RULE:^CN=([^,]+).*$/$1/,DEFAULT", "CN=admin,O=x", "admin"),
        (r"RULE:^CN=([^,ADEFLTU,]+)(.*)$/$1/", "CN=bob", "bob"),  # DEFAULT and commas inside of a pattern
        (r"RULE:^CN=([^,]+)\/x$/$1/", "CN=a/x", "a"),
        ("RULE:.*/x/", "abc", "xx"),  # as Java's replaceAll: the empty end matches too
    ],
)
def test_the_first_rule_that_matches_names_the_principal(rules: str, name: str, principal: str | None) -> None:
    mapper = PrincipalMapper(rules)
    if principal is None:
        with pytest.raises(SaslAuthenticationFailedError, match="no rule matches"):
            mapper.name_of(name)
    else:
        assert mapper.name_of(name) == principal


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("default", "the rule 'default' is not valid"),
        ("DEFAUL", "is not valid"),
        ("DEFAULT/L", "is not valid"),
        ("RULE:CN=(.*?),OU=ServiceUsers.*/$1", "is not valid"),
        ("rule:^CN=(.*?)$/$1/", "is not valid"),
        ("RULE:^CN=(.*?)$/$1/LU", "is not valid"),
        ("RULE:^CN=(.*?/LDEFAULT", "is not valid"),
        ("RULE:^CN=(.*?$/$1/", "is not a regular expression"),
        ("RULE:^CN=.*$/$1/", "has no group"),
    ],
)
def test_a_rule_that_is_not_understood_is_named(rules: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        PrincipalMapper(rules)


def test_the_certificate_of_a_node_names_no_user(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    node = authority.issue("n.pem", name="broker-1", uris=["headrace:broker:1"]).read_bytes()
    with pytest.raises(SaslAuthenticationFailedError, match="names no user"):
        user_principal(node, PrincipalMapper("DEFAULT"))
    user = authority.issue("u.pem", name="alice", hosts=()).read_bytes()
    assert str(user_principal(user, PrincipalMapper("RULE:^CN=(.*)$/$1/"))) == "User:alice"
