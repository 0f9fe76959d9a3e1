"""Users of SCRAM (KIP-554): credentials as the cluster describes and accepts them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class ScramMechanism(enum.Enum):
    """A mechanism of SCRAM."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A credential as the cluster describes it, without its keys."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion:
    """A new password of a user. The client salts the password, and does not send the password itself. ``salt``: random
    by default."""

    user: str
    password: str = field(repr=False)
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
    iterations: int = 4_096
    salt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion:
    """The removal of a user's SCRAM credential."""

    user: str
    mechanism: ScramMechanism
