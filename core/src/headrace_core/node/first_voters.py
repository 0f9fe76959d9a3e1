"""The first voters of a quorum, which ``format`` writes into a controller's directory together with ``meta.properties``
(KIP-853).

Empty disks never form a quorum by themselves. Three options of ``format`` choose how a controller begins:

    --standalone                                this controller is the only voter; others may join later
    --initial-controllers ID@HOST:PORT:DIR,...  these voters begin together; DIR is a directory's id
    --no-initial-controllers                    this controller is no voter until `headrace quorum add` adds it

The directory's id (DIR) is a part of the voter's identity, so a controller that has lost its disk cannot vote a second
time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..errors import InvalidConfigError
from ..log.files import FileSystem
from .ids import id_from_text, id_to_text, random_id
from .listeners import parse_addresses

STANDALONE = "--standalone"
INITIAL = "--initial-controllers"
NONE = "--no-initial-controllers"
METADATA_DIRECTORY = "__cluster_metadata-0"  #: Name of the metadata log's directory in a controller's directory.
#: File name of the empty snapshot that contains the first voters.
FILE_NAME = "00000000000000000000-0000000000.checkpoint"

_EXAMPLE = "1@127.0.0.1:19093:JEXY6aqzQY-32P5TStzaFg"
_INITIAL = re.compile(r"(?P<id>\d{1,10})@(?P<address>.+:\d+):(?P<directory>[^:@]+)\Z")
_NODE_ID_MAX = 2**31 - 1
_RESERVED_IDS = 100  #: Number of directory ids that KIP-858 reserves: unassigned, lost, migrating ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialVoter:
    """A controller that is a first voter: its id, its internal listener's host:port, and its directory's id (16
    bytes)."""

    node_id: int
    address: str
    directory_id: bytes

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}:{id_to_text(self.directory_id)}"


#: Writes the first voters durably into a controller's directory; arguments: file system, path of the directory, voters.
WriteVoters = Callable[[FileSystem, str, Sequence[InitialVoter]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstVoters:
    """The first voters to format with. ``flag`` is the option that gave the voters; ``voters`` is empty for
    ``NONE``."""

    flag: str
    voters: tuple[InitialVoter, ...]

    def directory_id_of(self, node_id: int) -> bytes | None:
        """Return the required id of the node's directory; None if any new id is allowed."""
        return next((voter.directory_id for voter in self.voters if voter.node_id == node_id), None)

    @property
    def ids_are_given(self) -> bool:
        """Whether the user named the ids of the directories; with ``--standalone`` the id is random."""
        return self.flag == INITIAL


def first_voters(
    *, node_id: int, address: str | None, standalone: bool, initial: str | None, none: bool
) -> FirstVoters | None:
    """Evaluate the three options for first voters; None if no option was given. ``address``: the address of this node.

    Raises InvalidConfigError for more than one option, for a missing node id or address, and for a list that is invalid
    or does not name the node.
    """
    given = [
        flag for flag, is_given in ((STANDALONE, standalone), (INITIAL, initial is not None), (NONE, none)) if is_given
    ]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidConfigError(f"{' and '.join(given)} contradict each other: pass one of them")
    if node_id < 0:
        raise InvalidConfigError(f"{given[0]} needs the controller's id: set node.id, or pass --node-id ID")
    if none:
        return FirstVoters(flag=NONE, voters=())
    if initial is not None:
        voters = parse_initial_controllers(initial)
        if not any(voter.node_id == node_id for voter in voters):
            known = ", ".join(str(voter.node_id) for voter in voters)
            raise InvalidConfigError(
                f"{INITIAL}: this controller ({node_id}) is not in the list ({known}); add it, or pass {NONE} if it "
                "joins the quorum later"
            )
        return FirstVoters(flag=INITIAL, voters=voters)
    if address is None:
        raise InvalidConfigError(
            f"{STANDALONE}: the controller's address is unknown; pass --config FILE or --address HOST:PORT"
        )
    (checked,) = parse_addresses([address], key="--address")
    return FirstVoters(
        flag=STANDALONE, voters=(InitialVoter(node_id=node_id, address=checked, directory_id=random_id()),)
    )


def parse_initial_controllers(text: str) -> tuple[InitialVoter, ...]:
    """Parse ``ID@HOST:PORT:DIRECTORY_ID,...`` to voters, ascending by id. InvalidConfigError names the item and the
    legal form."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InvalidConfigError(f"{INITIAL}: name at least one controller, such as {_EXAMPLE}")
    voters = sorted((_initial(item) for item in items), key=lambda voter: voter.node_id)
    _refuse_twins(voters)
    return tuple(voters)


def _initial(item: str) -> InitialVoter:
    match = _INITIAL.match(item)
    if match is None or int(match["id"]) > _NODE_ID_MAX:
        raise InvalidConfigError(f"{INITIAL} {item}: write ID@HOST:PORT:DIRECTORY_ID, such as {_EXAMPLE}")
    (address,) = parse_addresses([match["address"]], key=INITIAL)
    return InitialVoter(
        node_id=int(match["id"]), address=address, directory_id=parse_directory_id(match["directory"], key=INITIAL)
    )


def parse_directory_id(text: str, *, key: str) -> bytes:
    """Parse a directory's id to 16 bytes; raises InvalidConfigError for an invalid text or a reserved id."""
    try:
        raw = id_from_text(text)
    except InvalidConfigError as error:
        raise InvalidConfigError(
            f"{key}: the directory's id {error.message}; `headrace random-uuid` makes one"
        ) from None
    if int.from_bytes(raw, "big") < _RESERVED_IDS:
        raise InvalidConfigError(f"{key}: {text} is a reserved id; `headrace random-uuid` makes an id for a directory")
    return raw


def _refuse_twins(voters: Sequence[InitialVoter]) -> None:
    for what, values in (
        ("the id {}", [voter.node_id for voter in voters]),
        ("the address {}", [voter.address for voter in voters]),
        ("the directory {}", [id_to_text(voter.directory_id) for voter in voters]),
    ):
        twins = _twice(values)
        if twins is not None:
            raise InvalidConfigError(f"{INITIAL}: two controllers have {what.format(twins)}")


def _twice(values: Iterable[object]) -> object | None:
    seen: set[object] = set()
    return next((value for value in values if value in seen or seen.add(value)), None)  # type: ignore[func-returns-value]


def refuse_leftovers(fs: FileSystem, root: str) -> None:
    """Raise InvalidConfigError for a directory with a metadata log: with a new directory id, its controller would be
    another voter with an old log."""
    directory = f"{root}/{METADATA_DIRECTORY}"
    names = fs.listdir(directory) if fs.exists(directory) else []
    found = sorted(
        name
        for name in names
        if name == "quorum-state" or (name.endswith((".log", ".checkpoint")) and name != FILE_NAME)
    )
    if found:
        raise InvalidConfigError(
            f"{directory} holds a metadata log ({', '.join(found[:2])}), but {root} is not formatted: restore its "
            "meta.properties; or remove the directory, which loses this node's metadata log"
        )


def clear_unfinished(fs: FileSystem, root: str) -> None:
    """Remove the first voters that an interrupted ``format`` left in a directory that is not formatted."""
    directory = f"{root}/{METADATA_DIRECTORY}"
    if fs.exists(f"{directory}/{FILE_NAME}"):
        fs.unlink(f"{directory}/{FILE_NAME}")
        fs.sync_directory(directory)
