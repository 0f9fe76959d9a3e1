"""Sign-in to the console of a secured cluster: what each user sees and may do, and attacks on sessions."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import headrace_console.console
import headrace_console.tailing
from headrace import ConfigResource, LocalCluster, Producer, ScramMechanism, UserScramCredentialDeletion
from headrace.schemas import AvroSerializer, Schema, SchemaRegistry
from headrace_console import finding
from headrace_console.attempts import PER_ADDRESS_MAX
from headrace_console.gate import REQUESTS_MAX, USER_REQUESTS_MAX
from headrace_core.node.properties import read_properties
from tests.worlds.security import (
    Browser,
    admin_of,
    alert,
    console_beside,
    password_of,
    prepare,
    properties,
    set_password,
    token,
)
from tests.worlds.waiting import check_in_time, until, until_async

RETENTION = {"kind": "alter-topic-config", "key": "retention.ms", "value": "1h"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {"connections.max.reauth.ms": "1500"}  # every session below renews its connections (KIP-368)
    with LocalCluster(
        brokers=1, controllers=1, registries=1, console=True, secure=True, mode="inprocess", config=config
    ) as running:
        prepare(running)
        yield running


@pytest.fixture
def browsers(cluster: LocalCluster) -> Iterator[list[Browser]]:
    """Browsers that the test closes at its end."""
    opened: list[Browser] = []
    yield opened
    for each in opened:
        each.close()


@pytest.fixture
def alice(cluster: LocalCluster, browsers: list[Browser]) -> Browser:
    return signed_in(cluster, browsers, "alice")


def opened(cluster: LocalCluster, browsers: list[Browser], **more: str) -> Browser:
    browsers.append(Browser(cluster, **more))
    return browsers[-1]


def signed_in(cluster: LocalCluster, browsers: list[Browser], user: str, **more: str) -> Browser:
    browser = opened(cluster, browsers, **more)
    answer = browser.sign_in(user)
    assert answer.status_code == 303, alert(answer.text)
    return browser


def sampled_page(browser: Browser, page: str) -> str:
    """The page, once the first sample of the user has come."""
    return str(until(lambda: "takes its first sample" not in (text := browser.get(page).text) and text))


# -- rights


def test_two_users_see_what_their_acls_allow(cluster: LocalCluster, browsers: list[Browser], alice: Browser) -> None:
    bob = signed_in(cluster, browsers, "bob")
    for browser, own, other in ((alice, "orders", "payments"), (bob, "payments", "orders")):
        topics = sampled_page(browser, "topics")
        assert f'name={own}"' in topics
        assert other not in topics
        assert f"a record of {own}" in browser.get(f"messages?topic={own}").text
        answer = browser.get(f"topic?name={other}")
        assert answer.status_code == 403
        assert "You may not see this" in answer.text
        assert "is not authorized to DESCRIBE topic" in alert(answer.text)
        assert f"a record of {other}" not in browser.get(f"messages?topic={other}").text


def test_what_a_user_may_not_see_does_not_look_like_zero(
    cluster: LocalCluster, browsers: list[Browser], alice: Browser
) -> None:
    assert "may not see" in sampled_page(alice, "topics")
    overview = sampled_page(alice, "")
    assert "User:alice is not authorized to DESCRIBE the cluster" in overview
    assert "groups that you may describe" in overview
    carol = signed_in(cluster, browsers, "carol")
    assert "There is no topic that you may describe" in sampled_page(carol, "topics")
    assert "may not see" not in sampled_page(signed_in_admin(cluster, browsers), "topics")


def signed_in_admin(cluster: LocalCluster, browsers: list[Browser]) -> Browser:
    browser = opened(cluster, browsers)
    secret = (cluster.directory / "security" / "admin.password").read_text().strip().removeprefix("password=")
    assert browser.sign_in("admin", secret).status_code == 303
    return browser


def test_the_log_directories_of_a_broker_are_for_those_who_may_describe_the_cluster(
    cluster: LocalCluster, browsers: list[Browser], alice: Browser
) -> None:
    path = str(cluster.directory)
    assert path not in sampled_page(alice, "broker?id=1")
    assert path in sampled_page(signed_in_admin(cluster, browsers), "broker?id=1")


def test_a_user_without_the_right_cannot_change_retention_and_reads_why(
    cluster: LocalCluster, browsers: list[Browser], alice: Browser
) -> None:
    form = RETENTION | {"topic": "orders", "token": token(alice.get("topic?name=orders").text)}
    for step in ("review", "apply"):
        answer = alice.post(step, **form)
        assert answer.status_code == 403
        assert "User:alice is not authorized to ALTER_CONFIGS topic" in alert(answer.text)
    assert retention(cluster, "orders") == "604800000"
    bob = signed_in(cluster, browsers, "bob")
    form = RETENTION | {"topic": "payments", "token": token(bob.get("topic?name=payments").text)}
    assert bob.post("apply", **form).status_code == 303
    assert retention(cluster, "payments") == "3600000"


def retention(cluster: LocalCluster, topic: str) -> str:
    resource = ConfigResource("topic", topic)
    with admin_of(cluster) as admin:
        return admin.describe_configs([resource])[resource]["retention.ms"].value


def test_schemas_are_for_those_who_may_read_the_topic_of_the_registry(
    cluster: LocalCluster, browsers: list[Browser], alice: Browser
) -> None:
    answer = alice.get("schemas")
    assert answer.status_code == 403
    assert "topic _schemas" in alert(answer.text)
    write_with_a_schema(cluster)
    refusal = alice.get("messages?topic=orders&partition=1").text
    assert "not decoded: schemas are in topic _schemas" in refusal
    assert "&#34;item&#34;" not in refusal  # the bytes alone, which alice may READ
    admin = signed_in_admin(cluster, browsers)
    assert 'name=orders-value"' in admin.get("schemas").text
    assert "&#34;item&#34;: &#34;an order&#34;" in admin.get("messages?topic=orders&partition=1").text


def write_with_a_schema(cluster: LocalCluster) -> None:
    """Write a record of orders in Avro."""
    security = cluster.directory / "security"
    config = {
        "schema.registry.url": cluster.registry_urls,
        "ssl.ca.location": str(security / "ca.pem"),
        "ssl.certificate.location": str(security / "admin.pem"),
        "ssl.key.location": str(security / "admin.pem"),
    }
    text = '{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "string"}]}'
    keys = properties(cluster)
    with (
        SchemaRegistry(config) as registry,
        Producer.from_properties(keys, bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        registry.register("orders-value", Schema(text))
        data = AvroSerializer(registry, text)("orders", {"item": "an order"})
        producer.send("orders", value=data, partition=1).result(30)


# -- the sign-in


def test_a_page_leads_to_the_sign_in_and_the_sign_in_back_to_the_page(
    cluster: LocalCluster, browsers: list[Browser]
) -> None:
    browser = opened(cluster, browsers)
    answer = browser.get("topic?name=orders")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/sign-in?next=%2Ftopic%3Fname%3Dorders")
    form = browser.get(answer.headers["Location"])
    assert 'name="next" value="/topic?name=orders"' in form.text
    answer = browser.sign_in("alice", then="/topic?name=orders")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topic?name=orders")
    assert "Topic orders" in browser.get("topic?name=orders").text


@pytest.mark.parametrize(
    "then",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "/sign-out", "topics", "/a\r\nb", "/a b", "/../x"],
)
def test_a_sign_in_leads_to_no_other_site(cluster: LocalCluster, browsers: list[Browser], then: str) -> None:
    assert opened(cluster, browsers).sign_in("alice", then=then).headers["Location"] == "/"


def test_scripts_and_refreshing_parts_get_401_without_a_session(cluster: LocalCluster, browsers: list[Browser]) -> None:
    browser = opened(cluster, browsers)
    for page in ("", "topics", "record?topic=orders", "raw?topic=orders", "events?topic=orders"):
        answer = browser.get(page, Accept="*/*")
        assert answer.status_code == 401
        assert "orders" not in answer.text
    assert browser.get("topics", **{"HX-Request": "true"}).headers["HX-Refresh"] == "true"
    assert browser.get("static/console.css").status_code == 200  # the form needs it


def test_the_cookie_is_protected_and_changes_at_the_sign_in(cluster: LocalCluster, browsers: list[Browser]) -> None:
    browser = opened(cluster, browsers)
    browser.get("sign-in")
    before = browser.cookies
    answer = browser.sign_in("alice")
    cookie = answer.headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Secure", "Path=/"):
        assert part in cookie
    assert browser.cookies.keys() == before.keys()
    assert browser.cookies != before
    (name,) = before
    planted = {"Cookie": f"{name}={before[name]}"}  # a cookie that an attacker planted before
    assert httpx_get(cluster, browsers, planted).status_code == 303


def httpx_get(cluster: LocalCluster, browsers: list[Browser], headers: dict[str, str]) -> httpx.Response:
    return opened(cluster, browsers).get("topics", **headers)


def test_a_guesser_behind_a_proxy_does_not_choose_the_address(cluster: LocalCluster, browsers: list[Browser]) -> None:
    """A proxy may add a line of its own behind those that the browser has sent."""
    with console_beside(cluster, trusted_proxies=["127.0.0.1/32"]) as url:
        browser = opened(cluster, browsers, url=url)
        form = {"user": "bob", "password": "wrong", "token": token(browser.get("sign-in").text)}
        lines = [[("X-Forwarded-For", f"203.0.113.{each}"), ("X-Forwarded-For", "192.0.2.7")] for each in range(15)]
        statuses = [browser.client.post("sign-in", data=form, headers=each).status_code for each in lines]
    assert statuses.count(401) <= PER_ADDRESS_MAX + 1
    assert statuses[-1] == 429


def test_behind_a_proxy_with_tls_the_cookie_has_the_prefix_and_is_secure(
    cluster: LocalCluster, browsers: list[Browser]
) -> None:
    with console_beside(cluster, path_prefix="/headrace", allowed_hosts=["ops.example.net"]) as url:
        browser = opened(cluster, browsers, url=url)
        answer = browser.get("topics")
        assert answer.headers["Location"] == "/headrace/sign-in?next=%2Fheadrace%2Ftopics"
        form = {"user": "alice", "password": password_of("alice"), "next": "/headrace/topics"}
        headers = {"Host": "ops.example.net", "Origin": "https://ops.example.net"}
        page = browser.client.get("sign-in", headers={"Host": "ops.example.net"})
        answer = browser.client.post("sign-in", data=form | {"token": token(page.text)}, headers=headers)
        assert answer.headers["Location"] == "/headrace/topics"
        assert "Path=/headrace/" in answer.headers["Set-Cookie"]
        assert "Secure" in answer.headers["Set-Cookie"]
        direct = opened(cluster, browsers, url=url)  # http on loopback: a browser would not send a Secure cookie
        answer = direct.sign_in("alice", then="/other/")
        assert answer.headers["Location"] == "/headrace/"
        assert "Secure" not in answer.headers["Set-Cookie"]


def test_a_stolen_cookie_is_worth_nothing_after_the_sign_out(
    cluster: LocalCluster, browsers: list[Browser], alice: Browser
) -> None:
    stolen = {"Cookie": "; ".join(f"{name}={value}" for name, value in alice.cookies.items())}
    assert httpx_get(cluster, browsers, stolen).status_code == 200
    assert alice.post("sign-out", token=token(alice.get("topics").text)).status_code == 303
    assert httpx_get(cluster, browsers, stolen).status_code == 303
    assert "You signed out" in alert(alice.get("sign-in").text)


def test_forms_of_other_sessions_and_sites_are_refused(
    cluster: LocalCluster, browsers: list[Browser], alice: Browser
) -> None:
    bob = signed_in(cluster, browsers, "bob")
    foreign = token(alice.get("topic?name=orders").text)
    form = RETENTION | {"topic": "payments", "token": foreign}
    assert bob.post("apply", **form).status_code == 403
    assert bob.post("sign-out", token=foreign).status_code == 403
    assert bob.post("sign-out", token="").status_code == 403
    own = token(bob.get("topics").text)
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        assert bob.client.post("sign-out", data={"token": own}, headers=headers).status_code == 403
    assert bob.get("topics").status_code == 200
    stranger = opened(cluster, browsers)  # no other site can sign a browser in
    fields = {"user": "alice", "password": password_of("alice")}
    assert stranger.post("sign-in", token="", **fields).status_code == 403
    assert stranger.post("sign-in", token=foreign, **fields).status_code == 403


def test_a_form_after_the_end_of_the_session_changes_nothing(cluster: LocalCluster, browsers: list[Browser]) -> None:
    bob = signed_in(cluster, browsers, "bob")
    before = retention(cluster, "payments")
    form = RETENTION | {"topic": "payments", "value": "5h", "token": token(bob.get("topic?name=payments").text)}
    bob.post("sign-out", token=form["token"])
    answer = bob.client.post("apply", data=form, headers={"Referer": f"{bob.url}topic?name=payments"})
    assert answer.status_code == 401
    assert "Nothing was changed" in alert(answer.text)
    assert 'name="next" value="/topic?name=payments"' in answer.text
    assert retention(cluster, "payments") == before


@pytest.mark.parametrize("user", ["<script>alert(1)</script>", "x" * 10_000, "\u202eecila", "a\0b", "alice\r\nX: y"])
def test_hostile_names_are_refused_and_shown_as_text(cluster: LocalCluster, browsers: list[Browser], user: str) -> None:
    answer = opened(cluster, browsers, address="127.0.0.9").sign_in(user, "wrong")
    assert answer.status_code in (400, 401)
    assert "<script>alert" not in answer.text
    assert "X" not in answer.headers


def test_a_typed_password_reads_no_file_of_the_console(cluster: LocalCluster, browsers: list[Browser]) -> None:
    path = cluster.directory / "security" / "admin.password"
    answer = opened(cluster, browsers).sign_in("admin", f"${{file:{path}:password}}")
    assert answer.status_code == 401
    assert "does not accept a password that contains" in alert(answer.text)


def test_a_password_is_in_no_log_and_no_page(
    cluster: LocalCluster, browsers: list[Browser], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace")
    browser = opened(cluster, browsers)
    wrong = browser.sign_in("carol", password_of("carol") + "-wrong")
    assert wrong.status_code == 401
    texts = [wrong.text, browser.sign_in("carol").text]
    texts += [browser.get(page).text for page in ("", "topics", "topic?name=x", "brokers", "quorum", "sign-in")]
    assert "carol signed in from 127.0.0.1" in caplog.text
    for text in (*texts, caplog.text):
        assert password_of("carol") not in text


def test_wrong_passwords_of_one_address_do_not_keep_another_user_out(
    cluster: LocalCluster, browsers: list[Browser]
) -> None:
    guesser = opened(cluster, browsers, address="127.0.0.2")
    statuses: list[int] = []
    form = token(guesser.get("sign-in").text)
    begun = threading.Event()

    def guess() -> None:
        for number in range(200):
            answer = guesser.post("sign-in", token=form, user="alice", password=f"guess-{number}")
            statuses.append(answer.status_code)
            if number == 5:
                begun.set()

    thread = threading.Thread(target=guess)
    thread.start()
    assert begun.wait(30)
    at_s = time.monotonic()
    bob = signed_in(cluster, browsers, "bob", address="127.0.0.3")
    assert bob.get("topics").status_code == 200
    served_s = time.monotonic()
    thread.join(60)
    assert len(statuses) == 200
    assert statuses.count(401) <= PER_ADDRESS_MAX + 3  # a token comes back every 30 s
    assert set(statuses) == {401, 429}
    answer = guesser.sign_in("alice")  # even with the right password
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert signed_in(cluster, browsers, "alice", address="127.0.0.4")  # the user whose password was guessed
    check_in_time(at_s, 5, ended_s=served_s)


def test_slow_forms_of_one_address_leave_room_for_others(cluster: LocalCluster, browsers: list[Browser]) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(REQUESTS_MAX + 10):
            stack.enter_context(half_a_form(cluster))
        bob = signed_in(cluster, browsers, "bob", address="127.0.0.6")
        assert bob.get("topics").status_code == 200


def half_a_form(cluster: LocalCluster) -> socket.socket:
    """A connection on which a sign-in has begun, and whose form does not come."""
    url = httpx.URL(cluster.console_url)
    context = ssl.create_default_context(cafile=str(cluster.directory / "security" / "ca.pem"))
    plain = socket.create_connection((url.host, url.port), source_address=("127.0.0.5", 0), timeout=10)
    connection = context.wrap_socket(plain, server_hostname=url.host)
    head = f"POST /sign-in HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Length: 500\r\n"
    connection.sendall(f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\nuser=".encode())
    return connection


# -- the end of sessions


def test_a_session_outlives_the_renewals_of_its_connections(alice: Browser) -> None:
    ends_s = time.monotonic() + 3.5  # more than two lives of a connection

    def is_served() -> bool:
        assert "a record of orders" in alice.get("messages?topic=orders").text
        return time.monotonic() > ends_s

    until(is_served, pause_s=0.2)


def test_an_idle_session_ends_and_the_sign_in_says_why(cluster: LocalCluster, browsers: list[Browser]) -> None:
    with console_beside(cluster, session_idle_ms=1_000) as url:
        browser = signed_in(cluster, browsers, "alice", url=url)
        refreshes = {"HX-Request": "true", "HX-Trigger": "live"}  # an open tab is no action
        until(lambda: browser.get("topics", **refreshes).status_code == 401, pause_s=0.1)
        answer = browser.get("topic?name=orders")
        assert answer.status_code == 303
        assert "after 1 s without an action" in alert(browser.get(answer.headers["Location"]).text)
        assert browser.sign_in("alice", then="/topic?name=orders").headers["Location"] == "/topic?name=orders"


def test_a_live_view_that_connects_again_is_no_action(cluster: LocalCluster, browsers: list[Browser]) -> None:
    with console_beside(cluster, session_idle_ms=1_500) as url:
        browser = signed_in(cluster, browsers, "alice", url=url)

        def is_signed_out() -> bool:
            with browser.client.stream("GET", "events?topic=orders", headers={"Accept": "text/event-stream"}) as stream:
                return stream.status_code == 401

        until(is_signed_out, pause_s=0.1)


def test_the_live_views_of_one_user_leave_room_for_others(
    cluster: LocalCluster, browsers: list[Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headrace_console.tailing, "USER_WATCHERS_MAX", 2)
    with contextlib.ExitStack() as stack:

        def status(browser: Browser, page: str) -> int:
            return stack.enter_context(browser.client.stream("GET", page, timeout=10)).status_code

        first, second = (signed_in(cluster, browsers, "alice") for _ in range(2))
        events = "events?topic=orders"
        found = [status(first, events), status(second, events), status(first, events), status(second, events)]
        assert found == [200, 200, 503, 503]
        bob = signed_in(cluster, browsers, "bob", address="127.0.0.6")
        assert status(bob, "events?topic=payments") == 200


def test_the_requests_of_one_user_leave_room_for_others(
    cluster: LocalCluster, browsers: list[Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    async def slow(cluster: object, *given: object, **named: object) -> finding.Found:
        await until_async(over.is_set)
        return finding.Found((), {}, {})

    monkeypatch.setattr(finding, "latest", slow)
    alice, again = (signed_in(cluster, browsers, "alice") for _ in range(2))
    bob = signed_in(cluster, browsers, "bob", address="127.0.0.6")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(USER_REQUESTS_MAX + 8))
        stack.callback(over.set)
        asked = [
            pool.submit(browser.get, "messages?topic=orders")
            for browser, _ in zip(itertools.cycle([alice, again]), range(USER_REQUESTS_MAX + 8), strict=False)
        ]
        until(lambda: sum(each.done() for each in asked) == 8, "the requests that are too many are refused")
        assert bob.get("messages?topic=payments&by=key").status_code == 200
        over.set()
        found = Counter(each.result().status_code for each in asked)
    assert found == {200: USER_REQUESTS_MAX, 429: 8}
    assert alice.get("topics").status_code == 200


def test_a_session_ends_when_its_life_is_over_although_it_is_used(
    cluster: LocalCluster, browsers: list[Browser]
) -> None:
    with console_beside(cluster, session_lifetime_ms=1_500) as url:
        browser = signed_in(cluster, browsers, "alice", url=url)
        until(lambda: browser.get("static/console.css") and browser.get("brokers").status_code == 303, pause_s=0.1)
        assert "after its sign-in" in alert(browser.get("sign-in").text)


@pytest.mark.parametrize("change", ["changed", "removed"])
def test_a_changed_or_removed_password_ends_the_session(
    cluster: LocalCluster, browsers: list[Browser], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headrace_console.console, "PROOF_S", 0.2)
    user = f"dave-{change}"
    with admin_of(cluster) as admin:
        set_password(admin, user, password_of(user))
        browser = until(lambda: _tried(cluster, browsers, user))
        assert browser.get("brokers").status_code == 200
        if change == "changed":
            set_password(admin, user, "another-s3cret")
        else:
            admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)])
    answer = until(lambda: (found := browser.get("brokers")).status_code == 303 and found, pause_s=0.1)
    why = alert(browser.get(answer.headers["Location"]).text)
    assert f"does not accept the password of {user} any more" in why


def _tried(cluster: LocalCluster, browsers: list[Browser], user: str) -> Browser | None:
    """A browser of a user whom the broker may not know yet."""
    browser = opened(cluster, browsers, address="127.0.0.7")
    return browser if browser.sign_in(user).status_code == 303 else None


def test_a_live_view_ends_with_its_session(cluster: LocalCluster, alice: Browser) -> None:
    form = token(alice.get("topics").text)
    with alice.client.stream("GET", "events?topic=orders", timeout=10) as stream:
        lines = stream.iter_lines()
        assert any(line == "event: begun" for line in lines)
        with Browser(cluster).client as other:
            other.cookies = alice.client.cookies
            assert other.post("sign-out", data={"token": form}).status_code == 303
        assert any("You signed out" in line for line in itertools.islice(lines, 40))


def test_the_oldest_session_of_a_user_ends_when_there_are_too_many(
    cluster: LocalCluster, browsers: list[Browser]
) -> None:
    first = signed_in(cluster, browsers, "carol")
    others = [signed_in(cluster, browsers, "carol") for _ in range(5)]
    assert first.get("topics").status_code == 303
    assert "A newer sign-in ended your session" in alert(first.get("sign-in").text)
    assert all(each.get("topics").status_code == 200 for each in others)


def test_the_clients_of_an_ended_session_are_closed(cluster: LocalCluster, browsers: list[Browser]) -> None:
    with console_beside(cluster) as url:
        browser = signed_in(cluster, browsers, "alice", url=url)
        sampled_page(browser, "topics")
        assert clients_of_sessions() >= 1
        browser.post("sign-out", token=token(browser.get("brokers").text))
        until(lambda: clients_of_sessions() == 0)


def clients_of_sessions() -> int:
    """How many users of a console beside the cluster have clients with a password."""
    found = [each for each in gc.get_objects() if type(each) is headrace_console.console.Console]
    return sum(each.settings.listeners[0].name == "http" and each.cluster._keys is not None for each in found)


def test_a_visitor_learns_no_addresses_while_the_cluster_does_not_answer(
    cluster: LocalCluster, browsers: list[Browser], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        with console_beside(cluster, bootstrap_servers=(nowhere,)) as url:
            answer = opened(cluster, browsers, url=url).sign_in("alice")
    assert answer.status_code == 503
    assert alert(answer.text).startswith("The cluster cannot check the password now (")
    assert nowhere not in answer.text
    assert nowhere in caplog.text


def test_a_console_with_wrong_keys_of_its_own_does_not_blame_the_user(
    cluster: LocalCluster, browsers: list[Browser], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes((cluster.directory / "security" / "ca.pem").read_bytes())
    keys = dict(read_properties(properties(cluster))) | {"ssl.truststore.location": str(trusted)}
    with console_beside(cluster, client=keys) as url:
        browser = opened(cluster, browsers, url=url)
        trusted.rename(tmp_path / "moved.pem")
        answer = browser.sign_in("alice")
        assert answer.status_code == 503
        assert (
            alert(answer.text) == "The console cannot reach the cluster with its own configuration; its log says why."
        )
        assert str(tmp_path) not in answer.text
        assert f"ssl.truststore.location={trusted}: cannot read the file" in caplog.text
        (tmp_path / "moved.pem").rename(trusted)
        assert browser.sign_in("alice").status_code == 303


def test_a_console_without_a_sign_in_acts_as_the_user_of_its_keys(cluster: LocalCluster) -> None:
    with console_beside(cluster, sign_in=False) as url, httpx.Client(base_url=url) as visitor:
        assert visitor.get("topics").status_code == 200
        assert visitor.get("sign-in").status_code == 404
        assert "Sign out" not in visitor.get("brokers").text


def test_the_command_serves_https_with_a_sign_in(cluster: LocalCluster, browsers: list[Browser]) -> None:
    security = cluster.directory / "security"
    words = ["console", "-b", cluster.bootstrap_servers, "--port", "0", "-o", "json"]
    words += ["--command-config", str(security / "client.properties"), "--certificate", str(security / "console-1.pem")]
    command = subprocess.Popen([sys.executable, "-m", "headrace_tools", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert command.stdout is not None
        url = json.loads(command.stdout.readline())["url"]
        assert url.startswith("https://127.0.0.1:")
        browser = signed_in(cluster, browsers, "alice", url=url)
        assert 'name=orders"' in sampled_page(browser, "topics")
        stranger = opened(cluster, browsers, url=url)
        assert stranger.get("topics").status_code == 303
    finally:
        command.terminate()
        command.wait(60)
        assert command.stdout is not None
        command.stdout.close()
