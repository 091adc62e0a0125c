"""The table at the end of check_backends.py: what is proved of each operator on each backend, what isn't, and why."""

from collections.abc import Iterable
from dataclasses import dataclass, field

BACKENDS = ("cuda", "hip", "metal")
HARDWARE = "run on hardware"
IN_REGISTERS = "in registers"
PROOFS = ("compiled", IN_REGISTERS, "linked", "simulated warp 32", "simulated warp 64", HARDWARE)
# Warps of NVIDIA and Apple have 32 threads. The kernels' launches on AMD's GPUs are not yet tuned for their registers,
# and only a Mac shows how Apple's compiler allocates registers.
NOT_APPLICABLE = {
    ("cuda", "simulated warp 64"),
    ("hip", IN_REGISTERS),
    ("metal", IN_REGISTERS),
    ("metal", "simulated warp 64"),
}
# These kernels would access local memory in every time step, so they must not use it. For other operators the table
# only reports it.
STEPPING = ("lltm_cell", "lltm", "lstm", "gru")


class Refused(Exception):
    """A step could not prove what it checks; the text gives the reason."""


@dataclass
class Report:
    operators: tuple[str, ...]
    proved: set[tuple[str, str, str]] = field(default_factory=set)
    refused: dict[tuple[str, str, str], str] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)

    def prove(self, backend: str, proof: str, operators: Iterable[str] | None = None) -> None:
        for operator in self.operators if operators is None else operators:
            self.proved.add((operator, backend, proof))

    def refuse(self, backend: str, proof: str, why: str, operators: Iterable[str] | None = None) -> None:
        for operator in self.operators if operators is None else operators:
            self.refused.setdefault((operator, backend, proof), why)

    def has(self, operator: str, backend: str, proof: str) -> bool:
        return (operator, backend, proof) in self.proved

    def cell(self, operator: str, backend: str, proof: str) -> tuple[str, str]:
        """yes, no or - (not applicable), and the reason. A refusal overrides the proofs of other steps."""
        key = (operator, backend, proof)
        if (backend, proof) in NOT_APPLICABLE:
            return "-", ""
        if key in self.refused:
            return "no", self.refused[key]
        return ("yes", "") if key in self.proved else ("no", "no step looked at it")

    def complete(self) -> bool:
        """Whether everything is proved that is required and can be proved without a GPU."""
        return all(
            self.cell(operator, backend, proof)[0] != "no"
            for operator in self.operators
            for backend in BACKENDS
            for proof in PROOFS
            if proof != HARDWARE and (proof != IN_REGISTERS or operator in STEPPING)
        )

    def text(self) -> str:
        reasons: dict[str, int] = {}
        rows = [("operator", "backend", *PROOFS)]
        for operator in self.operators:
            for backend in BACKENDS:
                cells = [self.cell(operator, backend, proof) for proof in PROOFS]
                marks = [
                    f"{mark} [{reasons.setdefault(why, len(reasons) + 1)}]" if why else mark for mark, why in cells
                ]
                rows.append((operator, backend, *marks))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        notes = [f"[{number}] {why}" for why, number in reasons.items()]
        return "\n".join([*self.facts, "", *lines, "", *notes])
