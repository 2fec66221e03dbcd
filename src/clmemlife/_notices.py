"""Numbers that the driver leaves in pipes, one for each destroyed memory object, and who waits for which.

The driver calls back on whatever thread destroyed the object, maybe while another one holds the interpreter inside
of an OpenCL call, maybe when the interpreter is gone. So the C function that it calls only writes the low 32 bits of
the dead ``cl_mem`` and returns. Two rules keep that sound:

- a stream carries at most as many registrations as it has room for notices, so no writer ever blocks;
- no two registrations on one stream share their 32 bits, so no notice is ambiguous, neither for two live objects nor
  for an address used again before its notice was read.

Where a rule would be broken, another stream is opened. State changes by single atomic steps (``dict.setdefault``,
``dict.pop``), since the collector can run finalizers in here that come back; locks are only tried, or waited for with
a limit.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Protocol

from . import _opencl
from ._runner import GATHER_SECONDS, Starter
from .exceptions import CallError

if sys.platform == "linux":
    import fcntl
    import resource

__all__ = ["Notices", "Waiting"]

_LOW_BITS = 0xFFFFFFFF
_NOTICE_BYTES = 4
_LARGE_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 14
_POLL_SECONDS = 0.005
_READER_PATIENCE_SECONDS = 1.0


class Waiting(Protocol):
    """Who is told that a memory object is gone."""

    def notice(self) -> None:
        """Take note, on any thread; a repetition must be harmless; must not run code of the user."""


def _capacity(write_fd: int, large: bool) -> int:
    if sys.platform == "linux":
        if large:
            # The pipes of all processes of a user share a quota, so this is done only when it is needed.
            with suppress(OSError):  # over pipe-max-size or pipe-user-pages-soft
                fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES)
        # A page that has been read in part gives its room back only when it has been read in full.
        size_bytes = fcntl.fcntl(write_fd, fcntl.F_GETPIPE_SZ) - resource.getpagesize()
        return max(1, size_bytes // _NOTICE_BYTES)
    # macOS falls back to pipes of 4 KiB when it is short of memory; nothing smaller is known elsewhere.
    return 4096 // _NOTICE_BYTES


class _Stream:
    """One pipe and the registrations whose notices come through it.

    Nothing of it is ever closed: a driver may call back after the interpreter is gone.

    Attributes
    ----------
    capacity : int
        As many notices may be unread at once without any writer blocking.
    pending : dict of int to Waiting
        Who waits, by the number that will come.
    pointer : int
        The C ``FILE *`` over the write end.
    read_fd, write_fd : int
        The ends of the pipe, closed on ``exec``; the read end does not block.
    """

    def __init__(self, large: bool) -> None:
        self.read_fd, self.write_fd = os.pipe()
        try:
            self.capacity = _capacity(self.write_fd, large)
            if sys.platform != "win32":
                os.set_blocking(self.read_fd, False)
            self.pointer = _opencl.open_c_stream(self.write_fd)
        except BaseException:
            os.close(self.read_fd)
            os.close(self.write_fd)
            raise
        self.pending: dict[int, Waiting] = {}
        self._reading = threading.Lock()
        self._reader = 0
        self._rest = b""
        self._unread: deque[int] = deque()

    def take(self, low: int, waiting: Waiting) -> bool:
        """Reserve the number `low`; False where it or the room is taken."""
        pending = self.pending
        if len(pending) >= self.capacity or pending.setdefault(low, waiting) is not waiting:
            return False
        if len(pending) > self.capacity:  # several threads took the last place
            del pending[low]
            return False
        return True

    def read(self, timeout_seconds: float) -> int:
        """Pass on what has been written; return how many; 0 where another reader does not let go in time.

        A finalizer that comes in between finds the reader below it, for which it must not wait.
        """
        this = threading.get_ident()
        if self._reader == this or not self._reading.acquire(timeout=timeout_seconds):
            return 0
        try:
            self._reader = this
            found = 0
            size = _READ_BYTES
            while size == _READ_BYTES:  # less is all there was
                data = _opencl.read_pipe(self.read_fd, _READ_BYTES)
                size = len(data)
                data = self._rest + data
                whole = len(data) - len(data) % _NOTICE_BYTES
                self._rest = data[whole:]
                self._unread.extend(memoryview(data[:whole]).cast("I"))
                found += self._pass_on()
            return found
        finally:
            self._reader = 0
            self._reading.release()

    def _pass_on(self) -> int:
        # A KeyboardInterrupt may come between any two steps: then the rest waits in `_unread` for the next reader, and
        # at worst an entry stays pending that is told already, which blocks its number and harms nobody.
        found = 0
        while self._unread:
            low = self._unread[0]
            waiting = self.pending.get(low)
            if waiting is not None:
                found += 1
                waiting.notice()
            self._unread.popleft()
            if waiting is not None:
                del self.pending[low]
        return found


class Notices:
    """All streams of one process, and the daemon thread that reads them, started on first use."""

    def __init__(self) -> None:
        self.streams: list[_Stream] = []
        self._reader = Starter("notices", self._read_forever)
        self._wake: tuple[int, int] | None = None

    def register(self, int_ptr: int, waiting: Waiting) -> None:
        """Have ``waiting.notice()`` called when the driver has destroyed a memory object, which lives now.

        Raises
        ------
        CallError
            The driver refused; nothing is registered.
        OSError
            Another pipe was needed and could not be opened; nothing is registered.
        """
        self._reader.start()
        low = int_ptr & _LOW_BITS
        stream = self._reserve(low, waiting)
        try:
            _opencl.set_destructor_callback(int_ptr, stream.pointer)
        except CallError:
            # After any other exception the driver may have it: then the place stays taken.
            del stream.pending[low]
            raise

    def read(self, timeout_seconds: float = 0.0) -> int:
        """Pass on what has been written; return how many.

        With a timeout, it waits for other readers, so that what they have read is passed on when it returns.
        """
        return sum([stream.read(timeout_seconds) for stream in self.streams if timeout_seconds or stream.pending])

    def outstanding(self) -> int:
        """Return how many registrations wait for their notice."""
        return sum([len(stream.pending) for stream in self.streams])

    def stop(self, deadline: float) -> None:
        """End the reader; `read` goes on to work, and the driver may go on to write."""
        self._reader.enabled = False
        self._wake_reader()
        self._reader.join(deadline)

    def disarm_in_child(self) -> None:
        """In a forked child: neither read the parent's notices nor write any.

        The child's copy of the driver may still use the C streams, so the numbers of their descriptors stay taken:
        they become copies of the read ends, and writing to those fails with ``EBADF``.
        """
        self._reader.enabled = False
        for stream in self.streams:
            os.dup2(stream.read_fd, stream.write_fd, inheritable=False)

    def _reserve(self, low: int, waiting: Waiting) -> _Stream:
        for _ in range(2):
            for stream in reversed(self.streams):
                if stream.take(low, waiting):
                    return stream
            self.read()
        # A pipe of the system's own size does for most programs.
        full = any([len(stream.pending) >= stream.capacity for stream in self.streams])
        stream = _Stream(large=full)
        stream.take(low, waiting)
        self.streams.append(stream)
        self._wake_reader()
        return stream

    def _wake_reader(self) -> None:
        if self._wake is not None:
            with suppress(BlockingIOError):  # it has been woken often enough
                os.write(self._wake[1], b"w")

    def _read_forever(self) -> None:
        selector = None
        if sys.platform != "win32":  # there ``select`` takes sockets only
            with suppress(OSError):  # no descriptor is left
                wake = os.pipe()
                for fd in wake:
                    os.set_blocking(fd, False)
                selector = selectors.DefaultSelector()
                selector.register(wake[0], selectors.EVENT_READ)
                self._wake = wake
        known = 0
        while self._reader.enabled:
            if selector is None:
                time.sleep(_POLL_SECONDS)
                self.read(_READER_PATIENCE_SECONDS)
                continue
            while known < len(self.streams):
                stream = self.streams[known]
                selector.register(stream.read_fd, selectors.EVENT_READ, stream)
                known += 1
            ready = selector.select()
            time.sleep(GATHER_SECONDS)
            for key, _ in ready:
                if key.data is None:
                    _opencl.read_pipe(key.fd, _READ_BYTES)
                else:
                    key.data.read(_READER_PATIENCE_SECONDS)
