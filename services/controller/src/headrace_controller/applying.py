"""What is committed becomes the image that everybody is shown.

Two ways lead there. A leader decided it itself, and the core holds the images already (``commit``). All else comes from
the log on the disk, decided by others or in an earlier life of this node
(``replay``), or from a snapshot (``replace``).
"""

from __future__ import annotations

from collections.abc import Callable

from headrace_core.errors import (
    CorruptLogError,
    CorruptMessageError,
    InconsistentClusterIdError,
    InvalidRecordError,
    UnsupportedVersionError,
)
from headrace_core.metadata import METADATA_VERSION, ImageBuilder, MetadataDelta, MetadataImage
from headrace_core.metadata.codec import decode_batches
from headrace_core.telemetry import Emitter

from .broker_events import events_of
from .cluster.core import ClusterCore
from .storage import MetadataStorage

#: Told of each committed change, in order.
Subscriber = Callable[[MetadataImage, MetadataDelta], None]

#: What is replayed in one go, so that a turn stays short: about this many bytes of the log.
_REPLAY_BYTES = 1 << 18


class Applier:
    """See the module. ``image`` is the committed state, with everything below ``applied``."""

    def __init__(self, core: ClusterCore, storage: MetadataStorage, cluster_id: str, emitter: Emitter) -> None:
        self._core = core
        self._storage = storage
        self._cluster_id = cluster_id
        self._emitter = emitter
        self._subscribers: tuple[Subscriber, ...] = ()
        self.image = core.committed

    @property
    def applied(self) -> int:
        """Everything of the log below is in the image."""
        return self._core.committed.next_offset

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each committed image from now on; returns what ends the subscription."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

        return unsubscribe

    def commit(self, offset: int) -> None:
        """Of a leader: what it decided is committed below ``offset``."""
        for image, delta in self._core.commit(offset):
            before = self.image
            self._publish(image, delta)
            for event in events_of(delta, before, image):
                self._emitter.emit(event)

    def replay(self, offset: int, *, at_once: bool = False) -> None:
        """The log is committed below ``offset``, and on this disk: apply some of what is missing, or all of it
        ``at_once``. CorruptLogError: what this disk holds is damaged. UnsupportedVersionError,
        InconsistentClusterIdError: it is not for this process."""
        position = self.applied
        if position >= offset:
            return
        builder, epoch = ImageBuilder(self._core.committed), -1
        while position < offset:
            data, following = self._storage.read(position, offset, _REPLAY_BYTES)
            if following <= position:
                raise CorruptLogError(
                    f"the metadata log on this disk ends at {position}, but it was committed up to {offset}"
                )
            try:
                for batch in decode_batches(data):
                    for record in batch.records:
                        builder.replay(record)
                    epoch = batch.epoch
            except (CorruptMessageError, InvalidRecordError) as error:
                raise CorruptLogError(
                    f"the metadata log is damaged behind offset {position}: {error.message}"
                ) from error
            position = following
            if not at_once:
                break
        image, delta = builder.finish(position, epoch)
        self._core.replay(image)
        self._publish(image, delta)

    def replace(self, image: MetadataImage) -> None:
        """``image`` comes from a snapshot, which stands in place of everything before it."""
        before = self.image
        self._core.replay(image)
        self._publish(image, MetadataDelta.between(before, image))

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if image.cluster_id != self._cluster_id and image.cluster_id:
            raise InconsistentClusterIdError(
                f"the metadata log belongs to cluster {image.cluster_id}, but meta.properties says {self._cluster_id}"
            )
        if image.metadata_version > METADATA_VERSION:
            raise UnsupportedVersionError(
                f"the metadata log has feature level {image.metadata_version}, this version knows {METADATA_VERSION}"
            )
        self.image = image
        for subscriber in self._subscribers:
            subscriber(image, delta)
