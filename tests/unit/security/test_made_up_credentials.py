"""What a server shows of a name before the client proves anything: nothing that tells a real user from an unknown one.

The statistical tests compute with fixed salts and secrets, so they give the same result in every run.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable

import pytest

from headrace_core.errors import SaslAuthenticationFailedError
from headrace_core.metadata.records import DelegationTokenRecord, ScramCredentialRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.metadata.sorted_map import SortedMap
from headrace_core.security.sasl import plain, scram, scram_exchange
from headrace_core.security.sasl.plain import PlainServer
from headrace_core.security.sasl.scram import (
    SHA_256,
    SHA_512,
    ScramMechanism,
    credential_of,
    new_nonce,
    salted_password,
)
from headrace_core.security.sasl.scram_exchange import ScramServer
from headrace_core.security.sasl.tokens import TokenCredentials
from headrace_core.security.sasl.users import Users

NAMES = 2_000
#: Five standard deviations of a share among NAMES draws.
TOLERANCE = 5 * (0.25 / NAMES) ** 0.5


def record(
    user: str, iterations: int, mechanism: ScramMechanism = SHA_512, salt_bytes: int = 32
) -> ScramCredentialRecord:
    salt = user.encode().ljust(salt_bytes, b".")[:salt_bytes]
    made = credential_of(mechanism, salted_password(mechanism, "secret", salt, 1), salt, iterations)
    return ScramCredentialRecord(user, mechanism.number, salt, made.stored_key, made.server_key, iterations)


def image_of(*records: ScramCredentialRecord, tokens: tuple[DelegationTokenRecord, ...] = ()) -> SecurityImage:
    by_key = {(each.user, each.mechanism): each for each in records}
    return SecurityImage(scram=SortedMap(by_key), tokens=SortedMap({each.token_id: each for each in tokens}))


def users_of(image: SecurityImage, secret: str | None = "the nodes' secret") -> Users:
    return Users(lambda: image, None if secret is None else TokenCredentials(secret), lambda: 0.0)


def forms(users: Users, names: list[str], mechanism: ScramMechanism = SHA_512) -> list[tuple[int, int]]:
    found = [users.credential(mechanism, name) for name in names]
    return [(len(each.salt), each.iterations) for each in found]


UNKNOWN = [f"unknown-{number}" for number in range(NAMES)]


def test_unknown_names_have_the_iterations_of_users_each_with_its_share() -> None:
    records = [
        record(f"user-{n}", 16_384 if n % 4 == 0 else 4_096, salt_bytes=26 if n % 10 == 0 else 32) for n in range(40)
    ]
    users = users_of(image_of(*records))
    real, made_up = forms(users, [each.user for each in records]), forms(users, UNKNOWN)
    assert set(made_up) == set(real)
    for form in set(real):
        assert abs(made_up.count(form) / NAMES - real.count(form) / len(real)) < TOLERANCE, form


def test_a_name_keeps_its_salt_and_its_iterations_while_users_come_and_go() -> None:
    records = [record(f"user-{number}", 4_096 * (1 + number % 4)) for number in range(40)]
    before = users_of(image_of(*records))
    after = users_of(image_of(record("aaa", 8_192), *records[1:], record("zzz", 4_096)))
    changed = [name for name in UNKNOWN if _shown(before, name) != _shown(after, name)]
    assert len(changed) < NAMES * 0.1


def test_two_nodes_and_a_node_that_restarts_show_the_same() -> None:
    image = image_of(record("alice", 4_096), record("bob", 8_192))
    one, other = users_of(image), users_of(image)
    assert [_shown(one, name) for name in UNKNOWN[:100]] == [_shown(other, name) for name in UNKNOWN[:100]]
    without = users_of(image, None), users_of(image, None)
    assert [_shown(without[0], name) for name in UNKNOWN[:100]] == [_shown(without[1], name) for name in UNKNOWN[:100]]


def test_a_mechanism_that_only_late_names_have_is_found() -> None:
    early = [record(f"a-{number:03}", 4_096, SHA_256) for number in range(150)]
    image = image_of(*early, record("zoe", 12_000))
    shown = [_shown(users_of(image, None), "unknown") for _ in range(2)]
    assert shown[0] == shown[1]
    assert shown[0][1] == 12_000


def test_a_user_without_a_mechanism_looks_like_an_unknown_user() -> None:
    image = image_of(record("alice", 4_096), record("bob", 8_192, SHA_256))
    assert users_of(image).credential(SHA_512, "bob").iterations == 4_096
    assert not users_of(image).credential(SHA_512, "bob").is_real


def test_a_token_shows_the_same_before_and_after_its_end() -> None:
    token = DelegationTokenRecord(
        token_id="t-1",
        owner="User:alice",
        requester="User:alice",
        renewers=(),
        issued_at_ms=0,
        expires_at_ms=1,
        max_lifetime_at_ms=2,
    )
    other = record("alice", 16_384)
    living, ended = users_of(image_of(other, tokens=(token,))), users_of(image_of(other))
    shown = [each.subject(SHA_512, "t-1", True).credential for each in (living, ended)]
    assert [each.is_real for each in shown] == [True, False]
    assert (shown[0].salt, shown[0].iterations) == (shown[1].salt, shown[1].iterations)


def _shown(users: Users, name: str) -> tuple[bytes, int]:
    found = users.credential(SHA_512, name)
    return found.salt, found.iterations


# -- time ------------------------------------------------------------------------------------------------------------

PAIRS = 60
#: Bound of the ratio of the medians. The two sides do the same work; a server that skips the hash of unknown users has
#: a ratio above 100, and one that skips a mechanism a ratio of 2.
RATIO_MAX = 1.5


def medians(one: Callable[[], object], other: Callable[[], object], pairs: int = PAIRS) -> tuple[float, float]:
    """Processor time of this thread for each, in seconds; they take turns, so a busy machine slows both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(pairs):
        for work, spent in ((one, times[0]), (other, times[1])):
            started_s = time.thread_time()
            work()
            spent.append(time.thread_time() - started_s)
    return statistics.median(times[0]), statistics.median(times[1])


