"""fourfold's docstrings as reStructuredText. They describe arguments in two ways, under `Args:` and as sentences
`name: text`; both become a list, as do `Returns:`, `Raises:`, `Shapes:` and `Attributes:`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence

from definitions import source_of
from sphinx.application import Sphinx

FIELDS = {"Args": "Parameters", "Attributes": "Attributes", "Shapes": "Shapes"}
HEADER = re.compile(r"((?:Args|Attributes|Example|Raises|Returns|Shapes)(?:, (?:Args|Raises|Shapes))*):")
ENTRY = re.compile(r"([\w.\[\]]+(?:, [\w.\[\]]+)*): +(.*)")


def rewrite(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    names = names_of(documented)
    lines[:] = list(rewritten(lines, names, fields_of(documented)))


def without_fields(
    app: Sphinx, what: str, name: str, documented: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """No signature of a dataclass: users get them, and don't make them, and the fields are listed."""
    return ("", None) if fields_of(documented) else (signature, returns)


def names_of(documented: object) -> list[str]:
    """What lines of the docstring may describe: a function's parameters, a class's, or a dataclass's fields."""
    if dataclasses.is_dataclass(documented):
        return [field.name for field in dataclasses.fields(documented)]
    try:
        return [name for name in inspect.signature(documented).parameters if name != "self"]
    except (TypeError, ValueError):  # a property, a module
        return []


def fields_of(documented: object) -> dict[str, tuple[str, str]]:
    """A dataclass's fields, with their annotation and the comment behind them."""
    if not (inspect.isclass(documented) and dataclasses.is_dataclass(documented)):
        return {}
    comments = dict(re.findall(r"^    (\w+): .*?  # (.*)$", source_of(documented), re.MULTILINE))
    own = [field for field in dataclasses.fields(documented) if not field.name.startswith("_")]
    return {field.name: (annotation(field.type), comments.get(field.name, "")) for field in own}


def annotation(given: object) -> str:
    text = given if isinstance(given, str) else inspect.formatannotation(given)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def rewritten(lines: Sequence[str], names: Sequence[str], fields: dict[str, tuple[str, str]]) -> Iterator[str]:
    described: dict[str, str] = {}
    for block in blocks_of(lines):
        header = HEADER.fullmatch(block[0])
        if header is not None:
            yield from section(header[1], block[1:])
        elif entries := entries_of(block, names):
            if fields:
                described.update((name, text) for joined, text in entries for name in joined.split(", ") if joined)
                yield from (line for joined, text in entries if not joined for line in (text, ""))
            else:
                yield from listed("Parameters", entries)
            yield ""
        elif block[0].startswith("    "):  # an example without a header
            yield from (".. code-block:: python", "", *block, "")
        else:
            yield from (*block, "")
    if fields:
        entries = [(f"{name}|{kind}", described.get(name, comment)) for name, (kind, comment) in fields.items()]
        yield from listed("Attributes", entries)
        yield ""


def blocks_of(lines: Sequence[str]) -> Iterator[list[str]]:
    """Paragraphs. A header has all that is indented below it, and an indented paragraph has those that follow it."""
    block: list[str] = []
    for k, line in enumerate(lines):
        indented = line.startswith(" ")
        within = block and (HEADER.fullmatch(block[0]) or block[0].startswith(" "))
        if not line.strip():
            following = next((later for later in lines[k:] if later.strip()), "")
            if within and following.startswith(" "):
                block.append("")
            elif block:
                yield block
                block = []
            continue
        if block and within and not indented:
            yield block
            block = []
        if block and not within and HEADER.fullmatch(line):
            yield block
            block = []
        block.append(line)
    if block:
        yield block


def entries_of(block: Sequence[str], names: Sequence[str]) -> list[tuple[str, str]]:
    """Of a paragraph `name: text`, names and texts; several may follow one another in a line. What begins with `Raises`
    ends the last, and stands for itself, as do sentences before the first."""
    if not names or block[0].startswith(" "):
        return []
    one = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    start = re.compile(rf"(?:^|(?<=[.;] ))((?:{one})(?:, (?:{one}))*): ", re.MULTILINE)
    text = " \n".join(line.strip() for line in block)
    text, raised, raises = re.fullmatch(r"(.*?)(?:(\n|(?<=\. ))Raises (.*))?", text, re.DOTALL).groups()
    found = list(start.finditer(text))
    if not found:
        return []
    ends = [*(match.start() for match in found[1:]), len(text)]
    texts = (" ".join(text[match.end() : end].split()) for match, end in zip(found, ends, strict=True))
    entries = [(match[1], text.rstrip(";")) for match, text in zip(found, texts, strict=True)]
    if before := " ".join(text[: found[0].start()].split()):
        entries.insert(0, ("", before))
    if raised is not None:
        entries.append(("", "Raises " + " ".join(raises.split())))
    return entries


def section(header: str, body: Sequence[str]) -> Iterator[str]:
    kinds = header.split(", ")
    title = ", ".join(FIELDS.get(kind, kind) for kind in kinds)
    text = textwrap.dedent("\n".join(body)).splitlines()
    entries, rest = ([], text) if kinds[0] in ("Example", "Returns", "Shapes") else entries_under(text)
    if entries:
        yield from listed(title, entries, rest)
    else:
        yield f":{title}:"
        yield from (f"    {line}" if line else "" for line in text)
    yield ""


def entries_under(text: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Entries under a header, and the paragraphs after them."""
    entries: list[tuple[str, str]] = []
    for k, line in enumerate(text):
        match = ENTRY.match(line)
        if match is not None:
            entries.append((match[1], match[2]))
        elif line.startswith(" ") and entries:
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {line.strip()}")
        elif line.strip():
            return entries, list(text[k:])
    return entries, []


def listed(title: str, entries: Sequence[tuple[str, str]], rest: Sequence[str] = ()) -> Iterator[str]:
    """A field with a list. A name may have a type behind a bar."""
    if not entries[0][0]:
        yield from (entries[0][1], "")
        entries = entries[1:]
    raised = [text for names, text in entries if not names]
    yield f":{title}:"
    for names, text in entries:
        if not names:
            continue
        names, _, kind = names.partition("|")
        bold = ", ".join(f"**{name}**" for name in names.split(", "))
        kind = f" (``{kind}``)" if kind else ""
        yield f"    - {bold}{kind}{' – ' + text if text else ''}"
    if rest:
        yield from ("", *(f"    {line}" if line else "" for line in rest))
    for text in raised:
        yield from ("", text)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("autodoc-process-signature", without_fields)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
