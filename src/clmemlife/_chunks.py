"""One pass of chunks through devices: the order of their commands, and of their results."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyopencl as cl

from . import _opencl, _waitlist
from ._handle import MemHandle
from ._migration import Migration
from ._pieces import FilePart, as_array, fill
from ._slots import Flight, Lane, Launch, Slot
from ._staging import Staging, staging, transfer
from ._submit import target
from .exceptions import DependencyError, status_name

Array = np.ndarray[Any, Any]


class Run:
    """One pass of chunks through the devices; it knows nothing of who iterates, so that dropping that ends it.

    Attributes
    ----------
    failed : tuple of int and str, or None
        Which chunk ended it, and in which step.
    """

    def __init__(
        self, source: Iterator[Any], launch: Launch, lanes: list[Lane], chunk_bytes: int | None,
        output_bytes: int | None, output_dtype: Any, *, in_place: bool, by_load: bool,
    ) -> None:  # fmt: skip
        self.failed: tuple[int, str] | None = None
        self.lanes, self.in_place, self.by_load = lanes, in_place, by_load
        self.chunk_bytes, self.output_bytes, self.output_dtype = chunk_bytes, output_bytes, output_dtype
        self._source, self._launch = source, launch
        self._window = sum(len(lane.slots) for lane in lanes)
        self._step = ""
        self._begun: Flight | None = None
        self._flying: deque[Flight] = deque()
        self._pool: Staging | None = None
        self._owned = ExitStack()

    def open(self) -> None:
        """Make the memory now, if its size is known."""
        if self._pool is None and self.chunk_bytes is not None:
            self._allocate(None)

    def close(self) -> None:
        """Give everything back, once."""
        self._owned.close()

    def results(self) -> Generator[Array, None, None]:
        """Start chunks as places come free, and yield the results in order."""
        numbers = itertools.count()
        problems: list[Exception] = []
        taken = 0
        with self._owned:
            more = self._start(numbers, problems)
            while self._flying:
                result = self._finish(self._flying[0], taken)
                self._flying.popleft()
                taken += 1
                more = more and self._start(numbers, problems)
                yield result
                del result
        if problems:
            raise problems.pop()

    def _start(self, numbers: Iterator[int], problems: list[Exception]) -> bool:
        """Start as many chunks as there are places; return whether there may be more."""
        while len(self._flying) < self._window:
            number = next(numbers)
            self._step = "producer"
            self._begun = None
            try:
                if not self._begin(number):
                    return False
            except Exception as problem:
                error: Exception = problem
                if isinstance(problem, DependencyError) and (found := self._failure(self._begun, number)):
                    self._step, error = found
                    error.__cause__ = problem
                self._blame(number, self._step, error)
                problems.append(error)
                return False
        return True

    @staticmethod
    def _failure(flight: Flight | None, number: int) -> tuple[str, DependencyError] | None:
        """Return the first step of a chunk that has failed, and the error that says so."""
        for step, events in () if flight is None else flight.steps.items():
            for event in events:
                if (status := event.command_execution_status) < 0:
                    what = f"the {step} of chunk {number} failed with {status_name(status)} ({status})"
                    return step, DependencyError(event, status, what)
        return None

    def _blame(self, number: int, step: str, error: Exception) -> None:
        self.failed = number, step
        note = f"in chunk {number} of stream_chunks: {step}"
        if hasattr(error, "add_note"):
            error.add_note(note)
        else:  # Python 3.10 shows no notes; whoever looks finds them where later ones keep them
            error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]

    def _begin(self, number: int) -> bool:
        """Take the next chunk and enqueue its commands; return whether there was one."""
        nbytes, place = 0, None
        while not nbytes:
            try:
                chunk = next(self._source)
            except StopIteration:
                return False
            array = None if callable(chunk) else as_array(chunk)
            if self._pool is None:
                self._step = "memory"
                self._allocate(None if array is None else array.nbytes)
                self._step = "producer"
            if array is not None and not array.nbytes:
                self._flying.append(Flight(array.shape, self.output_dtype or array.dtype))
                return True
            place = place or self._place(number)
            if place is None:
                return False  # a chunk that was there before has failed, which is told in its turn
            lane, slot = place
            nbytes = fill(slot._block, array, chunk, self.chunk_bytes)
            if not nbytes and not isinstance(chunk, FilePart):
                return False
        slot.index, slot.input_bytes = number, nbytes
        slot.shape, slot.dtype = ((nbytes,), np.dtype(np.uint8)) if array is None else (array.shape, array.dtype)
        self._enqueue(lane, slot)
        return True

    def _enqueue(self, lane: Lane, slot: Slot) -> None:
        """Enqueue copy-in, kernels and copy-out of the chunk in `slot`."""
        assert self._pool is not None
        flight = self._begun = Flight(slot.shape, slot.dtype)
        before = slot._copied_out
        self._step = "copy in"
        mem, use = slot._into
        use.stop = slot.input_bytes
        # Whoever had the slot is done with it, or it would not be given: its events are complete and known to be good.
        waits = slot._free if slot._copied_in is not None else _waitlist.prepare(lane.copy_in, slot._free)
        copied = transfer(lane.copy_in, mem, use, slot._block, slot.input_bytes, 0, waits, to_device=True)
        slot._copied_in = copied
        flight.steps["copy in"] = [copied]
        if lane.copy_in is not lane.kernels:
            _opencl.flush(lane.copy_in)
        self._step = "launch"
        slot.output_bytes = slot.input_bytes if self.output_bytes is None else self.output_bytes
        room = slot.output_bytes
        ready = (copied,) if self.in_place or before is None else (copied, before)
        returned = self._launch(slot, _waitlist.Ready(lane.kernels, ready))
        slot._free = slot._launched = flight.steps["launch"] = _waitlist.wait_list(returned)
        if not slot._launched:
            raise TypeError("launch must return the event of what it enqueued (with nothing to do, wait_for itself)")
        flight.nbytes = nbytes = operator.index(slot.output_bytes)
        if not 0 <= nbytes <= room:
            raise ValueError(f"slot.output_bytes is {nbytes}, of at most {room}")
        flight.dtype = dtype = slot.dtype if self.output_dtype is None else self.output_dtype
        if nbytes % dtype.itemsize:
            raise ValueError(f"{nbytes} bytes are no whole number of {dtype}")
        if nbytes != slot.input_bytes or dtype != slot.dtype:
            flight.shape = (nbytes // dtype.itemsize,)
        self._step = "copy out"
        if nbytes:
            mem, use = slot._out
            use.stop = nbytes
            waits = _waitlist.prepare(lane.copy_out, slot._launched)
            block = self._pool._lend(nbytes)
            try:
                out = transfer(lane.copy_out, mem, use, block, nbytes, 0, waits, to_device=False)
            except BaseException:
                self._pool._give_back(block)
                raise
            flight.block, flight.steps["copy out"], slot._copied_out = block, [out], out
            if self.in_place:
                slot._free = [out]
        _opencl.flush(lane.copy_out if nbytes else lane.kernels)
        self._flying.append(flight)

    def _finish(self, flight: Flight, number: int) -> Array:
        """Wait for a chunk and return its result."""
        if flight.block is None and not flight.steps:
            return np.empty(flight.shape, flight.dtype)
        try:
            for event in flight.steps["copy out" if flight.block else "launch"]:  # the last one, which fails with any
                event.wait()
        except cl.Error as cause:
            found = self._failure(flight, number)
            if found is None:
                raise
            self._blame(number, *found)
            raise found[1] from cause
        block, flight.block = flight.block, None
        if block is None:
            return np.empty(flight.shape, flight.dtype)
        result: Array = block.array[: flight.nbytes].view(flight.dtype).reshape(flight.shape)
        assert self._pool is not None
        self._pool._give_back(block, flight.steps["copy out"])
        return result

    def _place(self, number: int) -> tuple[Lane, Slot] | None:
        """Return device and slot for a chunk; ``None`` where the chunk that was in it has failed."""
        if not self.by_load:
            turn, which = divmod(number, len(self.lanes))
            slots = self.lanes[which].slots
            return self.lanes[which], slots[turn % len(slots)]
        idle = {lane: [slot for slot in lane.slots if not slot._busy()] for lane in self.lanes}
        lane = max((one for one in self.lanes if idle[one]), key=lambda one: (len(idle[one]), -one.dealt))
        lane.dealt += 1
        slot = idle[lane][0]
        lane.slots.remove(slot)
        lane.slots.append(slot)
        events = _waitlist.wait_list(slot._copied_in, slot._launched, slot._copied_out)
        return None if any(one.command_execution_status < 0 for one in events) else (lane, slot)

    def _allocate(self, first_bytes: int | None) -> None:
        """Make the slots' memory, which `results` gives back."""
        if self.chunk_bytes is None:
            if not first_bytes:
                raise ValueError("stream_chunks needs chunk_bytes=... where the first chunk is no array with elements")
            self.chunk_bytes = first_bytes
        context = self.lanes[0].kernels.context
        self._pool = staging(context)
        self._owned.callback(self._give_back)
        output_bytes = self.chunk_bytes if self.output_bytes is None else self.output_bytes
        make, own = MemHandle.create_buffer, self._owned.enter_context
        for lane in self.lanes:
            for slot in lane.slots:
                slot.input = slot.output = own(make(context, self.chunk_bytes, label="stream input"))
                if not self.in_place and output_bytes:
                    slot.output = own(make(context, output_bytes, label="stream output"))
                slot._into = target(lane.copy_in, slot.input, reads=False, writes=True)
                slot._out = target(lane.copy_out, slot.output, reads=True, writes=False)
                slot._block = self._pool._lend(self.chunk_bytes)
            # Drivers allocate at the first use, and take their time: that is to be now.
            there = Migration(lane.copy_in, [one for slot in lane.slots for one in (slot.input, slot.output)])
            for slot in lane.slots:
                slot._free = [*slot._free, there.event]

    def _give_back(self) -> None:
        """Return the pinned memory; commands that still run keep it from being lent."""
        assert self._pool is not None
        for flight in self._flying:
            if flight.block is not None:
                self._pool._give_back(flight.block, flight.steps["copy out"])
        for slot in (slot for lane in self.lanes for slot in lane.slots):
            if hasattr(slot, "_block"):
                self._pool._give_back(slot._block, _waitlist.wait_list(slot._copied_in))
                del slot._block, slot._into, slot._out
