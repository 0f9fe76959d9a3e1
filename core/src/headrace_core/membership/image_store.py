"""A node's local snapshot of the metadata, so that its next start need not read the whole metadata log.

The snapshot is one file in the root of the node's first log directory: ``00000000000000001234-0000000007.checkpoint``.
The file's name and format are the same as for Kafka's and the controllers' snapshots, but the file has no voters. The
snapshot only shortens the start: if the file is damaged, the node logs a line and reads the metadata from the
controllers. After a start, a node acts only on an image that is at least as new as the metadata at its start.
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
    """Loads and saves the snapshots in ``directory``, which must exist. Any thread may call the methods of an
    ImageStore, one call at a time."""

    def __init__(self, fs: FileSystem, directory: str, cluster_id: str, clock: Clock) -> None:
        self._fs = fs
        self._directory = directory
        self._cluster_id = cluster_id
        self._clock = clock

    def load(self) -> LoadedImage | None:
        """Load the newest undamaged snapshot of the node's cluster; None if there is none. ``load`` never raises,
        because other components report an unreadable disk."""
        for place in sorted(self._places(), reverse=True):
            path = f"{self._directory}/{snapshot_name(*place)}"
            try:
                data = read_file(self._fs, path)
                image, _ = decode_snapshot(data)
            except (HeadraceError, OSError) as error:
                logger.warning("cannot read the saved metadata %s: %s; ignoring this file", path, error)
                continue
            if (image.next_offset, max(image.epoch, 0)) != place or image.cluster_id != self._cluster_id:
                logger.warning(
                    "ignoring the saved metadata %s: its content (offset %d, epoch %d, cluster %s) does not match "
                    "the file's name or this node's cluster",
                    path,
                    image.next_offset,
                    image.epoch,
                    image.cluster_id or "(none)",
                )
                continue
            return LoadedImage(image, path, len(data))
        return None

    def save(self, image: MetadataImage) -> LoadedImage | None:
        """Write a snapshot of ``image`` and remove older snapshots, durably. Returns None, without a write, if the
        directory is not formatted (for example because its disk is not mounted). Raises OSError."""
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
