"""Reading `.layout` files: headers and bodies of layout programs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from mesh.errors import InputError
from strategies.notation import LayoutError, Program, Role, Step, Tensor, parse_step, parse_tensor

PHASES = ("decode", "prefill")
COMPONENTS = ("attention", "mlp", "moe", "block", "embed", "unembed")
_LISTS = ("weights", "cache", "index", "constraints", "pad", "requires")
_HEADERS = ("phase", "component", "roles", "input", "output", *_LISTS)
_ROLE = re.compile(r"([A-Za-z])=([A-Z]+\*?(?:\+[A-Z-]+)?|-\+[A-Z]+)")
PADDABLE = ("M", "F", "V", "S", "E")
FEATURES = ("gated", "plain", "qk_norm", "qkv_bias", "o_bias", "bias")


def parse_layout(text: str, source: str = "<text>") -> tuple[Program, ...]:
    """Every program of a `.layout` text, unchecked; raises `LayoutError` naming file and line."""
    programs: list[Program] = []
    block: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].rstrip()
        if line.startswith("program ") and block:
            programs.append(_parse_program(block, source))
            block = []
        if line.strip():
            block.append((number, line))
    if not block:
        raise LayoutError(f"{source}: no program found; expected a line 'program NAME' and then its header and body")
    programs.append(_parse_program(block, source))
    for i, program in enumerate(programs):
        if any(
            (p.name, p.phase, p.component) == (program.name, program.phase, program.component) for p in programs[:i]
        ):
            raise LayoutError(f"{source}: two programs {program.name} for {program.phase} {program.component}")
    return tuple(programs)


def _parse_program(block: list[tuple[int, str]], source: str) -> Program:
    number, first = block[0]
    if not first.startswith("program ") or len(first.split()) != 2:
        raise LayoutError(f"{source}, line {number}: '{first.strip()}'; expected 'program NAME'")
    cut = next((i for i, (_, line) in enumerate(block) if line.strip() == "body"), None)
    if cut is None:
        raise LayoutError(f"{source}, line {number}: program {first.split()[1]} has no line 'body'")
    header = _parse_header(block[1:cut], source)
    steps = tuple(_parse_body_line(n, line, source) for n, line in block[cut + 1 :])
    if not steps:
        raise LayoutError(f"{source}, line {number}: program {first.split()[1]} has an empty body")
    return _build(first.split()[1], header, steps, source, number)


def _parse_header(block: list[tuple[int, str]], source: str) -> dict[str, tuple[int, str]]:
    header: dict[str, tuple[int, str]] = {}
    for number, line in block:
        key, colon, value = line.partition(":")
        if not colon or key.strip() not in _HEADERS:
            raise LayoutError(
                f"{source}, line {number}: '{line.strip()}' is no header line; expected one of {', '.join(_HEADERS)} "
                "followed by ':', or 'body'"
            )
        if key.strip() in header:
            first = header[key.strip()][0]
            raise LayoutError(f"{source}, line {number}: '{key.strip()}:' is given twice, first in line {first}")
        header[key.strip()] = (number, value.strip())
    return header


def _parse_body_line(number: int, line: str, source: str) -> Step:
    where = f"{source}, line {number}: "
    text, features = line.strip(), []
    while match := re.match(r"when ([a-z_]+):\s*", text):
        if match[1] not in FEATURES:
            raise LayoutError(f"{where}unknown condition '{match[1]}'; known: {', '.join(FEATURES)}")
        features.append(("when", match[1]))
        text = text[match.end() :]
    step = parse_step(text, number, where)
    return replace(step, options=(*step.options, *features))


def _build(name: str, header: dict[str, tuple[int, str]], steps: tuple[Step, ...], source: str, number: int) -> Program:
    for key in ("phase", "component", "roles", "input", "output"):
        if key not in header:
            raise LayoutError(f"{source}, line {number}: program {name} lacks the header line '{key}:'")
    lists = {key: tuple(header[key][1].split()) for key in _LISTS if key in header}
    roles = _parse_roles(header, source)
    _known(header, "pad", PADDABLE, "is no dim to pad", source)
    _known(header, "requires", tuple(role.axis for role in roles), "is no axis of 'roles:'", source)
    return Program(
        name=name,
        phase=_one_of(header, "phase", PHASES, source),
        component=_one_of(header, "component", COMPONENTS, source),
        roles=roles,
        steps=steps,
        input=_header_tensor(header, "input", source),
        output=_header_tensor(header, "output", source),
        source=source,
        **lists,
    )


def _one_of(header: dict[str, tuple[int, str]], key: str, known: tuple[str, ...], source: str) -> str:
    number, value = header[key]
    if value not in known:
        raise LayoutError(f"{source}, line {number}: {key} '{value}' is not known; expected one of {', '.join(known)}")
    return value


def _known(header: dict[str, tuple[int, str]], key: str, known: tuple[str, ...], complaint: str, source: str) -> None:
    number, value = header.get(key, (0, ""))
    for name in value.split():
        if name not in known:
            expected = ", ".join(known)
            raise LayoutError(f"{source}, line {number}: {key}: '{name}' {complaint}; expected one of {expected}")


def _parse_roles(header: dict[str, tuple[int, str]], source: str) -> tuple[Role, ...]:
    number, value = header["roles"]
    roles = tuple(_parse_role(part, number, source) for part in value.split())
    if not roles:
        raise LayoutError(f"{source}, line {number}: 'roles:' is empty; expected at least one, such as X=D")
    for i, role in enumerate(roles):
        for other in roles[:i]:
            if role.axis == other.axis or role.name == other.name:
                raise LayoutError(
                    f"{source}, line {number}: roles {other.axis}={other.name} and {role.axis}={role.name} share "
                    f"{'an axis' if role.axis == other.axis else 'a name'}; expected one axis per role"
                )
    return roles


def _parse_role(text: str, number: int, source: str) -> Role:
    match = _ROLE.fullmatch(text)
    if not match:
        raise LayoutError(
            f"{source}, line {number}: '{text}' is no role; expected AXIS=WEIGHTS or AXIS=WEIGHTS+CACHE, such as "
            "X=D or Z=N+B"
        )
    return Role(match[1], match[2])


def _header_tensor(header: dict[str, tuple[int, str]], key: str, source: str) -> Tensor:
    number, value = header[key]
    return parse_tensor(value, f"{source}, line {number}: ")


def specialise(program: Program, features: frozenset[str]) -> Program:
    """The program without the lines whose `when` condition the model does not meet, and without the conditions.

    `features` are those of a layer group: `gated` or `plain`, `qk_norm`, `qkv_bias`, `o_bias`, `bias`.
    """
    steps = tuple(
        replace(s, options=tuple(o for o in s.options if o[0] != "when"))
        for s in program.steps
        if features.issuperset(s.when)
    )
    unused = _names(program.steps) - _names(steps)
    return replace(
        program,
        steps=steps,
        weights=tuple(w for w in program.weights if w not in unused),
        constraints=tuple(c for c in program.constraints if c not in unused),
    )


def _names(steps: tuple[Step, ...]) -> set[str]:
    return {t.name for s in steps for t in (*s.inputs, *s.outputs)}


def read_layout(path: Path) -> tuple[Program, ...]:
    """The programs of a user's `.layout` file; raises `InputError` if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the layout file '{path}': {reason}; expected a text file of programs") from None
    return parse_layout(text, str(path))


@cache
def builtin_programs() -> tuple[Program, ...]:
    """The programs that come with meshwright, in order of file and line."""
    files = sorted((Path(__file__).parent / "programs").glob("*.layout"))
    return tuple(p for f in files for p in parse_layout(f.read_text(encoding="utf-8"), f.name))
