"""What a kernel's arguments are and how it uses them, as far as the program says so; asked once for each kernel.

``clGetKernelArgInfo`` where the program was built with ``-cl-kernel-arg-info``, else the program's source text.
Text that macros or type names could change is not guessed at: such an argument counts as read and written, and
anything may be passed for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import pyopencl as cl

from ._kernel_types import ASSUMED, READ, WRITE, Parameter, parameter

_ATTRIBUTE, _NAME = "_clmemlife_parameters", "_clmemlife_name"
_COMMENTS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_DEFINES = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)|-D[ \t]*(\w+)", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z_]\w*")
_QUALIFIERS = frozenset(
    "global local constant private const volatile restrict read_only write_only read_write".split()  # noqa: SIM905
)
_KNOWN = _QUALIFIERS | frozenset(
    """signed unsigned struct bool char uchar short ushort int uint long ulong half float double size_t ptrdiff_t
    intptr_t uintptr_t void sampler_t
    image1d_t image2d_t image3d_t image1d_buffer_t image1d_array_t image2d_array_t""".split()  # noqa: SIM905
)


def parameters(kernel: cl.Kernel) -> tuple[Parameter, ...]:
    """Return what is known of each argument."""
    known: tuple[Parameter, ...] | None = getattr(kernel, _ATTRIBUTE, None)
    if known is None:
        count = kernel.num_args
        known = _from_info(kernel, count) or _from_source(kernel, count) or (Parameter(ASSUMED),) * count
        setattr(kernel, _ATTRIBUTE, known)
    return known


def name_of(kernel: cl.Kernel) -> str:
    """Return the name of a kernel; the driver is asked once."""
    known: str | None = getattr(kernel, _NAME, None)
    if known is None:
        known = kernel.function_name
        setattr(kernel, _NAME, known)
    return known


def text_of(kernel: cl.Kernel) -> str:
    """Return how messages name a kernel whose arguments matter."""
    declared = [one.declared for one in parameters(kernel)]
    return f"kernel {name_of(kernel)!r}{' (' + ', '.join(declared) + ')' if all(declared) else ''}"


def _from_info(kernel: cl.Kernel, count: int) -> tuple[Parameter, ...] | None:
    info, access = cl.kernel_arg_info, cl.kernel_arg_access_qualifier
    spaces, qualifier = cl.kernel_arg_address_qualifier, cl.kernel_arg_type_qualifier
    found = []
    try:
        for index in range(count):
            image, space, names = (
                kernel.get_arg_info(index, one)
                for one in (info.ACCESS_QUALIFIER, info.ADDRESS_QUALIFIER, info.TYPE_QUALIFIER)
            )
            type_name, name = (kernel.get_arg_info(index, one).strip() for one in (info.TYPE_NAME, info.NAME))
            const = names & qualifier.CONST
            mode = ASSUMED
            if image == access.READ_ONLY:
                mode = READ
            elif image == access.WRITE_ONLY:
                mode = WRITE
            elif space == spaces.CONSTANT or const:
                mode = READ
            type_name = " ".join([word for word in _plain(type_name).split() if word not in _QUALIFIERS])
            where = spaces.to_string(space).lower() if "*" in type_name else ""  # images have one, too
            words = (where, "const" if const and where != "constant" else "", type_name.replace("*", " *"), name)
            found.append(parameter(mode, where, type_name, _tidy(" ".join(words))))
    except cl.Error:
        return None
    return tuple(found)


def _from_source(kernel: cl.Kernel, count: int) -> tuple[Parameter, ...] | None:
    try:
        program = kernel.program  # Intel's kernel does not keep it
        source = program.source if hasattr(program, "source") else ""
        options = "".join(program.get_build_info(one, cl.program_build_info.OPTIONS) for one in kernel.context.devices)
    except cl.Error:
        return None
    return parameters_from_source(source or "", kernel.function_name, count, options)


@functools.lru_cache(maxsize=256)
def parameters_from_source(source: str, name: str, count: int, options: str = "") -> tuple[Parameter, ...] | None:
    """Return what the text of the kernel's parameters proves, or ``None`` where it cannot be found."""
    text = _without_comments(source)
    macros = {_plain(one or other) for one, other in _DEFINES.findall(text + "\n" + options)}
    plain = _plain(text)
    attributes = r"(?:[^;{}()]|\(\([^{};]*?\)\))*?"
    heads = list(re.finditer(rf"\bkernel\b{attributes}\b{re.escape(name)}\s*\(", plain))
    if not heads or macros & {name, "const", "kernel"}:
        return None
    closed = not re.search(r"#\s*include", text)
    found = []
    for head in heads:
        texts = list(_split(plain, head.end()))
        if len(texts) != count:
            return None
        found.append([_parameter(one, macros, closed) for one in texts])
    if len({tuple([one.mode for one in each]) for each in found}) != 1:
        return None
    return tuple([same[0] if len(set(same)) == 1 else Parameter(same[0].mode) for same in zip(*found, strict=True)])


def plain_text(source: str) -> str:
    """Return a program's text without comments, strings and the underscores of qualifiers."""
    return _plain(_without_comments(source))


def _without_comments(source: str) -> str:
    return _COMMENTS.sub(" ", re.sub(r"\\\r?\n", "", source))  # in this order, as a compiler does it


def _plain(text: str) -> str:
    """Return the text with the underscores of ``__global`` and its kin taken away."""
    return re.sub(r"\b__(?=(?:kernel|global|local|constant|private|read_only|write_only|read_write)\b)", "", text)


def _split(text: str, start: int) -> Iterator[str]:
    depth, begin = 1, start
    for position in range(start, len(text)):
        character = text[position]
        depth += (character == "(") - (character == ")")
        if (character == "," and depth == 1) or not depth:
            yield text[begin:position]
            begin = position + 1
        if not depth:
            return


def _parameter(text: str, macros: set[str], closed: bool) -> Parameter:
    """Read one parameter; `closed` says that no other file can change what its words mean."""
    words = _WORDS.findall(text)
    types = words[:-1]
    if macros & set(words) or any(re.sub(r"(?<=[a-z])\d+$", "", word) not in _KNOWN for word in types):
        return Parameter(ASSUMED)
    pointee, star, _ = text.rpartition("*")
    mode = ASSUMED
    if any(word.startswith("image") for word in types):
        mode = WRITE if "write_only" in types else ASSUMED if "read_write" in types else READ
    elif star and "*" not in pointee and ("constant" in types or "const" in _WORDS.findall(pointee)):
        mode = READ
    if not closed or "*" in pointee or "[" in text:
        return Parameter(mode)
    spaces = [word for word in types if word in ("global", "constant", "local")]
    type_name = " ".join([word for word in types if word not in _QUALIFIERS])
    if star and len(spaces) != 1:
        return Parameter(mode)
    return parameter(mode, spaces[0] if star else "", type_name, _tidy(text))


def _tidy(declared: str) -> str:
    return " ".join(declared.split()).replace("* ", "*")
