"""The console's clients: the console reads and changes the cluster through the public SDK, like any other program."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace import Admin, AsyncAdmin, AsyncConsumer
from headrace.engine.security import channels_of
from headrace.settings import ADMIN, resolve
from headrace_core.errors import IllegalStateError, SaslAuthenticationFailedError
from headrace_core.security.tls import TlsSource

from .settings import DEFAULT_BOOTSTRAP, ConsoleSettings

T = TypeVar("T")

#: Seconds that a page waits for one request to the cluster.
REQUEST_S = 5.0
#: Number of threads for blocking requests: for the samples and the doctor, and for the schema registry. The schema
#: registry has separate threads, because a registry that does not answer blocks them for minutes.
_THREADS, _REGISTRY_THREADS = 6, 4
#: Maximum number of bytes that a page reads at once, of one partition and of all partitions.
_PARTITION_BYTES, _FETCH_BYTES = 1 << 20, 8 << 20


#: Beginning of a reference (``${env:``, ``${file:``), which the SDK would replace in a password. The console refuses a
#: password with a reference, because a user must not read a file of the
#: console's machine.
_REFERENCE = re.compile(r"\$\{(env|file):")
#: The name of the file with a user's credentials in the commands that the console shows.
_CLIENT_FILE = "client.properties"


def client_config(settings: ConsoleSettings, credentials: tuple[str, str] | None = None) -> dict[str, Any]:
    """The configuration keys of the console's clients, with the user and password of ``credentials``. Raises
    SaslAuthenticationFailedError for a password with ``${env:`` or ``${file:``. The SDK would replace a reference in a
    password by the value of a variable or the contents of a file."""
    found = {
        "client.id": "headrace-console",
        "bootstrap.timeout.ms": 3_000,
        **settings.client,
        "bootstrap.servers": settings.bootstrap,
    }
    if credentials is not None:
        if _REFERENCE.search(credentials[1]):
            raise SaslAuthenticationFailedError(
                "the console does not accept a password that contains ${env: or ${file:"
            )
        found["sasl.username"], found["sasl.password"] = credentials
    return found


async def prove(config: dict[str, Any]) -> None:
    """Authenticate on a new connection. Raises SaslAuthenticationFailedError if the cluster refuses the credentials,
    and other errors if it does not answer."""
    async with AsyncAdmin(config) as admin:
        await admin.describe_cluster(timeout=REQUEST_S)


class Cluster:
    """The clients of the cluster for all visitors of a console, or for one signed-in user. Coroutines use ``admin``;
    the tools' code, which runs in threads, uses ``blocking``. The password of ``credentials`` (user, password) is kept
    until ``close``, because each new connection, and each renewal of a session (KIP-368), needs the password again."""

    def __init__(self, settings: ConsoleSettings, credentials: tuple[str, str] | None = None) -> None:
        """Raises the errors of ``client_config``."""
        self.settings = settings
        self._keys: dict[str, Any] | None = client_config(settings, credentials)
        self.admin = AsyncAdmin(self._config)
        self.blocking = Admin(self._config)
        self._threads = asyncio.Semaphore(_THREADS)
        self._registry_threads = asyncio.Semaphore(_REGISTRY_THREADS)

    @property
    def _config(self) -> dict[str, Any]:
        """The configuration keys of the clients. Raises IllegalStateError after ``close``: a client without the
        configuration keys would have no credentials."""
        if self._keys is None:
            raise IllegalStateError("the user's session has ended, and its clients are closed")
        return self._keys

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking code in a thread. The thread is a daemon thread, because the interpreter waits at its exit for
        the threads of a pool, which may wait for silent nodes."""
        return await _in_thread(self._threads, work)

    async def ask_registry(self, work: Callable[[], T]) -> T:
        """Run blocking requests to the schema registry in a thread."""
        return await _in_thread(self._registry_threads, work)

    def consumer(self, *, is_committed: bool = False) -> AsyncConsumer:
        """A consumer without a group, for one search or one live view."""
        return AsyncConsumer(
            self._config
            | {
                "isolation.level": "read_committed" if is_committed else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "max.partition.fetch.bytes": _PARTITION_BYTES,
                "fetch.max.bytes": _FETCH_BYTES,
            }
        )

    def tls(self) -> TlsSource | None:
        """The private keys and certificates of the clients; None: the clients do not encrypt."""
        found = channels_of(resolve(ADMIN, self._config, {})).credentials
        return found if isinstance(found, TlsSource) else None

    async def prove(self) -> None:
        """Authenticate with the credentials again. Raises the errors of ``prove``."""
        await prove(self._config)

    async def close(self) -> None:
        await self.admin.close()
        await self.in_thread(self.blocking.close)
        self._keys = None


async def _in_thread(free: asyncio.Semaphore, work: Callable[[], T]) -> T:
    """Run ``work`` in a new thread, as soon as the semaphore ``free`` permits one more thread. If the caller stops
    waiting, the thread continues, and ``free`` counts the thread until it ends. Without the semaphore, page views would
    start threads without limit while a node is silent."""
    await free.acquire()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        free.release()
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 -- the caller raises it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    try:
        threading.Thread(target=run, name="headrace-console", daemon=True).start()
    except BaseException:  # no further thread can be started
        free.release()
        raise
    return await future


def command(settings: ConsoleSettings, *words: str) -> list[str]:
    """The words of a command line for the cluster."""
    is_default = settings.bootstrap_servers[0] == DEFAULT_BOOTSTRAP
    flags = [] if is_default else ["-b", settings.bootstrap]
    if settings.has_sign_in:
        flags += ["--command-config", _CLIENT_FILE]
    return ["headrace", *words, *flags]
