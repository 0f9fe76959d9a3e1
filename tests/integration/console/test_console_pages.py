"""The console beside a cluster in this process: pages, hostile contents, changes, forged requests."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from headrace import Admin, ConfigResource, LocalCluster, NewTopic, Producer
from tests.worlds.waiting import until

PAGES = ("", "brokers", "broker?id=1", "topics", "topic?name=orders", "messages?topic=orders", "groups", "transactions",
         "quorum", "schemas", "live?topic=orders")  # fmt: skip
RETENTION = ConfigResource("topic", "orders")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, console=True, mode="inprocess") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", partitions=2)])
        with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            for number in range(200):
                producer.send("orders", key=b"k%d" % (number % 20), value=b'<script>alert("%d")</script>' % number)
            producer.send("orders", key=b"odd", value=b"\xff\xfe\x00" * 50, partition=0)
            producer.flush()
        yield running


@pytest.fixture
def browser(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.console_url + "/") as client:
        until(lambda: "takes its first sample" not in client.get("topics").text)
        yield client


def token(page: str) -> str:
    found = re.search(r'name="token" value="(\w+)"', page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_has_the_strict_headers(browser: httpx.Client, page: str) -> None:
    answer = browser.get(page)
    assert answer.status_code == 200, answer.text
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_message_is_found_by_key_and_by_time_and_shown_as_text(browser: httpx.Client) -> None:
    text = browser.get("messages", params={"topic": "orders", "by": "key", "key": "k7"}).text
    assert text.count("&lt;script&gt;alert(") == 10
    assert "<script>alert" not in text
    text = browser.get("messages", params={"topic": "orders", "by": "time", "at": "-1h"}).text
    assert "50 records at or after" in text
    answer = browser.get("messages", params={"topic": "orders", "by": "time", "at": "soon"})
    assert "must be a time such as" in answer.text


def test_a_change_is_reviewed_shown_as_a_command_and_made(browser: httpx.Client, cluster: LocalCluster) -> None:
    form = {"kind": "alter-topic-config", "topic": "orders", "key": "retention.ms", "value": "1h"}
    form["token"] = token(browser.get("topic?name=orders").text)
    review = browser.post("review", data=form).text
    assert "headrace configs alter --topic orders --set retention.ms=3600000" in review
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert admin.describe_configs([RETENTION])[RETENTION]["retention.ms"].value == "604800000"
        answer = browser.post("apply", data=form | {"token": token(review)})
        assert answer.status_code == 303
        assert admin.describe_configs([RETENTION])[RETENTION]["retention.ms"].value == "3600000"
    assert "is now 3600000 (1 h)" in browser.get(answer.headers["Location"]).text


@pytest.mark.parametrize(
    ("headers", "changed", "status"),
    [
        ({"Origin": "null"}, {}, 403),
        ({}, {"token": "0" * 64}, 403),
        ({"Origin": "http://evil.example"}, {}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, {}, 403),
        ({"Host": "evil.example"}, {}, 421),
        ({}, {"value": "x" * 40_000}, 413),
        ({}, {"kind": "drop-everything"}, 400),
        ({}, {"key": "no.such.key"}, 400),
    ],
)
def test_forged_and_wrong_changes_are_refused(
    browser: httpx.Client, headers: dict[str, str], changed: dict[str, str], status: int
) -> None:
    form = {"kind": "alter-topic-config", "topic": "orders", "key": "retention.ms", "value": "1h"}
    form["token"] = token(browser.get("topic?name=orders").text)
    assert browser.post("apply", data=form | changed, headers=headers).status_code == status


@pytest.mark.parametrize("kind", ["; charset=none", "; charset=idna", ""])
def test_a_form_that_cannot_be_read_is_refused(browser: httpx.Client, kind: str) -> None:
    headers = {"Content-Type": f"application/x-www-form-urlencoded{kind}"}
    answer = browser.post("review", content=b"kind=\xff\xfe", headers=headers)
    assert (answer.status_code, "cannot be read" in answer.text) == (400, True), answer.text


def test_live_records_arrive_as_events(browser: httpx.Client, cluster: LocalCluster) -> None:
    with (
        browser.stream("GET", "events?topic=orders", timeout=10) as stream,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        for line in stream.iter_lines():
            if line == "event: begun":
                producer.send("orders", key=b"live", value=b"now").result(10)
            if '"live"' in line:
                break
        else:
            pytest.fail("the stream ended without the record")


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ("nothing", 404),
        ("broker?id=99", 404),
        ("broker?id=x", 400),
        ("messages?topic=orders&by=offset&offset=" + "9" * 30, 200),
        ("messages?topic=orders&by=time&at=" + "9" * 30, 200),
        ("messages?topic=orders&by=time&at=-" + "9" * 400 + "d", 200),
        ("topic?name=absent", 404),
        ("topic", 400),
        ("static/../app.py", 404),
        ("topics?q=" + "x" * 7_000, 414),
        ("record?topic=orders&partition=0&offset=99999", 404),
    ],
)
def test_wrong_addresses_get_an_answer_that_says_why(browser: httpx.Client, page: str, status: int) -> None:
    assert browser.get(page).status_code == status


def test_an_open_cluster_has_no_sign_in(browser: httpx.Client) -> None:
    assert browser.get("sign-in").status_code == 404
    assert browser.post("sign-out", data={"token": "x"}).status_code == 404
    assert "Sign out" not in browser.get("").text
