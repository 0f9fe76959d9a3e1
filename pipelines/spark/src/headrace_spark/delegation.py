"""Delegation tokens (KIP-48) for tasks: the driver logs in with a password, a keytab or OAuth; tasks get only a token.

The client key ``delegation.token.enabled`` turns this on. The driver makes one token for each cluster and login, and
uses it for all queries. Spark plans each micro-batch, and each batch of a sink, in a separate process. The token is
therefore stored in a file that only the driver's user may read. When Spark plans a batch after three quarters of a
token's life, the driver renews the token. Near the token's maximum lifetime, the driver makes a new token. So a new
batch gets a token with at least a quarter of its life left. If the renewal fails, tasks use the present token until
five percent of its life is left, and each batch tries the renewal again.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_core.errors import (
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    HeadraceError,
    InvalidConfigError,
    SaslAuthenticationFailedError,
    ServerBusyError,
)

from .sink_topics import open_admin

if TYPE_CHECKING:
    from headrace import Admin, DelegationToken

logger = logging.getLogger(__name__)

#: The client keys of this module; Spark's Kafka connector also has ``sasl.token.mechanism``.
ENABLED, MECHANISM = "delegation.token.enabled", "sasl.token.mechanism"
DEFAULT_MECHANISM = "SCRAM-SHA-512"
_MECHANISMS = ("SCRAM-SHA-256", DEFAULT_MECHANISM)
#: Prefixes of client keys that prove the driver's identity; tasks with a token do not get these keys.
_LOGIN_KEYS = ("sasl.", "oauth", "ssl.keystore.", "ssl.key.", "ssl.certificate.")

RENEW_AFTER = 0.75  #: The part of a token's life after which it is renewed, as spark.security.credentials.renewalRatio.
KEEP_UNTIL = 0.95  #: The part of a token's life up to which tasks use a token that cannot be renewed or replaced now.
CHECK_S = 60.0  #: How often the driver asks the cluster whether it still has the token.
KNOWN_S_MAX = 10.0  #: Maximum seconds to wait until all nodes accept a new token.
CHANGE_S = 5.0  #: Timeout in seconds for the renewal or the replacement of a token that is still usable.
NODE_S = 3.0  #: Timeout in seconds for one node to check a new token.
_PAUSE_S, _PAUSE_S_MAX = 0.1, 1.0  #: First and longest pause between two logins at a node; each pause is twice as long.


def take_mechanism(client: dict[str, str], *, where: str) -> str | None:
    """Remove the keys of this module from ``client``. Returns the mechanism with which tasks use a token, or None if
    tasks get the login itself. Raises InvalidConfigError."""
    enabled = client.pop(ENABLED, "false").strip().lower()
    mechanism = client.pop(MECHANISM, DEFAULT_MECHANISM).strip().upper()
    if enabled not in ("true", "false"):
        raise InvalidConfigError(f"{ENABLED}={enabled!r}: must be true or false")
    if enabled == "false":
        return None
    if mechanism not in _MECHANISMS:
        raise InvalidConfigError(f"{MECHANISM}={mechanism!r}: must be {' or '.join(_MECHANISMS)}")
    protocol = client.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in ("SASL_SSL", "SASL_PLAINTEXT"):
        raise InvalidConfigError(
            f"{ENABLED}=true: the {where} has security.protocol={protocol}, and tasks log in with a token by SCRAM; "
            "set security.protocol=SASL_SSL and the address of a listener with SASL"
        )
    return mechanism


def without_login(client: Mapping[str, str]) -> dict[str, str]:
    """The keys that tasks need besides a token: addresses, trusted authorities, and settings for reading or writing."""
    return {key: value for key, value in client.items() if not key.startswith(_LOGIN_KEYS)}


def task_login(client: Mapping[str, str], mechanism: str) -> dict[str, str]:
    """The keys with which tasks log in: a token that is valid now. ``login`` may make or renew a token. Raises
    HeadraceError."""
    token = TokenStore(client, mechanism).token()
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": token.jaas_config}


@dataclass(frozen=True, slots=True)
class Kept:
    """A token and its life by this machine's clock (seconds since 1970), which may differ from the cluster's.
    ``life_s``: the time from the last renewal to ``ends_s``. ``checked_s``: when the cluster last confirmed the
    token."""

    token: DelegationToken
    ends_s: float
    life_s: float
    checked_s: float

    def is_fresh(self, now_s: float) -> bool:
        return now_s < self.ends_s - self.life_s * (1 - RENEW_AFTER)

    def is_usable(self, now_s: float) -> bool:
        return now_s < self.ends_s - self.life_s * (1 - KEEP_UNTIL)

    @property
    def can_be_renewed(self) -> bool:
        """Whether a renewal would extend the token by at least half of its life."""
        return self.token.max_lifetime_at_ms - self.token.expires_at_ms >= self.life_s * 1_000 / 2


class TokenStore:
    """The token of one login at one cluster, in a file. A second file has a token that some nodes may not know yet."""

    def __init__(
        self,
        client: Mapping[str, str],
        mechanism: str,
        *,
        directory: Path | None = None,
        now_s: Callable[[], float] = time.time,
        admin: Callable[[Mapping[str, str]], AbstractContextManager[Admin]] = open_admin,
    ) -> None:
        self._client, self._mechanism, self._now_s, self._admin = client, mechanism, now_s, admin
        place = _private_directory() if directory is None else directory
        name = hashlib.sha256(repr((sorted(client.items()), mechanism)).encode()).hexdigest()[:32]
        self._path, self._made_path = place / f"{name}.json", place / f"{name}.made"

    def token(self) -> DelegationToken:
        """Return a token with at least a quarter of its life left. While the cluster cannot renew or make a token, a
        token with five percent of its life left is enough. Raises HeadraceError."""
        with self._locked():
            kept = self._read(self._path)
            now_s = self._now_s()
            if kept is not None and kept.is_fresh(now_s) and now_s - kept.checked_s < CHECK_S:
                return kept.token
            with self._admin(self._client) as admin:
                kept = self._checked(admin, kept)
            self._write(self._path, kept)
            return kept.token

    def _checked(self, admin: Admin, kept: Kept | None) -> Kept:
        now_s = self._now_s()
        if kept is not None and not _has(admin, kept.token):
            logger.warning("the cluster no longer has the delegation token %s; making another", kept.token.token_id)
            kept = None
        if kept is not None and kept.is_fresh(now_s):
            return replace(kept, checked_s=now_s)
        is_usable = kept is not None and kept.is_usable(now_s)
        try:
            return self._next(admin, kept, CHANGE_S if is_usable else None)
        except (DelegationTokenExpiredError, DelegationTokenNotFoundError) as error:
            logger.warning("cannot renew the delegation token for tasks; making another: %s", error.message)
            return self._made(admin, None)
        except HeadraceError as error:
            if kept is None or not is_usable:
                raise
            logger.warning(
                "cannot renew or replace the delegation token %s; tasks use it for now (%.0f s left), and the next "
                "batch tries again: %s [%s]",
                kept.token.token_id,
                kept.ends_s - now_s,
                error.message,
                error.code,
            )
            return replace(kept, checked_s=now_s)

    def _next(self, admin: Admin, kept: Kept | None, timeout_s: float | None) -> Kept:
        """Renew the token, or make another."""
        now_s = self._now_s()
        if kept is None or not kept.can_be_renewed or kept.ends_s <= now_s:
            return self._made(admin, timeout_s)
        expires_at_ms = admin.renew_delegation_token(kept.token.hmac, timeout=timeout_s)
        ends_s = kept.ends_s + (expires_at_ms - kept.token.expires_at_ms) / 1_000
        logger.info("renewed the delegation token %s for tasks", kept.token.token_id)
        return Kept(replace(kept.token, expires_at_ms=expires_at_ms), ends_s, ends_s - now_s, now_s)

    def _made(self, admin: Admin, timeout_s: float | None) -> Kept:
        """Make a token, and wait until all nodes know it. If the wait fails, the next call waits for the same token."""
        now_s = self._now_s()
        made = self._read(self._made_path)
        if made is None or not made.is_fresh(now_s) or not _has(admin, made.token):
            token = admin.create_delegation_token(timeout=timeout_s)
            logger.info("made the delegation token %s for tasks", token.token_id)
            life_s = (token.expires_at_ms - token.issued_at_ms) / 1_000
            made = Kept(token, now_s + life_s, life_s, now_s)
            self._write(self._made_path, made)
        self._wait_until_known(admin, made.token)
        self._made_path.replace(self._path)
        return replace(made, checked_s=now_s)

    def _wait_until_known(self, admin: Admin, token: DelegationToken) -> None:
        """Log in with the token at each node, because each node learns of a new token at another time, from the
        metadata log."""
        cluster = admin.describe_cluster(timeout=KNOWN_S_MAX)
        login = {"sasl.mechanism": self._mechanism, "sasl.jaas.config": token.jaas_config}
        client = {**without_login(self._client), **login}
        ends_s = time.monotonic() + KNOWN_S_MAX
        for address in (*(each.address for each in cluster.brokers if not each.fenced), *(
            each.address for each in cluster.coordinators
        )):  # fmt: skip
            self._wait_for_node(client, address, ends_s)

    def _wait_for_node(self, client: Mapping[str, str], address: str, ends_s: float) -> None:
        pause_s = _PAUSE_S
        while (failure := self._failure(client, address)) is not None:
            if time.monotonic() > ends_s:
                if isinstance(failure, SaslAuthenticationFailedError):
                    raise SaslAuthenticationFailedError(
                        f"node {address} does not accept the delegation token that this driver has made: set the same "
                        "delegation.token.secret.key on all nodes"
                    )
                logger.warning("node %s did not check the delegation token: %s", address, failure.message)
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _failure(self, client: Mapping[str, str], address: str) -> HeadraceError | None:
        """Log in at the node. Returns the failure if the node may accept the token later. Returns None if the node
        accepts the token, or does not answer, because the driver does not wait for a node without an answer."""
        try:
            with self._admin({**client, "bootstrap.servers": address}) as admin:
                admin.describe_node(address, timeout=NODE_S)
        except (SaslAuthenticationFailedError, ServerBusyError) as error:
            return error
        except HeadraceError as error:
            if not error.retriable:
                raise
            logger.warning("node %s did not check the delegation token: %s", address, error.message)
        return None

    # -- the file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let only one process at a time look for a token, so that only one new token is made."""
        with open(os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self, path: Path) -> Kept | None:
        from headrace import DelegationToken

        try:
            found = json.loads(path.read_text())
            token = found.pop("token")
            hmac, renewers = base64.b64decode(token.pop("hmac")), tuple(token.pop("renewers"))
            return Kept(DelegationToken(hmac=hmac, renewers=renewers, **token), **found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            logger.warning("the file %s has no readable delegation token; the driver makes another token", path)
            return None

    def _write(self, path: Path, kept: Kept) -> None:
        document: dict[str, Any] = asdict(kept)
        document["token"]["hmac"] = base64.b64encode(kept.token.hmac).decode()
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file)
        new.replace(path)


def _has(admin: Admin, token: DelegationToken) -> bool:
    try:
        return token.token_id in {each.token_id for each in admin.describe_delegation_token()}
    except SaslAuthenticationFailedError:
        raise
    except HeadraceError as error:
        logger.warning("the cluster does not say whether it has the delegation token: %s", error.message)
        return True


def _private_directory() -> Path:
    """A directory for this user only. Raises InvalidConfigError if another user owns the directory, or may read it."""
    path = Path(tempfile.gettempdir()) / f"headrace-spark-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    if not is_private:
        raise InvalidConfigError(
            f"{ENABLED}=true: {path} is not a directory that only this user may read; remove it, or set TMPDIR of the "
            "driver"
        )
    return path
