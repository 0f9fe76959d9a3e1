"""GSSAPI against a real KDC: exchanges of client and server in one process (marker kerberos)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace_core.config.client_keys import PRODUCER
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import HeadraceError, InvalidConfigError, NetworkError, SaslAuthenticationFailedError
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.sasl.client import Login
from headrace_core.security.sasl.exchange import Identity
from headrace_core.security.sasl.mechanisms import Mechanisms
from tests.worlds.security import CLOCK_SKEW_S, REALM, Realm, krb5_module, running_realm
from tests.worlds.waiting import until

SERVICE = f"kafka/localhost@{REALM}"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with running_realm(tmp_path_factory.mktemp("realm")) as running:
        yield running


@pytest.fixture(scope="module")
def server(realm: Realm) -> Mechanisms:
    return mechanisms(krb5_module(realm.keytab(SERVICE, name="kafka"), SERVICE))


@pytest.fixture(scope="module")
def alice(realm: Realm) -> str:
    """The keytab of alice."""
    return realm.keytab("alice")


def mechanisms(jaas: str, **more: str) -> Mechanisms:
    values = SERVER.parse({key.replace("__", "."): value for key, value in more.items()})
    values["gssapi.sasl.jaas.config"] = jaas
    return Mechanisms(values, SecurityImage, lambda: time.time() * 1_000)


def login(**more: Any) -> Login:
    keys = {"sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "kafka"} | more
    return Login(PRODUCER.parse(keys))


def by_keytab(keytab: str, principal: str = "alice", **more: Any) -> Login:
    return login(sasl_kerberos_keytab=keytab, sasl_kerberos_principal=principal, **more)


def by_cache(cache: str) -> Login:
    module = f'com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true ticketCache="{cache}";'
    return login(sasl_jaas_config=module)


def authenticate(client: Login, server: Mechanisms, host: str = "localhost") -> Identity:
    ours, theirs = client.start(host), server.start("GSSAPI")
    data: bytes | None = ours.first()
    while True:
        assert data is not None
        step = theirs.step(data)
        data = ours.step(step.data)
        if step.identity is not None:
            assert ours.is_complete
            return step.identity


def refused(client: Login, server: Mechanisms, host: str = "localhost") -> str:
    with pytest.raises(SaslAuthenticationFailedError) as caught:
        authenticate(client, server, host)
    return str(caught.value)


def outcome(client: Login, server: Mechanisms) -> str:
    """The user, or the error."""
    try:
        return authenticate(client, server).user
    except (SaslAuthenticationFailedError, NetworkError) as error:
        return str(error)


def test_a_keytab_authenticates_and_the_session_ends_with_the_ticket(server: Mechanisms, alice: str) -> None:
    identity = authenticate(by_keytab(alice), server)
    assert (identity.user, identity.mechanism) == ("alice", "GSSAPI")
    assert identity.expires_at_ms is not None
    assert abs(identity.expires_at_ms / 1_000 - time.time() - 36_000) < 30


def test_a_ticket_cache_authenticates(realm: Realm, server: Mechanisms, alice: str) -> None:
    cache = realm.kinit("alice", alice, "-l", "60s")
    identity = authenticate(by_cache(cache), server)
    assert identity.user == "alice"
    assert 0 < identity.expires_at_ms / 1_000 - time.time() <= 60  # type: ignore[operator]


def test_the_default_ticket_cache_is_that_of_kinit(realm: Realm, server: Mechanisms, alice: str) -> None:
    realm.kinit("alice", alice, cache=f"FILE:{realm.directory}/default.cache")
    assert authenticate(login(), server).user == "alice"
    Path(realm.directory, "default.cache").unlink()
    assert "there is no ticket in the default ticket cache" in refused(login(), server)
    assert "run kinit" in refused(login(), server)


def test_an_expired_ticket_is_named(realm: Realm, server: Mechanisms, alice: str) -> None:
    cache = realm.kinit("alice", alice, "-l", "1s", cache=f"FILE:{realm.directory}/expired.cache")
    until(lambda: "has expired; run kinit" in outcome(by_cache(cache), server), within_s=CLOCK_SKEW_S + 10)


def test_clocks_that_differ_are_named(realm: Realm, server: Mechanisms, alice: str) -> None:
    """faketime gives a client another clock: the KDC refuses it; the server refuses a request of another time."""
    refused_by_kdc = realm.run("faketime", "+1 hour", sys.executable, "-c", _CLIENT, alice)
    assert "the clocks of client and KDC or server differ too much" in refused_by_kdc
    cache = realm.kinit("alice", alice, cache=f"FILE:{realm.directory}/skewed.cache")
    realm.run("kvno", "-c", cache, SERVICE)
    later = realm.run("faketime", "-f", "+0.5m", sys.executable, "-c", _CLIENT, "", cache)
    with pytest.raises(SaslAuthenticationFailedError, match="the clocks of client and server differ too much"):
        server.start("GSSAPI").step(bytes.fromhex(later.strip().splitlines()[-1]))


_CLIENT = """
import sys
from headrace_core.config.client_keys import PRODUCER
from headrace_core.errors import HeadraceError
from headrace_core.security.sasl.client import Login
keys = {"sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "kafka"}
if sys.argv[1]:
    keys |= {"sasl_kerberos_keytab": sys.argv[1], "sasl_kerberos_principal": "alice"}
else:
    module = 'a.Krb5LoginModule required useTicketCache=true ticketCache="%s";'
    keys["sasl_jaas_config"] = module % sys.argv[2]
try:
    print(Login(PRODUCER.parse(keys)).start("localhost").first().hex())
except HeadraceError as error:
    print(error)
"""


def test_a_keytab_gets_new_tickets(realm: Realm, server: Mechanisms) -> None:
    client = by_keytab(realm.keytab("short", options='-maxlife "4 seconds"'), "short")
    first = authenticate(client, server).expires_at_ms
    assert first is not None
    until(lambda: (authenticate(client, server).expires_at_ms or 0) - first >= 2_000, within_s=3.5)


def test_a_client_with_a_keytab_survives_an_outage_of_the_kdc(realm: Realm, server: Mechanisms) -> None:
    client = by_keytab(realm.keytab("outage", options='-maxlife "2 seconds"'), "outage")
    assert authenticate(client, server).user == "outage"
    realm.stop()
    try:
        until(lambda: "no KDC answers" in outcome(client, server), within_s=10)
    finally:
        realm.start()
    assert authenticate(client, server).user == "outage"


def test_threads_share_a_keytab_whose_tickets_end(realm: Realm, server: Mechanisms) -> None:
    client = by_keytab(realm.keytab("shared", options='-maxlife "2 seconds"'), "shared")
    ends_s = time.monotonic() + 2.5

    def work() -> set[str]:
        seen = set()
        while time.monotonic() < ends_s:
            seen.add(outcome(client, server))
        return seen

    with ThreadPoolExecutor(8) as threads:
        seen = [each.result() for each in [threads.submit(work) for _ in range(8)]]
    assert {each for each in set().union(*seen) if "ended during the exchange" not in each} == {"shared"}


def test_a_key_that_the_kdc_no_longer_has_is_named(realm: Realm, server: Mechanisms) -> None:
    old = realm.keytab("bob", name="bob-old")
    realm.admin("cpw -randkey bob")
    assert f"the KDC refuses the key in {old}; get a new keytab" in refused(by_keytab(old, "bob"), server)


def test_a_keytab_that_is_missing_or_of_another_client_is_named(server: Mechanisms, alice: str) -> None:
    assert f"the keytab {alice} has no key of carol" in refused(by_keytab(alice, "carol"), server)
    assert "the keytab /nowhere/alice.keytab does not exist" in refused(by_keytab("/nowhere/alice.keytab"), server)


def test_a_client_that_the_kdc_does_not_know_is_named(realm: Realm, server: Mechanisms) -> None:
    keytab = realm.keytab("dave")
    realm.admin("delprinc -force dave")
    assert "the KDC does not know the client dave" in refused(by_keytab(keytab, "dave"), server)


def test_a_service_that_the_kdc_does_not_know_is_named(server: Mechanisms, alice: str) -> None:
    assert "the KDC does not know the service kafka/elsewhere" in refused(by_keytab(alice), server, "elsewhere")
    other = by_keytab(alice, sasl_kerberos_service_name="headrace")
    assert "the KDC does not know the service headrace/localhost" in refused(other, server)


def test_a_kdc_that_does_not_answer_is_a_network_error(realm: Realm, server: Mechanisms) -> None:
    keytab = Path(realm.directory, "silent.keytab")
    realm.keytab("erin", name="silent")
    realm.stop()
    try:
        with pytest.raises(NetworkError, match=r"no KDC answers .*; check krb5.conf") as caught:
            by_keytab(str(keytab), "erin").start("localhost").first()
    finally:
        realm.start()
    assert caught.value.retriable


def test_a_ticket_for_another_service_is_refused(realm: Realm, server: Mechanisms, alice: str) -> None:
    realm.admin("addprinc -randkey other/localhost")
    client = by_keytab(alice, sasl_kerberos_service_name="other")
    assert f"the ticket is not for {SERVICE}" in refused(client, server)


def test_a_listener_accepts_only_its_own_principal_of_a_keytab(realm: Realm, alice: str) -> None:
    keytab = realm.keytab("kafka/one", "kafka/two", name="both")
    one = mechanisms(krb5_module(keytab, "kafka/one"))
    assert authenticate(by_keytab(alice), one, "one").user == "alice"
    assert f"the ticket is not for kafka/one@{REALM}" in refused(by_keytab(alice), one, "two")


def test_a_server_with_an_older_key_says_so_and_a_new_keytab_needs_no_restart(realm: Realm, alice: str) -> None:
    keytab = realm.keytab("kafka/rolled", name="rolled")
    rolled = mechanisms(krb5_module(keytab, "kafka/rolled"))
    assert authenticate(by_keytab(alice), rolled, "rolled").user == "alice"
    realm.admin("cpw -randkey kafka/rolled")
    assert "the server's keytab has an older key" in refused(by_keytab(alice), rolled, "rolled")
    realm.admin(f"ktadd -k {keytab} kafka/rolled")
    assert authenticate(by_keytab(alice), rolled, "rolled").user == "alice"


def test_a_replayed_ticket_is_refused(server: Mechanisms, alice: str) -> None:
    data = by_keytab(alice).start("localhost").first()
    assert server.start("GSSAPI").step(data).data
    with pytest.raises(SaslAuthenticationFailedError, match="a replay of an earlier one"):
        server.start("GSSAPI").step(data)


def test_a_message_of_another_exchange_is_refused(server: Mechanisms, alice: str) -> None:
    def begun() -> tuple[Any, Any, bytes]:
        ours, theirs = by_keytab(alice).start("localhost"), server.start("GSSAPI")
        assert ours.step(theirs.step(ours.first()).data) == b""
        last = ours.step(theirs.step(b"").data)
        assert last is not None
        return ours, theirs, last

    (_, first, message), (_, second, other) = begun(), begun()
    copied = bytes(bytearray(other))  # MIT Kerberos changes the bytes that it cannot unwrap
    with pytest.raises(SaslAuthenticationFailedError, match="does not belong to this exchange"):
        first.step(copied)
    assert second.step(other).identity.user == "alice"
    with pytest.raises(SaslAuthenticationFailedError):
        second.step(message)


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (b"\x01\0\0\0bob", "the authorization id must be the ticket's principal"),
        (b"\x01\0\0\0" + f"bob@{REALM}".encode(), "the authorization id must be the ticket's principal"),
        (b"\x01\0\0\0\xff", "is not UTF-8"),
        (b"\x02\0\0\0", "chose a SASL security layer"),
        (b"\x04\0\0\0alice", "chose a SASL security layer"),
        (b"\x01", "the client's last message has 1 bytes"),
        (b"\x01\0\0\0" + b"a" * 2_000, "the client's last message has 2004 bytes"),
    ],
)
def test_the_last_message_is_checked(server: Mechanisms, alice: str, last: bytes, why: str) -> None:
    assert why in last_message(server, alice, last)


@pytest.mark.parametrize("authzid", ["", "alice", f"alice@{REALM}"])
def test_the_authorization_id_may_be_the_clients_own(server: Mechanisms, alice: str, authzid: str) -> None:
    # (the size matters only with a security layer; Java's client sends one)
    assert last_message(server, alice, b"\x01\0\xff\xff" + authzid.encode()) == "alice"


def last_message(server: Mechanisms, keytab: str, last: bytes) -> str:
    """Send a last message of one's own; returns the user, or the error."""
    ours, theirs = by_keytab(keytab).start("localhost"), server.start("GSSAPI")
    assert ours.step(theirs.step(ours.first()).data) == b""
    theirs.step(b"")
    wrapped = ours._context.wrap(last, False).message  # type: ignore[attr-defined]
    try:
        identity = theirs.step(wrapped).identity
    except SaslAuthenticationFailedError as error:
        return str(error)
    assert identity is not None
    return identity.user


def test_garbage_is_a_typed_error(server: Mechanisms, alice: str) -> None:
    good = by_keytab(alice).start("localhost").first()
    damaged = [good[:at] + bytes((good[at] ^ 0x55,)) + good[at + 1 :] for at in range(0, len(good), 7)]
    for data in (b"", b"\0", b"garbage", os.urandom(100_000), good[:-1], good[:40]):
        with pytest.raises(SaslAuthenticationFailedError):
            server.start("GSSAPI").step(data)
    for data in damaged:  # (a few bytes are not protected, such as the name of the realm outside the ticket)
        with contextlib.suppress(SaslAuthenticationFailedError):
            assert server.start("GSSAPI").step(data).identity is None
    good = by_keytab(alice).start("localhost").first()
    exchange = server.start("GSSAPI")
    exchange.step(good)
    with pytest.raises(SaslAuthenticationFailedError, match="second message must be empty"):
        exchange.step(b"garbage")


def test_a_client_without_mutual_authentication_gets_the_offer_at_once(server: Mechanisms, alice: str) -> None:
    """RFC 4752 lets a client leave mutual authentication out. Headrace's own client insists on it."""
    import gssapi

    credentials = gssapi.Credentials(
        name=gssapi.Name("alice", gssapi.NameType.kerberos_principal),
        usage="initiate",
        store={"client_keytab": alice, "ccache": "MEMORY:not-mutual"},
    )
    service, integrity = (
        gssapi.Name("kafka@localhost", gssapi.NameType.hostbased_service),
        gssapi.RequirementFlag.integrity,
    )
    context = gssapi.SecurityContext(name=service, creds=credentials, usage="initiate", flags=integrity)
    theirs = server.start("GSSAPI")
    offer = context.unwrap(theirs.step(context.step()).data).message
    assert offer == b"\x01\0\0\0"
    identity = theirs.step(context.wrap(offer, False).message).identity
    assert identity is not None
    assert identity.user == "alice"


def test_the_client_refuses_a_server_without_the_services_key(server: Mechanisms, alice: str) -> None:
    client = by_keytab(alice).start("localhost")
    client.first()
    for data in (b"", b"garbage"):
        with pytest.raises(HeadraceError):
            client.step(data)
    assert not client.is_complete


def test_rules_map_principals_to_users(realm: Realm, alice: str) -> None:
    keytab = realm.keytab("kafka/ruled", name="ruled")
    admin = realm.keytab("alice/admin", name="alice-admin")
    rules = r"RULE:[2:$2.$1](admin\..*)s/\./-/U,RULE:[1:$1@$0](x.*)s/@.*//"
    ruled = mechanisms(krb5_module(keytab, "kafka/ruled"), sasl__kerberos__principal__to__local__rules=rules)
    assert authenticate(by_keytab(admin, "alice/admin"), ruled, "ruled").user == "ADMIN-ALICE"
    assert f"no rule of sasl.kerberos.principal.to.local.rules applies to alice@{REALM}" in refused(
        by_keytab(alice), ruled, "ruled"
    )


@pytest.mark.parametrize(
    ("jaas", "why"),
    [
        (krb5_module("/nowhere/kafka.keytab", SERVICE), "/nowhere/kafka.keytab does not exist"),
        (krb5_module("{kafka}", "kafka/other"), "has no key of kafka/other"),
        (krb5_module("{kafka}", "kafka"), "has no host"),
        ("com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;", "needs useKeyTab=true"),
        ('a.PlainLoginModule required username="a";', "GSSAPI needs Krb5LoginModule"),
    ],
)
def test_a_listener_without_a_usable_keytab_does_not_start(
    realm: Realm, server: Mechanisms, jaas: str, why: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        mechanisms(jaas.replace("{kafka}", f"{realm.directory}/kafka.keytab"))
    assert why in str(caught.value)
