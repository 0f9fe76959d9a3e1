"""Slots let several nodes of one role share a configuration and a volume; each node claims one slot, a directory of the
volume.

    <slots.dir>/cluster.id       the cluster of the slots; written once, when the cluster is created
    <slots.dir>/slot-3/          one node's log directory; 3 is its node.id
    <slots.dir>/slot-3.claim     locked (flock) by the process that has the slot

Containers of a scaled service are identical. A slot gives each container of a service an identity that is the same
after a restart. The kernel releases the slot's lock whenever the process ends. After the end of a process no clean-up
is needed: the next process can claim the slot, with its data.

A node claims the lowest free slot. With ``slots.host`` (a host name that contains ``{slot}``), a node claims the slot
whose host name resolves to the node's machine. With ``slots.host``, a host name always leads to the same data.
Controllers need a fixed host name for their data, because they know each other by name. The file ``cluster.id`` also
distinguishes an empty volume from an unmounted volume: without the file, no slot is created.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..config.server_keys import SERVER
from ..errors import InvalidConfigError
from ..file_modes import opener
from .first_voters import NONE, FirstVoters, WriteVoters
from .meta_properties import FILE_NAME, check_cluster_id, format_directories
from .properties import Properties

CLUSTER_ID = "cluster.id"
PLACEHOLDER = "{slot}"
#: Seconds that a node waits for a free slot with its host name, because the slot's last process may be stopping.
#: LOOKUP_S is the maximum number of seconds that a node waits for its host name to resolve.
WAIT_S = 60.0
LOOKUP_S = 60.0
_POLL_S = 0.1
_ANY_PORT = 9


@dataclass(frozen=True, slots=True)
class Slot:
    """A claimed slot; ``descriptor`` holds the slot's lock, and stays open while the process lives."""

    number: int
    path: Path
    descriptor: int


def claim_configured(
    properties: Properties,
    *,
    role: str,
    write_voters: Callable[[], WriteVoters] | None,
) -> tuple[Properties, Slot] | None:
    """Lock a slot for this process if ``properties`` has slots.dir, and format the slot if it is not formatted yet.

    Returns the slot, and the properties with ``{slot}`` filled in and with the slot's node.id and log.dirs. Raises
    InvalidConfigError, and the errors of format_directories."""
    root = properties.get("slots.dir")
    if not root:
        return None
    for key in ("node.id", "broker.id", "log.dirs", "log.dir", "metadata.log.dir"):
        if key in properties:
            raise InvalidConfigError(
                f"{key} ({properties.set_in.get(key, 'set')}): conflicts with slots.dir, which sets this key from "
                "the slot; remove the key"
            )
    cluster_id = read_cluster_id(Path(root))
    most = int(SERVER.key("slots.max").parse(properties.get("slots.max", str(SERVER.key("slots.max").default))))
    host = properties.get("slots.host", "")
    slot = claim(Path(root), number=own_number(host, most=most)) if host else claim_any(Path(root), most=most)
    prepare(slot, cluster_id, role=role, write_voters=write_voters)
    return filled_in(properties, slot), slot


def filled_in(properties: Properties, slot: Slot) -> Properties:
    """Return ``properties`` with the values of ``slot`` filled in."""
    values = {key: value.replace(PLACEHOLDER, str(slot.number)) for key, value in properties.items()}
    where = f"slot {slot.number} of slots.dir={properties['slots.dir']}"
    own = {"node.id": str(slot.number), "log.dirs": str(slot.path)}
    return Properties(values | own, set_in=properties.set_in | dict.fromkeys(own, where))


def read_cluster_id(root: Path) -> str:
    """Read the cluster id of the slots; raises InvalidConfigError if the file is not written yet or the volume is not
    mounted."""
    try:
        text = (root / CLUSTER_ID).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(
            f"slots.dir={root}: cannot read {CLUSTER_ID} ({error}): is the volume mounted, and is the cluster "
            "formatted? Formatting writes the cluster's id to this file"
        ) from None
    try:
        return check_cluster_id(text.strip())
    except InvalidConfigError as error:
        raise InvalidConfigError(
            f"slots.dir={root}: {CLUSTER_ID} holds no cluster id ({error.message}): was formatting interrupted? "
            "Write the cluster.id of the other slots' meta.properties to this file"
        ) from None


