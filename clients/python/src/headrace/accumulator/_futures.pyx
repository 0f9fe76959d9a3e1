# cython: language_level=3
"""The futures that a send returns; each refers to a batch and to the record's index in the batch. ``_native.pyi`` has
the contract of each class."""

cimport cython

from ._batches cimport SendBatch

import asyncio
import concurrent.futures

from ..arguments import seconds
from . import _watching
from ..callbacks import check_callback, run_callback

cdef extern from *:
    """
    /* A Sent as C sees it, and its step: StopIteration with a value, without the traceback that Cython would add. */
    typedef struct { PyObject_HEAD PyObject *result; } headrace_sent;
    static PyObject *headrace_sent_next(PyObject *self) {
        PyObject *value = ((headrace_sent *)self)->result;
        if (PyTuple_Check(value) || PyExceptionInstance_Check(value)) {  /* as an argument, not as the arguments */
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
            if (stop != NULL) { PyErr_SetObject(PyExc_StopIteration, stop); Py_DECREF(stop); }
        } else {
            PyErr_SetObject(PyExc_StopIteration, value);
        }
        return NULL;
    }
    static void headrace_quicken(PyObject *type) {
        PyTypeObject *sent = (PyTypeObject *)type;
        if (sent->tp_basicsize == sizeof(headrace_sent)) {
            sent->tp_iternext = headrace_sent_next;
            PyType_Modified(sent);
        }
    }
    """
    void quicken "headrace_quicken"(object type)


@cython.final
@cython.no_gc  # a future refers to its batch, but a finished batch refers to no future
@cython.freelist(256)
cdef class RecordFuture:
    """The outcome of one record: poll it, wait for it, or add a callback.

    ``concurrent.futures.wait``, ``as_completed`` and ``asyncio.wrap_future`` accept a RecordFuture as a
    concurrent.futures.Future. A RecordFuture cannot be cancelled.
    """

    def __init__(self, SendBatch batch not None, int index, long long timestamp_ms):
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    @property
    def __class__(self):
        # isinstance() checks the type first, then this attribute. A real subclass of concurrent.futures.Future would
        # halve the speed of a send.
        return concurrent.futures.Future

    def done(self):
        """Whether the outcome of the record is known."""
        return self._batch.done

    def running(self):
        """Whether the outcome of the record is not known yet."""
        return not self._batch.done

    def cancelled(self):
        return False

    def cancel(self):
        """Return False: a queued record cannot be cancelled."""
        return False

    @property
    def _state(self):
        return _watching.state_of(self, self._batch)

    @property
    def _condition(self):
        return _watching.Condition(self, self._batch)

    @property
    def _waiters(self):
        return _watching.Waiters(self, self._batch)

    def __repr__(self):
        return _watching.shown(self._batch, self._index, "RecordFuture")

    def __reduce__(self):
        raise _watching.not_copied("RecordFuture")

    def result(self, timeout=None):
        """Return the record's RecordMetadata; wait up to ``timeout`` seconds for it, then raise TimeoutError. Raises
        the record's error when its delivery failed.
        """
        if not self._batch.done:
            self._wait(timeout)
        if self._batch.error is not None:
            raise self._read()
        return self._batch.metadata(self._index, self._timestamp_ms)

    def exception(self, timeout=None):
        """Return the error of a failed record; None when the record was acknowledged. Waits like result."""
        if not self._batch.done:
            self._wait(timeout)
        return self._read()

    def _read(self):
        """The error of the record, if it failed; the program has read it."""
        if self._batch.error is not None and not self._is_read:
            self._is_read = True
            self._batch.reads += 1
        return self._batch.failure()

    def _failure(self):
        """The error of the record, if it failed, for the SDK."""
        return self._batch.failure()

    def add_done_callback(self, callback):
        """Call ``callback(self)`` on the I/O thread once the outcome is known, or at once if the outcome is known now.
        A callback must be short and must not block; its exceptions are logged."""
        check_callback("callback", callback)
        if not self._batch.add_waiter((self, callback)):
            run_callback(callback, self)

    cdef int _wait(self, timeout) except -1:
        if timeout is not None:
            timeout = seconds(timeout, negative=True)
        if not self._batch.wait(timeout):
            raise TimeoutError(f"no acknowledgement within {timeout:g} s; the producer still sends the record: wait longer")
        return 0


