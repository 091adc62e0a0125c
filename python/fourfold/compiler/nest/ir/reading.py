"""Reads a program's text, which the library has checked: the inverse of ``Program.text``."""

from __future__ import annotations

import re

from fourfold.compiler.ir.dtypes import BOOLEAN, INTEGERS
from fourfold.compiler.ir.values import Axis, Dims, Input, Output, Program, Starts, Value


def read(text: str) -> Program:
    return Reader().read(text)


class Reader:
    def __init__(self) -> None:
        self.program = Program()
        self.values: dict[str, Value] = {}
        self.axis: dict[str, int] = {}

    def read(self, text: str) -> Program:
        lines = [line.replace("[", " [ ").replace("]", " ] ").split() for line in text.splitlines()[1:]]
        for words in filter(None, lines):
            if words[0] == "axes":
                self.read_axes(words[1:])
            elif words[0] in ("output", "column_sum"):
                self.read_output(words)
            else:
                self.read_value(words)
        return self.program

    def read_axes(self, words: list[str]) -> None:
        for word in words:
            if word == "|":
                self.program.outer = len(self.axis)
                continue
            name, _, size = word.partition("=")
            self.axis[name] = len(self.axis)
            self.program.axes.append(Axis(name, size))

    def read_value(self, words: list[str]) -> None:
        name = words[0][:-1]
        value = self.values[name] = self.value(name, words[1], words[3], words[4:])
        self.program.names.setdefault(value, name)

    def dims(self, words: list[str]) -> Dims:
        names = [word.partition("+")[0] for word in words]
        return tuple(() if name[0] in "1@" else tuple(self.axis[each] for each in name.split("*")) for name in names)

    def starts(self, words: list[str]) -> Starts:
        found = [re.search(r"[+@](\d+)$", word) for word in words]
        return tuple(None if start is None else int(start[1]) for start in found) if any(found) else ()

    def value(self, name: str, type: str, op: str, words: list[str]) -> Value:
        if op in ("input", "number"):
            kind, inner = (words[0], words[2:-1]) if op == "input" else ("number", [])
            self.program.inputs.append(Input(name, kind, self.dims(inner), self.starts(inner)))
            return self.program._value(op, type, (), len(self.program.inputs) - 1)
        if op == "constant":
            of = (lambda word: word == "true") if type == BOOLEAN else int if type in INTEGERS else float
            return self.program._value(op, type, (), of(words[0]))
        return self.program._value(op, type, tuple(self.values[word] for word in words))

    def read_output(self, words: list[str]) -> None:
        parts, rest = bracketed(words[1:]) if words[1] == "[" else (words[1:2], words[2:])
        kind, rest = rest[0], rest[1:]
        inner, rest = bracketed(rest)
        dims, order, join = self.dims(inner), list(range(len(inner))), -1
        if rest[:1] == ["join"]:
            join, rest = int(rest[1]), rest[2:]
        if rest[:1] == ["order"]:
            order = [int(word) for word in bracketed(rest[1:])[0]]
        values = [self.values[part] for part in parts]
        self.program.outputs.append(Output(values, kind, dims, order, join, words[0] == "column_sum"))


def bracketed(words: list[str]) -> tuple[list[str], list[str]]:
    """The words between brackets, and those after them."""
    end = words.index("]")
    return words[1:end], words[end + 1 :]