def claim(root: Path, *, number: int, wait_s: float = WAIT_S) -> Slot:
    """Lock slot ``number`` for this process, and wait while another process has the slot; raises InvalidConfigError
    after ``wait_s`` seconds."""
    deadline = time.monotonic() + wait_s
    while True:
        slot = _try(root, number)
        if slot is not None:
            return slot
        if time.monotonic() >= deadline:
            raise InvalidConfigError(
                f"slots.dir={root}: another process has used slot {number} for more than {wait_s:.0f} s: do two "
                "clusters share the volume?"
            )
        time.sleep(_POLL_S)


def claim_any(root: Path, *, most: int) -> Slot:
    """Lock the lowest free slot for this process; raises InvalidConfigError if all ``most`` slots are taken."""
    for number in range(1, most + 1):
        slot = _try(root, number)
        if slot is not None:
            return slot
    raise InvalidConfigError(f"slots.dir={root}: all {most} slots are in use: scale down, or raise slots.max")


def _try(root: Path, number: int) -> Slot | None:
    descriptor = opener(str(root / f"slot-{number}.claim"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return Slot(number, root / f"slot-{number}", descriptor)


def prepare(slot: Slot, cluster_id: str, *, role: str, write_voters: Callable[[], WriteVoters] | None = None) -> None:
    """Format a new slot. A controller in a new slot is no voter until `headrace quorum add`. Only the creation of the
    cluster names first voters, and it has already formatted the slots of the first voters."""
    if (slot.path / FILE_NAME).exists():
        return
    joins = role == "controller"
    assert not joins or write_voters is not None, "a controller brings write_voters"
    format_directories(
        [str(slot.path)],
        cluster_id=cluster_id,
        node_id=slot.number,
        first=FirstVoters(flag=NONE, voters=()) if joins else None,
        write_voters=write_voters() if joins and write_voters is not None else None,
    )


def own_number(
    host: str,
    *,
    most: int,
    addresses_of: Callable[[str], set[str]] | None = None,
    is_mine: Callable[[str], bool] | None = None,
    wait_s: float = LOOKUP_S,
) -> int:
    """Find the number N from 1 to ``most`` for which ``host``, with N in place of ``{slot}``, resolves to this machine.

    All host names are looked up at the same time, because name servers respond late for missing names. The lookups are
    repeated for ``wait_s`` seconds. Raises InvalidConfigError if no name resolves to this machine.
    """
    if PLACEHOLDER not in host:
        raise InvalidConfigError(
            f"slots.host={host}: write {PLACEHOLDER} in place of the slot's number, as in node-{PLACEHOLDER}"
        )
    look_up, mine = addresses_of or _addresses_of, is_mine or _is_mine
    found = threading.Event()
    numbers: list[int] = []
    deadline = time.monotonic() + wait_s

    def look(number: int) -> None:
        while not found.is_set() and time.monotonic() < deadline:
            if any(mine(address) for address in look_up(host.replace(PLACEHOLDER, str(number)))):
                numbers.append(number)
                found.set()
            found.wait(_POLL_S)

    for number in range(1, most + 1):
        threading.Thread(target=look, args=(number,), daemon=True, name=f"look-up {number}").start()
    if not found.wait(wait_s):
        raise InvalidConfigError(
            f"slots.host={host}: none of the names for slots 1 to {most} resolves to this machine "
            f"({socket.gethostname()}); leave the key out to take the lowest free slot, or raise slots.max"
        )
    return numbers[0]


def _addresses_of(name: str) -> set[str]:
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, ValueError):  # getaddrinfo raises ValueError for an invalid name (a part of more than 63 letters)
        return set()


def _is_mine(address: str) -> bool:
    """Whether ``address`` belongs to this machine: packets that the machine sends to its own address have that address
    as their source. (A test that binds the address would accept foreign addresses where net.ipv4.ip_nonlocal_bind is
    set.) Returns False for the wildcard address and for multicast addresses."""
    there = ipaddress.ip_address(address.partition("%")[0])
    if there.is_unspecified or there.is_multicast:
        return False
    try:
        (family, _, _, _, target), *_ = socket.getaddrinfo(address, _ANY_PORT, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            here = ipaddress.ip_address(str(probe.getsockname()[0]).partition("%")[0])
    except OSError:
        return False
    return here == there or (here.is_loopback and there.is_loopback)
