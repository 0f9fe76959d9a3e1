"""Sessions of the console: how they begin, when they end, and why."""

from __future__ import annotations

import pytest

from headrace_console.sessions import ID_BYTES, SIGNED_OUT, Session, Sessions


class Clock:
    """Seconds that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ended() -> list[Session[str]]:
    return []


@pytest.fixture
def sessions(clock: Clock, ended: list[Session[str]]) -> Sessions[str]:
    return Sessions(idle_s=60, life_s=600, on_end=ended.append, clock=clock, per_user_max=2, sessions_max=4)


def test_an_id_is_random_and_long_and_not_kept(sessions: Sessions[str]) -> None:
    ids = {sessions.begin(f"user-{number}", "")[0] for number in range(4)}
    assert len(ids) == 4
    assert ID_BYTES * 8 == 256
    assert all(len(each) >= 43 for each in ids)
    kept = repr([vars(sessions), *sessions])
    assert not any(each in kept for each in ids)


def test_a_session_is_found_by_its_id_alone(sessions: Sessions[str]) -> None:
    session_id, session = sessions.begin("alice", "payload")
    assert sessions.find(session_id) is session
    for wrong in ("", session_id[:-1], session_id + "A", "\udcff", "x" * 100_000):
        assert sessions.find(wrong) is None


def test_a_token_belongs_to_one_session(sessions: Sessions[str]) -> None:
    _, first = sessions.begin("alice", "")
    _, second = sessions.begin("alice", "")
    assert first.has_token(first.token)
    assert not first.has_token(second.token)
    assert not first.has_token("")
    assert not first.has_token("\udcff")


def test_an_action_begins_the_idle_time_again_and_a_refresh_does_not(
    sessions: Sessions[str], clock: Clock, ended: list[Session[str]]
) -> None:
    session_id, session = sessions.begin("alice", "")
    clock.now = 50
    assert sessions.find(session_id) is session
    clock.now = 100
    assert sessions.find(session_id, is_use=False) is session
    clock.now = 110
    assert sessions.find(session_id) is None
    assert ended == [session]
    assert sessions.why(session_id) == session.why
    assert "1 min without an action" in session.why


def test_a_used_session_ends_when_its_life_is_over(sessions: Sessions[str], clock: Clock) -> None:
    session_id, _ = sessions.begin("alice", "")
    for clock.now in range(0, 600, 50):
        assert sessions.find(session_id) is not None
    clock.now = 600
    assert sessions.find(session_id) is None
    assert "10 min after its sign-in" in sessions.why(session_id)


def test_sessions_that_no_one_asks_for_end_too(
    sessions: Sessions[str], clock: Clock, ended: list[Session[str]]
) -> None:
    sessions.begin("alice", "")
    clock.now = 60
    sessions.sweep()
    assert len(sessions) == 0
    assert len(ended) == 1


def test_an_ended_session_does_not_come_back(sessions: Sessions[str], ended: list[Session[str]]) -> None:
    session_id, session = sessions.begin("alice", "")
    sessions.end(session, SIGNED_OUT)
    sessions.end(session, "for another reason")
    assert sessions.find(session_id) is None
    assert sessions.why(session_id) == SIGNED_OUT
    assert ended == [session]


def test_a_user_has_a_bounded_number_of_sessions_and_takes_none_of_another(
    sessions: Sessions[str], clock: Clock
) -> None:
    bob, _ = sessions.begin("bob", "")
    alices = []
    for clock.now in range(1, 4):
        alices.append(sessions.begin("alice", "")[0])
    assert [sessions.find(each) is not None for each in alices] == [False, True, True]
    assert sessions.find(bob) is not None


def test_all_users_have_a_bounded_number_of_sessions(sessions: Sessions[str], clock: Clock) -> None:
    ids = []
    for clock.now in range(6):
        ids.append(sessions.begin(f"user-{clock.now}", "")[0])
    assert len(sessions) == 4
    assert [sessions.find(each) is not None for each in ids] == [False, False, True, True, True, True]
    assert "too many sessions" in sessions.why(ids[0])
