"""The state of a transactional producer and its legal calls (KIP-98, KIP-890, KIP-939, KIP-1050). Pure.

    state        left by                                              next state
    NEW          the coordinator assigns an identity                  READY, or PREPARED (keep_prepared)
    READY        begin                                                OPEN
    OPEN         commit, prepare: no more sends                       SEALED
    SEALED       every record is acknowledged                         COMMITTING, PREPARING; READY if nothing was sent
    OPEN, SEALED a record or offsets fail                             FAILED
    COMMITTING   the coordinator answers                              READY, or FAILED (it had aborted the transaction)
    PREPARING    the coordinator answers                              PREPARED, or FAILED
    PREPARED     complete                                             COMMITTING, ABORTING
    any of OPEN, SEALED, FAILED, PREPARING: abort                     ABORTING; READY if nothing was sent
    ABORTING     the coordinator answers                              READY
    any          an error that ends the producer                      DEAD

If the answer to a call is lost, the state stays COMMITTING, ABORTING or PREPARING, and the same call is legal again.
The coordinator recognizes a repeated request by the producer's identity.

**Interrupted calls** (a timeout, Ctrl-C; see ``Transactions.interruption``). An answer that arrives after its call was
interrupted counts as lost: PREPARED becomes PREPARING again, and READY or PREPARED after an init becomes NEW. After an
interrupted begin, commit or abort the same end is legal once more, and does nothing if it has taken effect; a begin is
legal in COMMITTING, and finishes the commit first.

**Identities.** Under transaction version 2 (KIP-890), the coordinator's response to a commit or an abort contains the
identity for the next transaction. A transaction in which nothing was sent ends without the coordinator and keeps its
identity.

**Errors** have the kinds of KIP-1050. *Retriable*: the SDK repeats the request. *Abortable*: the transaction cannot be
committed, and the producer may begin the next transaction after an abort. *Fatal*: another producer has the
transactional id, or the cluster refuses this producer; the program makes a new producer. *Misuse*: IllegalStateError
names a call that is allowed. When the cluster refuses a record, offsets or a prepare, the cause may be another
producer, or a timeout that aborted the transaction. The refusal itself is therefore never fatal: the program aborts,
and the coordinator's answer to the abort shows the cause.
"""

from __future__ import annotations

from enum import Enum

from headrace_core.errors import HeadraceError, IllegalStateError, TransactionAbortableError

from ..models import TransactionToken
from .sequences import Identity


class State(Enum):
    NEW = "the producer has no identity yet"
    READY = "no transaction is open"
    OPEN = "a transaction is open"
    SEALED = "the transaction takes no more records"
    FAILED = "a record or the offsets of the transaction failed"
    COMMITTING = "the commit has no answer yet"
    ABORTING = "the abort has no answer yet"
    PREPARING = "the prepare has no answer yet"
    PREPARED = "the transaction is prepared and undecided"
    DEAD = "the producer has ended"


class Call(Enum):
    """The producer's methods for transactions, as text for messages."""

    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    SEND = "send()"
    SEND_OFFSETS = "send_offsets()"
    COMMIT = "commit_transaction()"
    PREPARE = "prepare()"
    ABORT = "abort_transaction()"
    COMPLETE = "complete()"


#: Maps each state of a transactional producer to the calls that a program may make. A program may also call
#: ``begin_transaction`` in the state ABORTING: the producer then finishes the abort first.
CALLS: dict[State, tuple[Call, ...]] = {
    State.NEW: (Call.INIT, Call.BEGIN),
    State.READY: (Call.BEGIN,),
    State.OPEN: (Call.SEND, Call.SEND_OFFSETS, Call.COMMIT, Call.PREPARE, Call.ABORT),
    State.SEALED: (Call.COMMIT, Call.PREPARE, Call.ABORT),
    State.FAILED: (Call.ABORT,),
    State.COMMITTING: (Call.COMMIT, Call.COMPLETE),
    State.ABORTING: (Call.ABORT, Call.BEGIN, Call.COMPLETE),
    State.PREPARING: (Call.PREPARE, Call.ABORT),
    State.PREPARED: (Call.COMPLETE,),
    State.DEAD: (),
}

