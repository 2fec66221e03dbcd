"""A second, independent answer to "which uses are unordered": search the whole graph of a program.

A program is a list of `Op`. The graph has a vertex for each command, each user event and each moment of the host (one
before each op, one at the end), and "happens before" is a path. Nothing is pruned, nothing is incremental, and bytes
are sets of integers. `random_program` makes programs that a host can run to the end.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations

from clmemlife._journal import Access, Command, HostWait, UserEventSet
from clmemlife.diagnostics.hazards import Checker

COMMANDS = ("kernel", "map", "unmap", "marker", "barrier")
SIDE = 4  # an image of the programs has 4 x 4 pixels of one byte
Vertex = tuple[str, int]


@dataclass(frozen=True)
class Use:
    obj: int
    start: int
    stop: int
    reads: bool
    writes: bool
    box: tuple[int, int, int, int] | None = None  # x, y, width, height


@dataclass(frozen=True)
class Op:
    kind: str  # one of COMMANDS, or "wait", "finish", "set"
    queue: int = 0
    uses: tuple[Use, ...] = ()
    waits: tuple[int, ...] = ()  # numbers of ops
    gates: tuple[int, ...] = ()  # numbers of user events
    blocking: bool = False
    of: int = -1  # of an unmap: the op that mapped


@dataclass(frozen=True)
class Program:
    out_of_order: tuple[bool, ...]
    ops: tuple[Op, ...]


class Graph:
    """Every edge of a program, and what can be reached over them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.preds: dict[Vertex, list[Vertex]] = {("host", 0): []}
        self.set_at: dict[int, int] = {}
        for number, op in enumerate(program.ops):
            self._add(number, op)
        end = len(program.ops)
        for op in program.ops:
            for gate in op.gates:
                if gate not in self.set_at:
                    self.set_at[gate] = end
                    self.preds["user", gate] = [("host", end)]
        self._behind: dict[Vertex, set[Vertex]] = {}

    def _add(self, number: int, op: Op) -> None:
        now: Vertex = ("host", number)
        then = self.preds["host", number + 1] = [now]
        if op.kind in COMMANDS:
            preds = self.preds["command", number] = [now]
            preds += [("command", other) for other in self._by_queue(number, op)]
            preds += [("command", other) for other in op.waits]
            preds += [("user", gate) for gate in op.gates]
            if op.kind == "unmap":
                preds.append(("command", op.of))
            if op.blocking:
                then.append(("command", number))
        elif op.kind == "wait":
            then += [("command", other) for other in op.waits]
        elif op.kind == "finish":
            then += [("command", other) for other in self._in_queue(number, op.queue)]
        elif op.kind == "set":
            self.preds["user", op.gates[0]] = [now]
            self.set_at[op.gates[0]] = number

    def _in_queue(self, number: int, queue: int) -> list[int]:
        ops = self.program.ops[:number]
        return [other for other, op in enumerate(ops) if op.kind in COMMANDS and op.queue == queue]

    def _by_queue(self, number: int, op: Op) -> list[int]:
        earlier = self._in_queue(number, op.queue)
        bare = op.kind in ("marker", "barrier") and not op.waits and not op.gates
        if bare or not self.program.out_of_order[op.queue]:
            return earlier
        return [other for other in earlier if self.program.ops[other].kind == "barrier"]

    def behind(self, vertex: Vertex) -> set[Vertex]:
        """Return all that happens before a vertex."""
        if vertex not in self._behind:
            seen: set[Vertex] = set()
            stack = [vertex]
            while stack:
                for pred in self.preds[stack.pop()]:
                    if pred not in seen:
                        seen.add(pred)
                        stack.append(pred)
            self._behind[vertex] = seen
        return self._behind[vertex]

    def before(self, one: int, other: int) -> bool:
        return ("command", one) in self.behind(("command", other))

    def time(self, number: int) -> tuple[int, int]:
        """Return when a command is judged: when it is enqueued, or the last user event that it hangs on is set."""
        gates = [gate for kind, gate in self.behind(("command", number)) if kind == "user"]
        return max([number, *(self.set_at[gate] for gate in gates)]), number


def share(one: Use, other: Use) -> set[int]:
    """Return the bytes of one object that two uses share, as the contract counts boxes."""
    if one.obj != other.obj:
        return set()
    if one.box is not None and other.box is not None:
        return _pixels(one.box) & _pixels(other.box)
    return set(range(one.start, one.stop)) & set(range(other.start, other.stop))


