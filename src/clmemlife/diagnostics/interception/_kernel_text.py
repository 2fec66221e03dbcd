"""What the text of a kernel does with its arguments, where no ``const`` says it: as far as the text leaves no doubt.

An argument that is assigned to through an index or a star is written. One that occurs only so, and never on the left of
an assignment, is read. Anything else (passed on to a function, moved, hidden in a macro) is left open.
"""

from __future__ import annotations

import functools
import re

from ..._kernel_args import _split, plain_text

READS, WRITES, UPDATES, UNCLEAR = "read", "write", "update", "unclear"

_ASSIGNED = r"\s*(?:(?P<plain>=(?!=))|(?P<update>[-+*/%&|^]=|<<=|>>=|\+\+|--))"
_MEMBERS = r"(?:\s*\.\s*\w+|\s*\[[^\[\]]*\])*"
_INDEXED = r"\s*\[(?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*\]"
_ATOMIC = ("atomic_", "atom_")


@functools.lru_cache(maxsize=512)
def uses(source: str, kernel: str) -> tuple[str, ...]:
    """Return for each parameter of a kernel what the text does with it; empty where the kernel is not found once."""
    text = plain_text(source)
    heads = list(re.finditer(rf"\bkernel\b[^;{{}}]*?\b{re.escape(kernel)}\s*\(", text))
    if len(heads) != 1:
        return ()
    names = [(re.findall(r"[A-Za-z_]\w*", one) or [""])[-1] for one in _split(text, heads[0].end())]
    body = _body(text, text.find("{", heads[0].end()))
    macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(.*)$", text, re.MULTILINE)
    called = "|".join(re.findall(r"\w+", one)[0] for one in macros if re.match(r"\w", one))
    hidden = " ".join(map(_free, macros))
    return tuple(_use(name, body, hidden, called) for name in names)


def _free(macro: str) -> str:
    """Return the text of a macro without the names of its own parameters, which stand for what it is called with."""
    called = re.match(r"\w+\(([^()]*)\)", macro)
    if called is None or "##" in macro:
        return macro
    own = "|".join(re.findall(r"\w+", called[1])) or "(?!)"
    return re.sub(rf"\b(?:{own})\b", " ", macro[called.end() :])


def _body(text: str, begin: int) -> str:
    depth = 0
    for place in range(max(begin, 0), len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return text[begin : place + 1]
    return ""


def _use(name: str, body: str, hidden: str, called: str) -> str:
    """Return what a body does with a parameter and with the pointers that are made from it at once.

    `hidden` is what macros stand for, `called` their names.
    """
    if not name or not body:
        return UNCLEAR
    aliases = _declaration(name)
    others = {one[1] for one in aliases.finditer(body)} - {name}
    rest = aliases.sub(";", body)
    found = {_name_use(one, rest) for one in others or (name,)}
    if others:
        found |= {_name_use(name, rest)} - {READS}  # to make another name of it reads nothing
    word = rf"\b(?:{'|'.join(map(re.escape, {name, *others}))})\b"
    given = rf"\b(?:{called})\s*\((?:[^;{{}}()]|\([^;{{}}()]*\)|\()*{word}"
    if re.search(word, hidden) or (called and re.search(given, body)):
        found.add(UNCLEAR)
    if found & {WRITES, UPDATES}:
        return WRITES if found == {WRITES} else UPDATES
    return UNCLEAR if UNCLEAR in found else READS


def _declaration(name: str) -> re.Pattern[str]:
    return re.compile(rf"\*\s*(?:const\s+|restrict\s+)*(\w+)\s*=\s*([^;=]*\b{re.escape(name)}\b[^;=\[\]]*);")


def _call(before: str) -> str:
    """Return the function whose call is open at the end of a text."""
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        depth += (before[place] == ")") - (before[place] == "(")
        if depth < 0:
            name = re.search(r"\w+$", before[:place].rstrip())
            return name[0] if name else ""
        if before[place] in ";{}":
            return ""
    return ""


def _name_use(name: str, rest: str) -> str:
    """Return what happens through one name: reads, plain writes, both, or something that is not clear."""
    reads = writes = updates = unclear = False
    for found in re.finditer(rf"\b{re.escape(name)}\b", rest):
        before, after = rest[: found.start()].rstrip(), rest[found.end() :]
        target = re.match(_INDEXED + _MEMBERS, after) or re.match(r"\s*->\s*\w+" + _MEMBERS, after)
        if re.search(r"[\w\])]\s*\.$|->$", before):  # a member of something else that has the same name
            continue
        if target is None and not (before.endswith("*") and not re.search(r"[\w\])]\s*\*$", before)):
            call = _call(before)
            if call.startswith("vstore"):
                writes = True
            elif call.startswith("vload"):
                reads = True
            elif call.startswith(_ATOMIC):
                updates = True
            else:
                unclear = True
            continue
        if before.endswith("&") and not before.endswith("&&"):
            atomic = _call(before).startswith(_ATOMIC)
            updates, unclear = updates or atomic, unclear or not atomic
            continue
        assigned = re.match(_ASSIGNED, after[target.end() :] if target else after)
        if assigned is None:
            ahead = before.endswith(("++", "--"))
            updates, reads = updates or ahead, reads or not ahead
        elif assigned["plain"]:
            writes = True
        else:
            updates = True
    if updates or (writes and reads):
        return UPDATES
    if writes:
        return UPDATES if unclear else WRITES
    return UNCLEAR if unclear else READS
