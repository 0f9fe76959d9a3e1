"""The console in headless Chromium: tasks of a person without a manual, by keyboard, on a narrow screen, with axe.

CONSOLE_PICTURES=1 writes the pictures of docs/pictures. tools/test_console.sh installs what this file needs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, ConfigResource, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from tests.worlds import security
from tests.worlds.waiting import until

PICTURES = Path(__file__).resolve().parents[4] / "docs" / "pictures"
RETENTION = ConfigResource("topic", "orders")
#: Contents that a page must show as text.
HOSTILE = (
    b"<img src=x onerror=alert(1)><script>alert(2)</script>",
    b"x" * 900_000,
    b"caf\xc3\xa9 " * 10 + b"\xff",
    bytes(range(256)),
    b"[" * 100_000,
    "\u202etxt.exe\u0000".encode(),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, registries=0, console=True, mode="process") as running:
        servers = running.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics(
                [
                    NewTopic("orders", partitions=6),
                    NewTopic("hostile", partitions=1),
                    NewTopic("payments", partitions=1),
                ]
                + [NewTopic(f"service-{number:03}.events", partitions=1) for number in range(997)]
            )
        with Producer(bootstrap_servers=servers) as producer:
            for number in range(1_000):
                producer.send("orders", key=f"customer-{number % 50}".encode(), value=b'{"order": %d}' % number)
            for value in HOSTILE:
                producer.send("hostile", value=value)
            producer.flush()
        with Consumer(bootstrap_servers=servers, group_id="billing", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            until(lambda: consumer.poll(timeout=1.0, max_records=20))
            consumer.commit()
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path is not None, "chromium is missing; tools/test_console.sh installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def secured() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, registries=0, console=True, secure=True, mode="process") as running:
        security.prepare(running)
        yield running


@pytest.fixture
def page(chromium: Any, cluster: LocalCluster) -> Iterator[Any]:
    """A page whose log must stay free of errors and warnings."""
    context = chromium.new_context(base_url=cluster.console_url, viewport={"width": 1000, "height": 640})
    page = context.new_page()
    log: list[str] = []
    page.on("console", lambda message: log.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: log.append(str(error)))
    page.on("dialog", lambda dialog: log.append(f"a dialog opened: {dialog.message}"))
    page.set_default_timeout(15_000)
    yield page
    assert log == []
    context.close()


def picture(page: Any, name: str) -> None:
    if os.environ.get("CONSOLE_PICTURES"):
        page.screenshot(path=PICTURES / f"console-{name}.png")


def serious(page: Any) -> list[str]:
    """What axe-core finds of serious and critical impact."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found if each["impact"] in ("serious", "critical")
    ]


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expected

    return expected(locator)


def test_first_page_with_a_thousand_topics_is_there_within_a_second(page: Any) -> None:
    page.goto("/")
    page.get_by_text("topics, 1,0").wait_for(timeout=40_000)
    begun = time.perf_counter()
    page.goto("/topics", wait_until="load")
    assert time.perf_counter() - begun < 1.0
    page.get_by_role("searchbox").fill("service-777")
    expect(page.locator("#live tbody tr")).to_have_count(1)
    assert page.locator("#live tbody a").inner_text() == "service-777.events"


def test_a_message_is_found_by_key_with_the_keyboard_alone(page: Any) -> None:
    page.goto("/messages?topic=orders&by=key")
    page.keyboard.press("/")
    page.keyboard.type("customer-7")
    page.keyboard.press("Enter")
    page.locator("#result").get_by_text("20 records").wait_for()
    picture(page, "find")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/record?**")
    assert "customer-7" in page.locator("#key").inner_text()


def test_a_message_is_found_by_time(page: Any) -> None:
    page.goto("/messages?topic=orders")
    page.get_by_label("from a time").check()
    page.get_by_label("Time", exact=True).fill("-1h")
    page.get_by_role("button", name="Find").click()
    page.locator("#result").get_by_text("the oldest first").wait_for()
    assert page.locator("tbody a.row").count() == 50


def test_hostile_contents_are_text(page: Any) -> None:
    page.goto("/messages?topic=hostile")
    assert page.locator("tbody tr").count() == len(HOSTILE)
    assert page.locator("tbody img, tbody script").count() == 0
    for offset in range(len(HOSTILE)):
        page.goto(f"/record?topic=hostile&partition=0&offset={offset}")
        assert page.locator("#value").inner_text()
        assert page.locator("pre img, pre script").count() == 0
    assert "\\u202e" in page.locator("#value").inner_text()


def test_a_topic_is_watched_live_and_pauses(page: Any, cluster: LocalCluster) -> None:
    page.goto("/live?topic=orders")
    page.get_by_text("Live", exact=True).wait_for()
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(12):
            producer.send("orders", key=b"live", value=b'{"live": %d}' % number)
        producer.flush()
        expect(page.locator("#tail-rows tr")).to_have_count(12)
        picture(page, "live")
        page.keyboard.press(".")
        page.get_by_text("Paused", exact=True).wait_for()


def test_a_group_that_lags_since_when_and_why_it_rebalanced(page: Any) -> None:
    page.goto("/groups")
    page.get_by_role("link", name="billing").click()
    page.get_by_text("Behind since").wait_for()
    assert page.locator(".story li").count() >= 1
    assert "joined" in page.locator(".story").inner_text()
    picture(page, "group")