def _pixels(box: tuple[int, int, int, int]) -> set[int]:
    x, y, width, height = box
    return {row * SIDE + column for row in range(y, y + height) for column in range(x, x + width)}


Pair = tuple[int, int, int]  # the earlier op, the later op, the object; a mapping is the op that mapped


def hazards(program: Program) -> tuple[set[Pair], set[Pair]]:
    """Return every unordered collision, and those that stay if one that another stands for is left out.

    A stands for B at a byte if it was judged after B, happens after it, uses the byte too, and writes unless B only
    reads: then whoever collides with B there collides with A, and is ordered behind B as soon as it is behind A.
    """
    graph = Graph(program)
    ends = {op.of: number for number, op in enumerate(program.ops) if op.kind == "unmap"}
    owners = [number for number, op in enumerate(program.ops) if op.kind in ("kernel", "map")]
    touches = [(number, use) for number in (*owners, *ends.values()) for use in program.ops[number].uses]
    time = {number: graph.time(number) for number in (*owners, *ends.values())}

    def over(one: int, other: int) -> bool:
        """Return whether all of `one`, with what its map began, happens before `other`."""
        if program.ops[one].kind == "map":
            return one in ends and graph.before(ends[one], other)
        return graph.before(one, other)

    def stands(b: int, use: Use, z: int, byte: int) -> bool:
        last = b
        if program.ops[b].kind == "map":
            if b not in ends or time[ends[b]] > time[z]:
                return False
            last = ends[b]
        return any(
            time[last] < time[a] < time[z]
            and a_use.obj == use.obj
            and a_use.start <= byte < a_use.stop
            and (a_use.writes or not use.writes)
            and graph.before(last, a)
            for a, a_use in touches
        )

    every: set[Pair] = set()
    bare: set[Pair] = set()
    for one, other in combinations(owners, 2):
        if over(one, other) or over(other, one):
            continue
        b, z = sorted((one, other), key=time.__getitem__)
        for b_use in program.ops[b].uses:
            for z_use in program.ops[z].uses:
                shared = share(b_use, z_use) if b_use.writes or z_use.writes else set()
                if shared:
                    every.add((one, other, b_use.obj))
                    if not all(stands(b, b_use, z, byte) for byte in shared):
                        bare.add((one, other, b_use.obj))
    return every, bare


def check(program: Program, checker: Checker) -> set[Pair]:
    """Publish a program to a checker in mode "record"; return its findings as pairs."""
    events = [f"event {number}" for number in range(len(program.ops))]
    users = [f"user event {number}" for number in range(len(program.ops))]
    opened: set[int] = set()
    for number, op in enumerate(program.ops):
        site = f"program.py:{number}"
        if op.kind == "wait":
            checker.host(HostWait(events=tuple(events[other] for other in op.waits), site=site))
        elif op.kind == "finish":
            checker.host(HostWait(queue=op.queue, site=site))
        elif op.kind == "set":
            checker.host(UserEventSet(users[op.gates[0]]))
            opened.add(op.gates[0])
        else:
            gates = tuple(users[gate] for gate in op.gates if gate not in opened)
            command = Command(
                op.kind if op.kind in COMMANDS[1:] else "enqueue_kernel",
                op.queue,
                out_of_order=program.out_of_order[op.queue],
                accesses=tuple(_access(use) for use in op.uses),
                waits=(*(events[other] for other in op.waits), *(users[gate] for gate in op.gates)),
                gates=gates,
                site=site,
                blocking=op.blocking,
                mapping={"map": number, "unmap": op.of}.get(op.kind),
            )
            checker.before(command)
            command.event = events[number]
            checker.after(command)
    checker.close()
    pairs = set()
    for finding in checker.findings:
        first, second = (int(party.site.split(":")[1]) for party in (finding.first, finding.second))
        assert first < second, finding
        ends = [program.ops[end].of if program.ops[end].kind == "unmap" else end for end in (first, second)]
        pairs.add((min(ends), max(ends), int(str(finding.label))))
    return pairs


def _access(use: Use) -> Access:
    box = None
    if use.box is not None:
        x, y, width, height = use.box
        box = ((x, y, 0), (width, height, 1))
    return Access(use.obj, use.start, use.stop, use.reads, use.writes, box, label=str(use.obj), size=SIDE * SIDE)


