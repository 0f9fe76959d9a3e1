"""SCRAM credentials of users in the metadata (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace_core.errors import (
    DuplicateResourceError,
    HeadraceError,
    InvalidRequestError,
    PolicyViolationError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
)
from headrace_core.metadata import MetadataImage, MetadataRecord
from headrace_core.metadata.records import RemoveScramCredentialRecord, ScramCredentialRecord
from headrace_core.security.sasl.exchange import USER_CHARS_MAX
from headrace_core.security.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    SCRAM_BY_NUMBER,
    ScramMechanism,
    credential_of,
)

from .decision import Decision, View
from .requests import AlterScramCredentials, ScramDeletion, ScramResult, ScramUpsertion

#: The first level of metadata.version at which the metadata log may have users.
LEVEL = 3
USERS_MAX = 100_000  #: Maximum number of credentials: every node keeps all of them in memory.


def alter(view: View, request: AlterScramCredentials) -> Decision:
    """Returns one ScramResult for each user. If one change of a user is refused, all credentials of the user stay as
    they are."""
    image = view.image
    if image.metadata_version < LEVEL:
        raise UnsupportedVersionError(
            f"users need metadata.version {LEVEL}, but the cluster has {image.metadata_version}; "
            "upgrade all nodes, then run headrace features upgrade"
        )
    changes: list[ScramUpsertion | ScramDeletion] = [*request.upsertions, *request.deletions]
    named = Counter((each.user, each.mechanism) for each in changes)
    records: dict[str, list[MetadataRecord]] = {each.user: [] for each in changes}
    errors: dict[str, HeadraceError] = {}
    count = len(image.security.scram)
    for each in changes:
        if each.user in errors:
            continue
        try:
            if named[each.user, each.mechanism] > 1:
                raise DuplicateResourceError(f"user {each.user[:100]!r}: a mechanism is changed twice in the request")
            record = _upserted(each) if isinstance(each, ScramUpsertion) else _deleted(image, each)
            count += (
                isinstance(record, ScramCredentialRecord) and (each.user, each.mechanism) not in image.security.scram
            )
            if count > USERS_MAX:
                raise PolicyViolationError(
                    f"a cluster can have at most {USERS_MAX} SCRAM credentials; remove credentials first"
                )
            records[each.user].append(record)
        except HeadraceError as error:
            errors[each.user] = error
    written = [record for user, made in records.items() if user not in errors for record in made]
    if len(written) > view.settings.metadata_max_records_per_request:
        raise PolicyViolationError("the request changes too many users; split it into several requests")
    return Decision(tuple(written), tuple(ScramResult(user, errors.get(user)) for user in records))


def _upserted(item: ScramUpsertion) -> ScramCredentialRecord:
    mechanism = _mechanism(item.user, item.mechanism)
    if not 0 < len(item.user) <= USER_CHARS_MAX or not item.user.isprintable():
        raise UnacceptableCredentialError(
            f"user {item.user[:60]!r}: a name has 1 to {USER_CHARS_MAX} printable characters"
        )
    if not ITERATIONS_MIN <= item.iterations <= ITERATIONS_MAX:
        raise UnacceptableCredentialError(
            f"user {item.user[:100]!r}: {item.iterations} iterations; must be {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        )
    if not 0 < len(item.salt) <= SALT_BYTES_MAX:
        raise UnacceptableCredentialError(f"user {item.user[:100]!r}: the salt must have 1 to {SALT_BYTES_MAX} bytes")
    if len(item.salted_password) != mechanism.hash_bytes:
        raise UnacceptableCredentialError(
            f"user {item.user[:100]!r}: the salted password of {mechanism.name} must have {mechanism.hash_bytes} bytes"
        )
    made = credential_of(mechanism, item.salted_password, item.salt, item.iterations)
    return ScramCredentialRecord(
        item.user, item.mechanism, item.salt, made.stored_key, made.server_key, item.iterations
    )


def _deleted(image: MetadataImage, item: ScramDeletion) -> RemoveScramCredentialRecord:
    mechanism = _mechanism(item.user, item.mechanism)
    if (item.user, item.mechanism) not in image.security.scram:
        raise ResourceNotFoundError(f"user {item.user[:100]!r} has no credential for {mechanism.name}")
    return RemoveScramCredentialRecord(item.user, item.mechanism)


def _mechanism(user: str, number: int) -> ScramMechanism:
    mechanism = SCRAM_BY_NUMBER.get(number)
    if mechanism is None:
        raise UnsupportedSaslMechanismError(
            f"user {user[:100]!r}: unknown SCRAM mechanism {number}; use SCRAM-SHA-256 or SCRAM-SHA-512"
        )
    return mechanism


def described(
    image: MetadataImage, users: Sequence[str]
) -> list[tuple[str, HeadraceError | None, list[ScramCredentialRecord]]]:
    """Return the credentials of the named users, or of all users, by name. Raises InvalidRequestError."""
    of_user: dict[str, list[ScramCredentialRecord]] = {}
    for (user, _), record in image.security.scram.items():
        of_user.setdefault(user, []).append(record)
    if not users:
        return [(user, None, records) for user, records in sorted(of_user.items())]
    named = Counter(users)
    if "" in named:
        raise InvalidRequestError("a user's name is empty")
    found: list[tuple[str, HeadraceError | None, list[ScramCredentialRecord]]] = []
    for user, times in named.items():
        error: HeadraceError | None = None
        if times > 1:
            error = DuplicateResourceError(f"user {user[:100]!r} is named more than once in the request")
        elif user not in of_user:
            error = ResourceNotFoundError(f"user {user[:100]!r} has no SCRAM credential")
        found.append((user, error, [] if error else of_user[user]))
    return found
