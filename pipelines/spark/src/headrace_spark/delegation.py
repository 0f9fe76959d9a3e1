"""Delegation tokens (KIP-48) for tasks: the driver logs in with a password, a keytab or OAuth; tasks get only a token.

The client key ``delegation.token.enabled`` turns this on. The driver makes one token for each cluster and login, and
uses it for all queries. Spark plans each micro-batch, and each batch of a sink, in a process of its own, so the token
is in a file that only the driver's user may read. When Spark plans a batch after three quarters of a token's life, the
driver renews the token, or replaces it near its maximum lifetime; a task of that batch still has a quarter of the life.
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

from headrace_core.errors import HeadraceError, InvalidConfigError, NetworkError, SaslAuthenticationFailedError

from .sink_topics import open_admin

if TYPE_CHECKING:
    from headrace import Admin, DelegationToken

logger = logging.getLogger(__name__)

#: The client keys of this module; the second one has the name of Spark's Kafka connector.
ENABLED, MECHANISM = "delegation.token.enabled", "sasl.token.mechanism"
DEFAULT_MECHANISM = "SCRAM-SHA-512"
_MECHANISMS = ("SCRAM-SHA-256", DEFAULT_MECHANISM)
#: Client keys that prove an identity: tasks with a token do not get them.
_LOGIN_KEYS = ("sasl.", "oauth", "ssl.keystore.", "ssl.key.", "ssl.certificate.")

RENEW_AFTER = 0.75  #: The part of a token's life after which it is renewed, as spark.security.credentials.renewalRatio.
CHECK_S = 60.0  #: How often the driver asks the cluster whether it still has the token.
KNOWN_S_MAX = 10.0  #: How long a new token may take to be known to all nodes.
_PAUSE_S = 0.1


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
    """The keys that tasks need besides a token: addresses, authorities, and how to read or write."""
    return {key: value for key, value in client.items() if not key.startswith(_LOGIN_KEYS)}


def task_login(client: Mapping[str, str], mechanism: str) -> dict[str, str]:
    """The keys with which tasks log in: a token that is valid now. May make or renew a token. Raises HeadraceError."""
    token = TokenStore(client, mechanism).token()
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": token.jaas_config}


@dataclass(frozen=True, slots=True)
class Kept:
    """A token and its life by this machine's clock (seconds since 1970), which may differ from the cluster's.
    ``life_s``: the time from the last renewal to ``ends_s``. ``checked_s``: when the cluster had the token."""

    token: DelegationToken
    ends_s: float
    life_s: float
    checked_s: float

    def is_fresh(self, now_s: float) -> bool:
        return now_s < self.ends_s - self.life_s * (1 - RENEW_AFTER)

    @property
    def can_be_renewed(self) -> bool:
        """Whether a renewal adds at least half of a life."""
        return self.token.max_lifetime_at_ms - self.token.expires_at_ms >= self.life_s * 1_000 / 2


class TokenStore:
    """The token of one login at one cluster, in a file."""

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
        self._path = place / f"{name}.json"

    def token(self) -> DelegationToken:
        """Return a token that has at least a quarter of its life before it. Raises HeadraceError."""
        with self._locked():
            kept = self._read()
            now_s = self._now_s()
            if kept is not None and kept.is_fresh(now_s) and now_s - kept.checked_s < CHECK_S:
                return kept.token
            with self._admin(self._client) as admin:
                kept = self._checked(admin, kept)
            self._write(kept)
            return kept.token

    def _checked(self, admin: Admin, kept: Kept | None) -> Kept:
        now_s = self._now_s()
        if kept is not None and not _has(admin, kept.token):
            logger.warning("the cluster no longer has the delegation token %s; making another", kept.token.token_id)
            kept = None
        if kept is not None and kept.is_fresh(now_s):
            return replace(kept, checked_s=now_s)
        if kept is not None and kept.can_be_renewed and kept.ends_s > now_s:
            expires_at_ms = admin.renew_delegation_token(kept.token.hmac)
            ends_s = kept.ends_s + (expires_at_ms - kept.token.expires_at_ms) / 1_000
            logger.info("renewed the delegation token %s for tasks", kept.token.token_id)
            return Kept(replace(kept.token, expires_at_ms=expires_at_ms), ends_s, ends_s - now_s, now_s)
        made = admin.create_delegation_token()
        logger.info("made the delegation token %s for tasks", made.token_id)
        self._wait_until_known(admin, made)
        life_s = (made.expires_at_ms - made.issued_at_ms) / 1_000
        return Kept(made, now_s + life_s, life_s, now_s)

    def _wait_until_known(self, admin: Admin, token: DelegationToken) -> None:
        """Log in with the token at each node: nodes learn of tokens by the log of metadata, one after the other."""
        cluster = admin.describe_cluster()
        login = {"sasl.mechanism": self._mechanism, "sasl.jaas.config": token.jaas_config}
        client = {**without_login(self._client), **login}
        ends_s = time.monotonic() + KNOWN_S_MAX
        for address in (*(each.address for each in cluster.brokers if not each.fenced), *(
            each.address for each in cluster.coordinators
        )):  # fmt: skip
            while not self._is_known(client, address):
                if time.monotonic() > ends_s:
                    raise SaslAuthenticationFailedError(
                        f"{address} does not accept the delegation token that this driver has made: set the same "
                        "delegation.token.secret.key on all nodes"
                    )
                time.sleep(_PAUSE_S)

    def _is_known(self, client: Mapping[str, str], address: str) -> bool:
        """Whether the node accepts the token; a node that does not answer is not waited for."""
        with self._admin({**client, "bootstrap.servers": address}) as admin:
            try:
                admin.describe_node(address)
            except SaslAuthenticationFailedError:
                return False
            except NetworkError as error:
                logger.warning("%s did not check the delegation token: %s", address, error.message)
        return True

    # -- the file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time look for a token, so that a new token is made once."""
        with open(os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> Kept | None:
        from headrace import DelegationToken

        try:
            found = json.loads(self._path.read_text())
            token = found.pop("token")
            hmac, renewers = base64.b64decode(token.pop("hmac")), tuple(token.pop("renewers"))
            return Kept(DelegationToken(hmac=hmac, renewers=renewers, **token), **found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            logger.warning("%s is not readable; the driver makes another delegation token", self._path)
            return None

    def _write(self, kept: Kept) -> None:
        document: dict[str, Any] = asdict(kept)
        document["token"]["hmac"] = base64.b64encode(kept.token.hmac).decode()
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(document, file)
        new.replace(self._path)


def _has(admin: Admin, token: DelegationToken) -> bool:
    try:
        return token.token_id in {each.token_id for each in admin.describe_delegation_token()}
    except SaslAuthenticationFailedError:
        raise
    except HeadraceError as error:
        logger.warning("the cluster does not say whether it has the delegation token: %s", error.message)
        return True


def _private_directory() -> Path:
    """A directory for this user only. Raises InvalidConfigError if another user owns it, or may read it."""
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