#: Maps each state of a transactional producer to the states that may follow.
NEXT: dict[State, tuple[State, ...]] = {
    State.NEW: (State.READY, State.PREPARED, State.DEAD),
    State.READY: (State.OPEN, State.NEW, State.DEAD),
    State.OPEN: (State.SEALED, State.FAILED, State.ABORTING, State.READY, State.DEAD),
    State.SEALED: (State.COMMITTING, State.PREPARING, State.FAILED, State.ABORTING, State.READY, State.DEAD),
    State.FAILED: (State.ABORTING, State.READY, State.DEAD),
    State.COMMITTING: (State.READY, State.FAILED, State.DEAD),
    State.ABORTING: (State.READY, State.DEAD),
    State.PREPARING: (State.PREPARED, State.FAILED, State.ABORTING, State.DEAD),
    State.PREPARED: (State.COMMITTING, State.ABORTING, State.PREPARING, State.NEW, State.DEAD),
    State.DEAD: (),
}

_BEGIN = "begin one: `with producer.transaction():`, or begin_transaction()"
_INSTEAD: dict[State, str] = {
    State.NEW: f"no transaction is open; {_BEGIN}",
    State.READY: f"no transaction is open; {_BEGIN}",
    State.OPEN: "a transaction is open; end it first: commit_transaction() or abort_transaction()",
    State.SEALED: (
        "the end of the transaction was interrupted, and it takes no more records; repeat commit_transaction() or "
        "prepare(), or call abort_transaction()"
    ),
    State.FAILED: "a record or the offsets of the transaction failed; call abort_transaction() first",
    State.COMMITTING: (
        "the commit of the transaction has no answer yet, and may have taken effect; repeat commit_transaction(), or "
        "complete() with the same decision"
    ),
    State.ABORTING: "the transaction was aborted; begin the next one with begin_transaction()",
    State.PREPARING: "prepare() has no answer yet; repeat prepare(), or call abort_transaction()",
    State.PREPARED: "the transaction is prepared; complete it first: complete(token, commit=True or False)",
}

#: Error codes that end the producer when the coordinator returns one of them for an init, a commit or an abort.
FATAL = frozenset(
    (
        "PRODUCER_FENCED",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "INVALID_TRANSACTION_TIMEOUT",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "UNSUPPORTED_VERSION",
    )
)