def test_retention_is_changed_with_the_keyboard_after_a_review(page: Any, cluster: LocalCluster) -> None:
    page.goto("/topic?name=orders")
    page.get_by_label("Keep records for").focus()
    page.keyboard.type("1d")
    page.keyboard.press("Enter")
    page.get_by_text("headrace configs alter --topic orders --set retention.ms=86400000").wait_for()
    picture(page, "change")
    page.get_by_role("button", name="Yes, do it").focus()
    page.keyboard.press("Enter")
    page.get_by_text("is now 86400000 (1 d)").wait_for()
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert admin.describe_configs([RETENTION])[RETENTION]["retention.ms"].value == "86400000"


def test_an_open_transaction_is_followed_and_aborted(page: Any, cluster: LocalCluster) -> None:
    servers = cluster.bootstrap_servers
    producer = Producer(bootstrap_servers=servers, transactional_id="payments-7", transaction_timeout_ms=600_000)
    producer.begin_transaction()
    producer.send("payments", value=b"pay").result(10)
    page.goto("/transactions")
    page.get_by_role("link", name="payments-7").click()
    page.get_by_text("Who waits").wait_for()
    picture(page, "transaction")
    page.get_by_role("button", name="Abort the transaction").click()
    page.get_by_role("button", name="Yes, do it").click()
    page.get_by_text("is aborted").wait_for()
    with Consumer(bootstrap_servers=servers, isolation_level="read_committed") as consumer:
        where = TopicPartition("payments", 0)
        consumer.assign([where])
        until(lambda: consumer.end_offsets([where])[where] == 2)
    producer.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_320_pixels_are_enough(chromium: Any, cluster: LocalCluster, scheme: str) -> None:
    context = chromium.new_context(
        base_url=cluster.console_url, viewport={"width": 320, "height": 640}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    for path in ("/", "/brokers", "/broker?id=1", "/topics", "/topic?name=orders", "/messages?topic=orders", "/groups",
                 "/group?id=billing", "/transactions", "/quorum", "/schemas", "/live?topic=orders"):  # fmt: skip
        page.goto(path)
        assert serious(page) == [], path
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 320, f"{path} is {wide} pixels wide"
    context.close()


def test_a_user_signs_in_with_the_keyboard_sees_the_own_topics_and_signs_out(
    chromium: Any, secured: LocalCluster
) -> None:
    context = chromium.new_context(
        base_url=secured.console_url, viewport={"width": 1000, "height": 640}, ignore_https_errors=True
    )
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto("/topic?name=orders")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("User name")).to_be_focused()
    page.keyboard.type("alice")
    page.keyboard.press("Tab")
    page.keyboard.type("wrong")
    picture(page, "signin")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("The cluster refuses this user name and password.")
    expect(page.get_by_label("Password")).to_be_focused()
    page.keyboard.type(security.password_of("alice"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/topic?name=orders")
    assert "orders" in page.get_by_role("heading", level=1).inner_text()
    page.get_by_label("Keep records for").fill("1d")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("User:alice is not authorized to ALTER_CONFIGS topic 'orders'")
    page.goto("/topics")
    page.get_by_role("link", name="orders").wait_for()
    assert page.get_by_role("link", name="payments").count() == 0
    assert all(cookie["httpOnly"] and cookie["secure"] for cookie in context.cookies())
    page.get_by_role("button", name="Sign out").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("You signed out.")).to_be_visible()
    context.close()
    log = (secured.directory / "logs" / "console-1.log").read_text()
    assert "alice signed in from 127.0.0.1" in log
    commands = b"".join(path.read_bytes() for path in _command_lines(secured))
    assert security.password_of("alice") not in log + commands.decode(errors="replace")


def _command_lines(cluster: LocalCluster) -> list[Path]:
    """The files with the command line and the environment of the console's process."""
    pids = [pid for pid in Path("/proc").glob("[0-9]*") if b"headrace_console" in _read(pid / "cmdline")]
    ours = [pid for pid in pids if str(cluster.directory).encode() in _read(pid / "cmdline")]
    assert ours
    return [pid / name for pid in ours for name in ("cmdline", "environ")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_pages_of_a_sign_in(chromium: Any, secured: LocalCluster, scheme: str) -> None:
    context = chromium.new_context(
        base_url=secured.console_url,
        viewport={"width": 320, "height": 640},
        color_scheme=scheme,
        bypass_csp=True,
        ignore_https_errors=True,
    )
    page = context.new_page()

    def check(what: str) -> None:
        assert serious(page) == [], what
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 320, f"{what} is {wide} pixels wide"

    def sign_in(user: str, password: str) -> None:
        page.get_by_label("User name").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Sign in").click()

    page.goto("/")
    check("the form")
    sign_in("W" * 500, "wrong")
    page.get_by_role("alert").wait_for()
    check("a wrong password")
    sign_in("alice", security.password_of("alice"))
    page.get_by_role("button", name="Sign out").wait_for()
    for path in ("/", "/topics", "/topic?name=orders", "/topic?name=payments", "/broker?id=1", "/groups", "/schemas"):
        page.goto(path)
        check(path)
    context.close()


def test_a_dead_broker_its_partitions_and_what_to_do(page: Any, cluster: LocalCluster) -> None:
    """Last, because the broker stays dead."""
    cluster.kill("broker", 3)
    page.goto("/brokers")
    page.get_by_text("dead", exact=True).wait_for(timeout=40_000)
    page.get_by_role("link", name="Broker 3").click()
    page.get_by_text("What its loss means").wait_for()
    page.get_by_text("headrace restart --data").first.wait_for()
    page.get_by_text("one copy less").first.wait_for()
    picture(page, "broker")
