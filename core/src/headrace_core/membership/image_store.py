"""An observer's own snapshot of the metadata, which saves its next start the whole history.

One file in the root of its first log directory, in the name and format of Kafka's (and the controllers') snapshots, but
without voters: ``00000000000000001234-0000000007.checkpoint``. It only shortens the start: a damaged one is ignored
with a line in the log, and the metadata is read from the controllers. No node acts on an image older than one that was
current when it started.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ..clock import Clock
from ..errors import HeadraceError
from ..log.checkpoints import META_PROPERTIES
from ..log.files import FileSystem, read_file, write_file_atomically
from ..metadata import MetadataImage
from ..metadata.snapshot import decode_snapshot, encode_snapshot, parse_snapshot_name, snapshot_name

logger = logging.getLogger("headrace.metadata")


class LoadedImage(NamedTuple):
    image: MetadataImage
    path: str
    size_bytes: int


class ImageStore:
    """``directory`` must exist. Every method may be called in any thread, one at a time."""

    def __init__(self, fs: FileSystem, directory: str, cluster_id: str, clock: Clock) -> None:
        self._fs = fs
        self._directory = directory
        self._cluster_id = cluster_id
        self._clock = clock

    def load(self) -> LoadedImage | None:
        """The newest sound one of this cluster, or None. Never raises: others report an unreadable disk."""
        for place in sorted(self._places(), reverse=True):
            path = f"{self._directory}/{snapshot_name(*place)}"
            try:
                data = read_file(self._fs, path)
                image, _ = decode_snapshot(data)
            except (HeadraceError, OSError) as error:
                logger.warning(
                    "ignoring the saved metadata %s, reading it from the controllers instead: %s", path, error
                )
                continue
            if (image.next_offset, max(image.epoch, 0)) != place or image.cluster_id != self._cluster_id:
                logger.warning(
                    "ignoring the saved metadata %s: it is of offset %d, epoch %d and cluster %s, which does not match",
                    path,
                    image.next_offset,
                    image.epoch,
                    image.cluster_id or "(none)",
                )
                continue
            return LoadedImage(image, path, len(data))
        return None

    def save(self, image: MetadataImage) -> LoadedImage | None:
        """Write ``image`` and remove older ones, durably. None: nothing was written, because the directory is not the
        formatted one (as with an unmounted disk). OSError."""
        if not self._fs.exists(f"{self._directory}/{META_PROPERTIES}"):
            return None
        place = (image.next_offset, max(image.epoch, 0))
        path = f"{self._directory}/{snapshot_name(*place)}"
        data = b"".join(encode_snapshot(image, voters=(), timestamp_ms=self._clock.now_ms()))
        write_file_atomically(self._fs, path, data)
        for other in self._places():
            if other != place:
                self._fs.unlink(f"{self._directory}/{snapshot_name(*other)}")
        return LoadedImage(image, path, len(data))

    def _places(self) -> list[tuple[int, int]]:
        try:
            names = self._fs.listdir(self._directory)
        except OSError:
            return []
        return [place for name in names if (place := parse_snapshot_name(name)) is not None]