class ProducerTransaction:
    """The transactions of one producer; only one transaction is open at a time. The caller makes the requests, and
    reports their outcomes."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.NEW
        self.identity: Identity | None = None
        #: The token of the prepared transaction; None if no transaction is prepared.
        self.token: TransactionToken | None = None
        #: Whether the coordinator may know the open transaction: the producer must then send the end of the transaction
        #: to the coordinator.
        self.has_sent = False
        self._cause: HeadraceError | None = None
        #: COMMITTING or ABORTING: the decision about the last transaction.
        self._decision: State | None = None
        #: Whether the call that ended (or should have begun) the last transaction was interrupted.
        self._is_interrupted = False

    # --- calls of the program --------------------------------------------------------------------------------------

    def check(self, call: Call) -> None:
        """Raise the error of a call that the state does not allow: IllegalStateError, TransactionAbortableError for a
        failed transaction, or the error that ended the producer."""
        if call in CALLS[self.state] or (self._is_interrupted and self._repeats(call)):
            return
        cause = self._cause
        if self.state is State.DEAD:
            assert cause is not None
            raise type(cause)(
                f"this producer of transactional id {self.transactional_id!r} has ended: {cause.message}; close it, "
                "and make a new producer"
            ) from cause
        if self.state is State.FAILED and call not in (Call.INIT, Call.BEGIN, Call.COMPLETE):
            assert cause is not None
            raise TransactionAbortableError(
                f"the transaction of {self.transactional_id!r} cannot be committed: {cause.code}: {cause.message}; "
                "call abort_transaction(), then repeat the work of the transaction"
            ) from cause
        if self.state is State.OPEN and call is Call.COMPLETE:
            raise IllegalStateError(
                "complete() ends a prepared transaction, and this transaction is not prepared; call prepare() first, "
                "or commit_transaction()"
            )
        raise IllegalStateError(f"{call.value} is not legal now: {_INSTEAD[self.state]}")

    @property
    def has_interrupted_commit(self) -> bool:
        return self._is_interrupted and self.state is State.COMMITTING

    def _repeats(self, call: Call) -> bool:
        """Whether ``call`` is legal because an earlier call was interrupted."""
        if self.state is State.COMMITTING:
            return call is Call.BEGIN
        return self.state in (State.NEW, State.READY) and (call, self._decision) in (
            (Call.COMMIT, State.COMMITTING),
            (Call.ABORT, State.ABORTING),
        )

    def begin(self) -> None:
        self.check(Call.BEGIN)
        self._is_interrupted, self._decision = False, None
        self._to(State.OPEN)

    def seal(self) -> None:
        """Refuse further records: the transaction is about to be committed or prepared."""
        if self.state is State.OPEN:
            self._to(State.SEALED)

    def commits(self) -> bool:
        """Begin to commit the transaction, after all its records are acknowledged. Return whether the coordinator must
        receive a request."""
        self.check(Call.COMMIT)
        return self._decide(State.COMMITTING)

    def aborts(self) -> bool:
        """Begin to abort the transaction. Return whether the coordinator must receive a request."""
        self.check(Call.ABORT)
        return self._decide(State.ABORTING)

    def prepares(self) -> None:
        """Begin to prepare the transaction, after all its records are acknowledged. The producer always sends the
        request to the coordinator, because an empty transaction has a token, too."""
        self.check(Call.PREPARE)
        if self.state is not State.PREPARING:
            self._to(State.PREPARING)
        self.has_sent = True

    def completes(self, token: TransactionToken, *, commit: bool) -> bool:
        """Begin to commit or abort the producer's own prepared transaction. Return False, and change nothing, if
        ``token`` belongs to another transaction: the coordinator of that transaction completes it without this
        producer."""
        if token != self.token:
            return False
        self.check(Call.COMPLETE)
        wanted = State.COMMITTING if commit else State.ABORTING
        if self.state is not State.PREPARED and self.state is not wanted:
            raise IllegalStateError(
                f"complete(token, commit={commit}) contradicts the earlier decision, which has no answer yet and may "
                f"have taken effect; repeat complete(token, commit={not commit})"
            )
        return self._decide(wanted)

    # --- events ----------------------------------------------------------------------------------------------------

    def initialized(self, identity: Identity, prepared: TransactionToken | None = None) -> None:
        """The coordinator assigned ``identity``. ``prepared``: the transaction that keep_prepared left open."""
        self.identity, self.token = identity, prepared
        self.has_sent = prepared is not None
        self._to(State.READY if prepared is None else State.PREPARED)

    def sent(self) -> None:
        """Called before a record of the transaction is sent to its partition's leader, or offsets to their group's
        coordinator."""
        self.has_sent = True

    def record_failed(self, error: HeadraceError) -> bool:
        """Called when a record or offsets of the open transaction failed permanently. Return whether this failure is
        the first failure, which fails the transaction."""
        if self.state not in (State.OPEN, State.SEALED):
            return False
        self._cause = error
        self._to(State.FAILED)
        return True

    def ended(self, identity: Identity) -> None:
        """The coordinator committed or aborted the transaction; ``identity`` is for the next transaction."""
        self.identity, self.token, self._cause = identity, None, None
        self.has_sent = False
        self._to(State.READY)

    def prepared(self, token: TransactionToken) -> None:
        self.token = token
        self._to(State.PREPARED)

    def interrupted(self, call: Call, *, has_ended: bool) -> None:
        """The program no longer waits for ``call``. ``has_ended``: the call has ended well, and its result is lost."""
        if call is Call.PREPARE:
            if has_ended and self.state is State.PREPARED:
                self._to(State.PREPARING)
        elif call is Call.INIT:
            if has_ended and self.state in (State.READY, State.PREPARED):
                self.identity = self.token = None
                self._to(State.NEW)
        elif call is not Call.BEGIN or self.state in (State.NEW, State.READY, State.COMMITTING):
            self._is_interrupted = True
            if call is Call.BEGIN and self.state is not State.COMMITTING:
                self._decision = State.ABORTING

    def refused(self, error: HeadraceError) -> None:
        """The coordinator refused a request, or the answer to the request is lost. While a commit has no answer, only
        TRANSACTION_ABORTABLE says that the transaction is certainly not committed."""
        if self.state is State.PREPARING:
            may_fail = not error.retriable
        elif error.code in FATAL:
            self._cause = error
            self._to(State.DEAD)
            return
        else:
            may_fail = error.code == TransactionAbortableError.code and self.state is State.COMMITTING
        if may_fail:
            self._cause = error
            self._to(State.FAILED)

    # ---------------------------------------------------------------------------------------------------------------

    def _decide(self, state: State) -> bool:
        self._is_interrupted = False
        if self.state is state:
            return True
        if self.state in (State.NEW, State.READY):  # the repetition of an interrupted call
            return False
        self._decision = state
        if self.has_sent:
            self._to(state)
            return True
        self._cause = None
        self._to(State.READY)
        return False

    def _to(self, state: State) -> None:
        assert state in NEXT[self.state], f"{self.state.name} to {state.name}"
        self.state = state
