"""Decide in which directory each partition's log is, or in which it will be created. The first rule in the list that
applies decides the directory of a partition's log:

    1. a log that was found on the disk, or was created since the start
    2. the directory that the controller has on record for this replica (KIP-858), if it is offline or not here: nowhere
    3. at the start, while any directory is offline: nowhere, because that directory may have the log (the recorded
       directory may be out of date)
    4. the directory on record; if there is none, the one with the fewest logs (``least_loaded``)

"Nowhere" in the list means that the partition is offline (KAFKA_STORAGE_ERROR). A log that may exist on an offline disk
is never created again, empty, on another disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence

from headrace_core.errors import HeadraceError, StorageError
from headrace_core.node.ids import id_to_text
from headrace_core.types import TopicPartition

from .directories import LOST, UNASSIGNED, HeldDirectory, least_loaded

#: Returns the directory that the controllers recorded for this broker's replica; None or the zero id if no directory is
#: recorded.
Assigned = Callable[[TopicPartition, uuid.UUID], uuid.UUID | None]


class Placement:
    """The directories of the partitions' logs; belongs to the storage, which records the logs that it finds and
    creates."""

    def __init__(self, held: Sequence[HeldDirectory], assigned: Assigned) -> None:
        self._assigned = assigned
        #: Directories chosen for new logs, so that a repeated creation of a log uses the same directory.
        self.at: dict[TopicPartition, HeldDirectory] = {}
        #: Partitions whose logs are on the disk but must not be used, each with the reason.
        self.refused: dict[TopicPartition, HeadraceError] = {}
        #: Partitions whose log may be in a directory that was offline when the broker started.
        self.withheld: set[TopicPartition] = set()
        self._held = held

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget ``partitions``, which were deleted."""
        for partition in partitions:
            self.at.pop(partition, None)
            self.refused.pop(partition, None)
            self.withheld.discard(partition)

    def directory_of(self, partition: TopicPartition) -> uuid.UUID | None:
        """Id of the directory that has the partition's log (sound or damaged), or that failed before the log was
        created. LOST if the log may be in a directory that was offline at the broker's start; None if there is no
        log."""
        if partition in self.withheld:
            return LOST
        held = self.at.get(partition)
        if held is None or held.writer is None:
            return None
        if held.failure is None and not held.writer.directory.holds(partition):
            return None
        return held.directory_id

    def place(
        self, partition: TopicPartition, topic_id: uuid.UUID, added: dict[HeldDirectory, int], *, at_start: bool
    ) -> HeldDirectory:
        """The directory in which the partition's log is or will be created. ``added`` counts the logs that are planned
        in each directory. Raises StorageError if no directory works, DiskFullError, or the error of an existing log
        that must not be used."""
        if partition in self.refused:
            raise self.refused[partition].copy()
        held = self.at.get(partition)
        if held is None:
            held = self._on_record(partition, topic_id)
            offline = [each.root for each in self._held if each.failure is not None]
            if (partition in self.withheld or (at_start and offline)) and (held is None or held.failure is None):
                self.withheld.add(partition)
                raise StorageError(
                    f"{partition} is offline: it has no log in the working directories, but may have a log in the "
                    f"offline directories {', '.join(offline)}; restart the broker with all of its directories"
                )
        if held is None:
            online = [each for each in self._held if each.writer is not None and each.failure is None]
            if not online:
                raise StorageError(
                    "all log directories of this broker have failed; repair a directory, then restart the broker"
                )
            held = least_loaded(online, added)
        if held.failure is not None:
            raise StorageError(f"{partition} is offline: {held.failure.message}")
        assert held.writer is not None
        assert held.space is not None
        if held.space.is_full and not held.writer.directory.holds(partition):
            raise held.space.full_error()
        return held

    def anew(self, partition: TopicPartition, topic_id: uuid.UUID) -> uuid.UUID | None:
        """The directory in which a lost log would be created again, empty; None if the log is not lost, or if it may
        return. The log is lost if its recorded directory no longer belongs to this broker (a replaced disk). The log is
        also lost if its directory is LOST, all directories are online, and no directory has the log."""
        if partition in self.refused or partition in self.withheld or partition in self.at:
            return None
        if any(each.failure is not None or each.writer is None for each in self._held):
            return None
        on_record = self._assigned(partition, topic_id)
        if on_record in (None, UNASSIGNED) or any(each.directory_id == on_record for each in self._held):
            return None
        return least_loaded(self._held, {}).directory_id

    def _on_record(self, partition: TopicPartition, topic_id: uuid.UUID) -> HeldDirectory | None:
        directory_id = self._assigned(partition, topic_id)
        if directory_id is None or directory_id in (UNASSIGNED, LOST):
            return None
        for held in self._held:
            if held.directory_id == directory_id:
                return held
        raise StorageError(
            f"{partition} is in log directory {id_to_text(directory_id.bytes)}, which this broker cannot read (it "
            f"has {', '.join(held.root for held in self._held)}): bring the directory back and restart the "
            "broker, or delete the topic and lose its records"
        )