@cython.final
@cython.no_gc  # finishing the batch drops the callbacks, and every batch finishes
@cython.freelist(256)
cdef class AsyncRecordFuture:
    """The outcome of one record for asyncio: await it, or pass it to gather, wait or shield.

    Cancelling the future stops only the wait; the record is sent.
    """

    def __init__(self, SendBatch batch not None, int index, long long timestamp_ms):
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    @property
    def __class__(self):  # (see RecordFuture)
        return asyncio.Future

    def done(self):
        """Whether the record's outcome is known, or the future was cancelled."""
        return self._cancelled or self._batch.done

    def cancelled(self):
        return self._cancelled

    def __repr__(self):
        return _watching.shown(self._batch, self._index, "AsyncRecordFuture")

    def __reduce__(self):
        raise _watching.not_copied("AsyncRecordFuture")

    def result(self):
        """The record's RecordMetadata. Raises the error of a failed record, or InvalidStateError while the outcome is
        unknown."""
        error = self.exception()
        if error is not None:
            raise error
        return self._batch.metadata(self._index, self._timestamp_ms)

    def exception(self):
        """Return the error of a failed record; None when the record was acknowledged."""
        if self._cancelled:
            raise asyncio.CancelledError
        if not self._batch.done:
            raise asyncio.InvalidStateError("the record has no outcome yet: await the future first")
        return self._read()

    def _read(self):
        """The error of the record, if it failed; the program has read it."""
        if self._batch.error is not None and not self._is_read:
            self._is_read = True
            self._batch.reads += 1
        return self._batch.failure()

    def _failure(self):
        """The error of the record, if it failed, for the SDK."""
        return self._batch.failure()

    def get_loop(self):
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def add_done_callback(self, callback, *, context=None):
        """Schedule ``callback(self)`` on the running event loop once the record's outcome is known."""
        loop = self.get_loop()
        if not self._cancelled:
            if self._callbacks is not None:
                self._callbacks.append((callback, context))
                return
            self._callbacks = [(callback, context)]
            if self._batch.add_waiter(self):
                return
            self._callbacks = None
        loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback):
        """Remove all registrations of a callback; return their number."""
        if self._callbacks is None:
            return 0
        kept = [item for item in self._callbacks if item[0] != callback]
        removed = len(self._callbacks) - len(kept)
        self._callbacks = kept
        return removed

    def cancel(self, msg=None):
        """Stop waiting. The producer sends the record in any case."""
        if self._cancelled or self._batch.done:
            return False
        self._cancelled = True
        self.run_callbacks()
        return True

    def run_callbacks(self):
        """Schedule the callbacks. The accumulator calls ``run_callbacks`` on the caller's event loop."""
        callbacks = self._callbacks
        self._callbacks = None
        if callbacks is not None:
            loop = self.get_loop()
            for callback, context in callbacks:
                loop.call_soon(callback, self, context=context)

    def __await__(self):
        cdef Sent sent
        if self._batch.done or self._cancelled:
            sent = <Sent>Sent.__new__(Sent)
            sent._result = self.result()
            return sent
        return self._wait_for_it()

    def __iter__(self):
        return self.__await__()

    def _wait_for_it(self):
        self._asyncio_future_blocking = True
        yield self
        return self.result()


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Sent:
    """An awaitable whose result is known: an asyncio send returns it when no wait is needed."""

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):  # replaced below by a C function that does the same
        raise StopIteration(self._result)

    def send(self, value):
        raise StopIteration(self._result)

    def throw(self, *error):
        raise error[1] if len(error) > 1 and error[1] is not None else error[0]

    def close(self):
        pass


quicken(Sent)
