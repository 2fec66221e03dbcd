"""How a kernel uses its pointer arguments, as far as the program says so; asked once for each kernel.

``clGetKernelArgInfo`` where the program was built with ``-cl-kernel-arg-info``, else the program's source text.
Text that macros or type names could change is not guessed at: such an argument counts as read and written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyopencl as cl

READ, WRITE, ASSUMED = "read", "write", "assumed"

_ATTRIBUTE, _NAME = "_clmemlife_modes", "_clmemlife_name"
_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DEFINES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)|-D[ \t]*(\w+)", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z_]\w*")
_QUALIFIERS = frozenset(
    """global local constant private const volatile restrict read_only write_only read_write signed unsigned struct
    bool char uchar short ushort int uint long ulong half float double size_t ptrdiff_t intptr_t uintptr_t void
    image1d_t image2d_t image3d_t image1d_buffer_t image1d_array_t image2d_array_t""".split()  # noqa: SIM905
)


def modes(kernel: cl.Kernel) -> tuple[str, ...]:
    """Return for each argument `READ`, `WRITE` or `ASSUMED` (meaningless for those that are no memory objects)."""
    known: tuple[str, ...] | None = getattr(kernel, _ATTRIBUTE, None)
    if known is None:
        count = kernel.num_args
        known = _from_info(kernel, count) or _from_source(kernel, count) or (ASSUMED,) * count
        setattr(kernel, _ATTRIBUTE, known)
    return known


def name_of(kernel: cl.Kernel) -> str:
    """Return the name of a kernel; the driver is asked once."""
    known: str | None = getattr(kernel, _NAME, None)
    if known is None:
        known = kernel.function_name
        setattr(kernel, _NAME, known)
    return known


def _from_info(kernel: cl.Kernel, count: int) -> tuple[str, ...] | None:
    info, access = cl.kernel_arg_info, cl.kernel_arg_access_qualifier
    space, qualifier = cl.kernel_arg_address_qualifier, cl.kernel_arg_type_qualifier
    found = []
    try:
        for index in range(count):
            image = kernel.get_arg_info(index, info.ACCESS_QUALIFIER)
            if image == access.READ_ONLY:
                found.append(READ)
            elif image == access.WRITE_ONLY:
                found.append(WRITE)
            elif kernel.get_arg_info(index, info.ADDRESS_QUALIFIER) == space.CONSTANT or (
                kernel.get_arg_info(index, info.TYPE_QUALIFIER) & qualifier.CONST
            ):
                found.append(READ)
            else:
                found.append(ASSUMED)
    except cl.Error:
        return None
    return tuple(found)


def _from_source(kernel: cl.Kernel, count: int) -> tuple[str, ...] | None:
    try:
        program = kernel.program  # Intel's kernel does not keep it
        source = program.source if hasattr(program, "source") else ""
        options = "".join(program.get_build_info(one, cl.program_build_info.OPTIONS) for one in kernel.context.devices)
    except cl.Error:
        return None
    return modes_from_source(source or "", kernel.function_name, count, options)


def modes_from_source(source: str, name: str, count: int, options: str = "") -> tuple[str, ...] | None:
    """Return the modes that the text of the kernel's parameters proves, or ``None`` where it cannot be found."""
    text = _COMMENTS.sub(" ", re.sub(r"\\\r?\n", "", source))  # in this order, as a compiler does it
    macros = {_plain(one or other) for one, other in _DEFINES.findall(text + "\n" + options)}
    plain = _plain(text)
    attributes = r"(?:[^;{}()]|\(\([^{};]*?\)\))*?"
    heads = list(re.finditer(rf"\bkernel\b{attributes}\b{re.escape(name)}\s*\(", plain))
    if not heads or macros & {name, "const", "kernel"}:
        return None
    results = set()
    for head in heads:
        parameters = list(_parameters(plain, head.end()))
        if len(parameters) != count:
            return None
        results.add(tuple(_mode(one, macros) for one in parameters))
    return results.pop() if len(results) == 1 else None


def _plain(text: str) -> str:
    """Return the text with the underscores of ``__global`` and its kin taken away."""
    return re.sub(r"\b__(?=(?:kernel|global|local|constant|private|read_only|write_only|read_write)\b)", "", text)


def _parameters(text: str, start: int) -> Iterator[str]:
    depth, begin = 1, start
    for position in range(start, len(text)):
        character = text[position]
        depth += (character == "(") - (character == ")")
        if (character == "," and depth == 1) or not depth:
            yield text[begin:position]
            begin = position + 1
        if not depth:
            return


def _mode(parameter: str, macros: set[str]) -> str:
    words = _WORDS.findall(parameter)
    types = words[:-1]
    if macros & set(words) or any(re.sub(r"(?<=[a-z])\d+$", "", word) not in _QUALIFIERS for word in types):
        return ASSUMED
    if any(word.startswith("image") for word in types):
        return WRITE if "write_only" in types else ASSUMED if "read_write" in types else READ
    pointee, star, _ = parameter.rpartition("*")
    if "*" in pointee:
        return ASSUMED
    if star and ("constant" in types or "const" in _WORDS.findall(pointee)):
        return READ
    return ASSUMED