@pytest.mark.parametrize("known", [("alice",), ("alice", "bob")], ids=["one user", "users of both mechanisms"])
def test_plain_takes_as_long_for_an_unknown_user_as_for_a_wrong_password(known: tuple[str, ...]) -> None:
    users = users_of(
        image_of(*(record(name, 4_096, each) for name, each in zip(known, (SHA_512, SHA_256), strict=False)))
    )

    def guess(user: str) -> None:
        with pytest.raises(SaslAuthenticationFailedError, match="credentials are wrong"):
            PlainServer(users.has_password, is_slow=True).step(f"\0{user}\0wrong".encode())

    for name in known:
        wrong, unknown = medians(lambda name=name: guess(name), lambda: guess("unknown"))  # type: ignore[misc]
        assert 1 / RATIO_MAX < wrong / unknown < RATIO_MAX, (name, wrong, unknown)


def test_scram_takes_as_long_for_an_unknown_user_as_for_a_wrong_password() -> None:
    users = users_of(image_of(record("alice", 4_096), record("bob", 8_192)))

    def guess(user: str) -> None:
        for _ in range(20):  # one exchange takes less than the clock shows
            server = ScramServer(SHA_512, lambda name, token: users.subject(SHA_512, name, token))
            challenge = server.step(f"n,,n={user},r={new_nonce()}".encode()).data.decode()
            nonce = challenge.partition(",")[0]
            with pytest.raises(SaslAuthenticationFailedError, match="credentials are wrong"):
                server.step(f"c=biws,{nonce},p={scram.encoded(bytes(64))}".encode())

    wrong, unknown = medians(lambda: guess("alice"), lambda: guess("unknown"))
    assert 1 / RATIO_MAX < wrong / unknown < RATIO_MAX, (wrong, unknown)


def test_a_wrong_and_an_unknown_user_cost_the_same_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The structure behind the times: the same calls of PBKDF2 with the same iterations."""
    calls: list[tuple[str, int]] = []
    real = scram.salted_password

    def counted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        calls.append((mechanism.name, iterations))
        return real(mechanism, password, salt, iterations)

    monkeypatch.setattr(scram, "salted_password", counted)
    users = users_of(image_of(record("alice", 4_096), record("bob", 8_192, SHA_256)))
    spent = []
    for user in ("alice", "bob", "unknown"):
        assert not users.has_password(user, "wrong")
        spent.append(list(calls))
        calls.clear()
    assert spent[0] == spent[1] == spent[2] == [("SCRAM-SHA-512", 4_096), ("SCRAM-SHA-256", 8_192)]


@pytest.mark.parametrize(
    "function",
    [scram.has_password, scram.check_same, plain.static_users, scram_exchange.ScramServer._final],
    ids=lambda each: each.__qualname__,
)
def test_secrets_are_compared_in_constant_time(function: Callable[..., object]) -> None:
    source = inspect.getsource(function)
    assert "hmac.compare_digest(" in source
    assert " == " not in source.replace("len(proof) != len", "")