def random_program(seed: int, *, boxes: bool = False) -> Program:
    """Make a program of up to 40 ops on 4 queues and 4 objects in which no wait of the host hangs."""
    rng = random.Random(seed)
    out_of_order = tuple(rng.random() < 0.5 for _ in range(4))
    length = rng.randint(2, 40)
    chatty = rng.choice((0.1, 0.5, 0.9))  # how many commands have a wait-list
    gated = rng.choice((0.0, 0.05, 0.2))
    careful = rng.choice((0.0, 0.9, 0.98))  # how likely a collision with an earlier use is waited for
    ops: list[Op] = []
    unset: set[int] = set()
    users = 0
    mapped: list[int] = []
    while len(ops) < length:
        number = len(ops)
        hanging = _hanging(Program(out_of_order, tuple(ops)), unset) if unset else set()
        commands = [other for other, op in enumerate(ops) if op.kind in COMMANDS]
        waits: tuple[int, ...] = ()
        if commands and rng.random() < chatty:
            waits = tuple(rng.sample(commands, min(len(commands), rng.choice((1, 1, 2, 3)))))
        queue = rng.randrange(4)
        what = rng.choices(
            ("kernel", "map", "unmap", "marker", "barrier", "wait", "finish", "set"), (60, 8, 14, 5, 5, 6, 2, 8)
        )[0]
        if what == "set":
            if unset:
                gate = rng.choice(sorted(unset))
                unset.remove(gate)
                ops.append(Op("set", gates=(gate,)))
        elif what == "wait":
            ready = [other for other in commands if other not in hanging]
            if ready:
                ops.append(Op("wait", waits=tuple(rng.sample(ready, min(len(ready), rng.choice((1, 1, 2)))))))
        elif what == "finish":
            if not any(ops[other].queue == queue for other in hanging):
                ops.append(Op("finish", queue))
        elif what != "unmap" or mapped:
            gates: tuple[int, ...] = ()
            if rng.random() < gated:
                if unset and rng.random() < 0.5:
                    gates = (rng.choice(sorted(unset)),)
                else:
                    gates, users = (users,), users + 1
                    unset.add(gates[0])
            uses: tuple[Use, ...] = ()
            of = -1
            if what == "unmap":
                of = mapped.pop(rng.randrange(len(mapped)))
                uses = ops[of].uses
            elif what == "map":
                mapped.append(number)
                uses = (_use(rng, boxes),)
            elif what == "kernel":
                uses = tuple(_use(rng, boxes) for _ in range(rng.choice((1, 1, 2, 3))))
            if rng.random() < 0.9 or not careful:
                waits += tuple(sorted({end for end in _collisions(ops, uses) if rng.random() < careful} - {*waits}))
            op = Op(what, queue, uses, waits, gates, False, of)
            if rng.random() < 0.06:
                trial = Program(out_of_order, (*ops, op))
                if number not in _hanging(trial, unset):
                    op = Op(what, queue, uses, waits, gates, True, of)
            ops.append(op)
    return Program(out_of_order, tuple(ops))


def _collisions(ops: list[Op], uses: tuple[Use, ...]) -> list[int]:
    """Return what must be waited for before such uses: commands, and the unmaps of maps."""
    ends = {op.of: number for number, op in enumerate(ops) if op.kind == "unmap"}
    return [
        ends.get(number, number)
        for number, op in enumerate(ops)
        if op.kind in ("kernel", "map")
        and any(share(one, other) and (one.writes or other.writes) for one in op.uses for other in uses)
    ]


def _hanging(program: Program, unset: set[int]) -> set[int]:
    graph = Graph(program)
    commands = [number for number, op in enumerate(program.ops) if op.kind in COMMANDS]
    return {number for number in commands if any(("user", gate) in graph.behind(("command", number)) for gate in unset)}


def _use(rng: random.Random, boxes: bool) -> Use:
    obj = rng.randrange(4)
    reads, writes = rng.choice(((True, False), (True, False), (False, True), (True, True)))
    if boxes and obj >= 2 and rng.random() < 0.8:
        x, y = rng.randrange(SIDE), rng.randrange(SIDE)
        width, height = rng.randint(1, SIDE - x), rng.randint(1, SIDE - y)
        return Use(obj, y * SIDE + x, (y + height - 1) * SIDE + x + width, reads, writes, (x, y, width, height))
    if rng.random() < 0.3:
        return Use(obj, 0, SIDE * SIDE, reads, writes)
    start = rng.randrange(SIDE * SIDE)
    return Use(obj, start, rng.randint(start + 1, SIDE * SIDE), reads, writes)
