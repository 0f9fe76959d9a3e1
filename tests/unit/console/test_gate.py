"""Hosts that may address the console, tokens of forms, settings, and the history's bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import headrace_console
from headrace_console.gate import POLICY, Refused, Tokens, form_of, is_allowed_host
from headrace_console.history import GROUPS_MAX, POINTS_MAX, ClusterPoint, History, LagPoint, grown_since
from headrace_console.settings import ConsoleSettings
from headrace_core.errors import InvalidConfigError

STATIC = Path(headrace_console.__file__).parent / "static"
TEMPLATES = Path(headrace_console.__file__).parent / "templates"


@pytest.mark.parametrize("host", ["localhost:9090", "127.0.0.1:9090", "[::1]:9090", "10.0.0.5", "Ops.Example.net"])
def test_allowed_hosts(host: str) -> None:
    assert is_allowed_host(host, frozenset({"ops.example.net"}))


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil", "a@127.0.0.1", "[::1"]
)
def test_other_hosts_are_refused(host: str) -> None:
    assert not is_allowed_host(host, frozenset({"ops.example.net"}))


def test_a_token_belongs_to_its_session_and_its_process() -> None:
    tokens, others = Tokens(), Tokens()
    session = tokens.new_session()
    assert tokens.is_valid(session, tokens.token(session))
    assert not tokens.is_valid(session, others.token(session))
    assert not tokens.is_valid(tokens.new_session(), tokens.token(session))
    assert not tokens.is_valid("", tokens.token(""))


def test_a_browser_that_leaves_in_the_middle_of_a_form_is_no_error_of_the_console() -> None:
    class Leaving:
        content_type = "application/x-www-form-urlencoded"
        content_length = 500

        async def post(self) -> None:
            raise ConnectionResetError

    with pytest.raises(Refused, match="the connection ended"):
        asyncio.run(form_of(Leaving()))  # type: ignore[arg-type]


def test_the_policy_allows_no_inline_script_and_the_templates_have_none() -> None:
    assert "unsafe" not in POLICY
    text = "".join(path.read_text() for path in TEMPLATES.glob("*.html"))
    for forbidden in (" style=", " onclick=", "javascript:", "| safe"):
        assert forbidden not in text


@pytest.mark.parametrize("prefix", ["headrace", "/a/../b", "/a b", "/a//b"])
def test_a_wrong_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"console\.path\.prefix"):
        settings(path_prefix=prefix)


def settings(**more: object) -> ConsoleSettings:
    given: dict[str, object] = {
        "listeners": ["http://127.0.0.1:0"],
        "bootstrap_servers": ("127.0.0.1:1",),
        "client": {},
        "path_prefix": "",
        "is_read_only": False,
        "allowed_hosts": [],
        "registry_urls": "",
        "directory": "",
    }
    return ConsoleSettings.checked(**(given | more))  # type: ignore[arg-type]


def test_history_is_bounded_and_forgets_groups_that_are_gone() -> None:
    history = History()
    for at in range(POINTS_MAX + 10):
        lags = {f"g{number}": LagPoint(at, number, None) for number in range(GROUPS_MAX + 5)}
        history.add(ClusterPoint(at, 1.0, 1.0, 0), lags)
    assert len(history.cluster) == len(history.group("g10")) == POINTS_MAX
    assert history.group("g0") == ()
    history.add(ClusterPoint(0, 0, 0, 0), {})
    assert history.group("g10") == ()


def test_since_when_the_lag_grows() -> None:
    points = [LagPoint(1, 5, None), LagPoint(2, 0, None), LagPoint(3, 4, None), LagPoint(4, 9, None)]
    assert grown_since(points) == 3
    assert grown_since(points[:1]) is None
    assert grown_since(points[:2]) is None
