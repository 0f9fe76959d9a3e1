"""The cluster's metadata: its records, their bytes, the immutable image of what they add up to, and what changed.

Services only: this room needs msgspec, which the SDK does not install. ``codec`` is imported from its own module.
"""

from .delta import MetadataDelta
from .image import (
    EMPTY_IMAGE,
    BrokerImage,
    BrokerLoad,
    ConfigResource,
    ImageBuilder,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from .records import (
    LOST_DIRECTORY,
    METADATA_VERSION,
    UNASSIGNED_DIRECTORY,
    BrokerChangeRecord,
    BrokerEndpoint,
    ClusterRecord,
    ConfigRecord,
    ConfigResourceType,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

__all__ = [
    "EMPTY_IMAGE",
    "LOST_DIRECTORY",
    "METADATA_VERSION",
    "UNASSIGNED_DIRECTORY",
    "BrokerChangeRecord",
    "BrokerEndpoint",
    "BrokerImage",
    "BrokerLoad",
    "ClusterRecord",
    "ConfigRecord",
    "ConfigResource",
    "ConfigResourceType",
    "ImageBuilder",
    "MetadataDelta",
    "MetadataImage",
    "MetadataRecord",
    "PartitionChangeRecord",
    "PartitionImage",
    "PartitionRecord",
    "RegisterBrokerRecord",
    "RemoveTopicRecord",
    "TopicImage",
    "TopicRecord",
]
