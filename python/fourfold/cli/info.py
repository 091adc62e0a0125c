"""Describes this installation and what it can use on this machine: ``python -m fourfold info``."""

import platform
from typing import Any

import torch

import fourfold
from fourfold import _C, _native
from fourfold.devices import programs

DISPATCH_KEYS = ("CPU", "CUDA", "MPS")  # a ROCm build of torch registers and dispatches HIP kernels under CUDA


def collect() -> dict[str, Any]:
    """Everything ``info`` shows, as plain dictionaries, lists, strings and booleans."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    anywhere = "CompositeImplicitAutograd"  # in the plain package
    return {
        "fourfold": fourfold.__version__,
        "torch": torch.__version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "cpu_level": fourfold.cpu_capability(),
        "gradients": _native.path,
        "loop_nests": loop_nests(),
        "programs": programs_on(),
        "build": dict(_C.build_info()),
        "backends": {name: dict(state) for name, state in fourfold.backends().items()},
        "operators": {  # with the dispatch keys under which each has a kernel
            name: [key for key in DISPATCH_KEYS if any(has_kernel(f"fourfold::{name}", k) for k in (key, anywhere))]
            for name in fourfold.operator_names()
        },
    }


def loop_nests() -> str:
    """The compiler of loop nests, or why only the interpreter runs programs."""
    from importlib.metadata import version

    if _native.PLAIN:
        return f"none, {_native.PLAIN}"
    from fourfold.compiler.nest.jit import bitcode, service

    if service.obstacle():
        return f"none, {service.obstacle()}; the interpreter runs programs"
    inlined = "inlined" if bitcode.functions(service.service.level) else "called"
    return f"compiled by llvmlite {version('llvmlite')}, elementary functions {inlined}"


def programs_on() -> dict[str, str]:
    """For each device type, what runs the programs of compiled functions, or why nothing does."""
    if _native.PLAIN:
        return dict.fromkeys(("cpu", "cuda", "mps"), f"none: {_native.PLAIN}")
    compilers = {"cuda": "ROCm's hipRTC" if torch.version.hip else "NVIDIA's NVRTC", "mps": "the system"}
    found = {"cpu": "loop nests, or the interpreter"}
    for type, compiler in compilers.items():
        reason = programs.obstacle(type)
        found[type] = f"none: {reason}" if reason else f"kernels, compiled by {compiler}"
    return found


def as_text(facts: dict[str, Any]) -> str:
    lines = block({name: facts[name] for name in ("fourfold", "torch", "python", "platform")})
    build = {name: words(value) for name, value in facts["build"].items() if name != "operators"}  # their table follows
    backends = {name: backend_words(state) for name, state in facts["backends"].items()}
    lines += ["", "Build", *block(build, indent=2), "", "Backends", *block(backends, indent=2)]
    lines += ["", f"CPU level in use: {facts['cpu_level']}", f"Gradients and calls: {facts['gradients']}"]
    lines += [f"Loop nests: {facts['loop_nests']}"]
    lines += ["", "Programs of compiled functions", *block(facts["programs"], indent=2), ""]
    width = max((len(name) for name in facts["operators"]), default=0)
    lines.append("Operators".ljust(width + 4) + "  ".join(DISPATCH_KEYS))
    for name, keys in facts["operators"].items():
        marks = "  ".join(("yes" if key in keys else "-").ljust(len(key)) for key in DISPATCH_KEYS)
        lines.append(f"  {name.ljust(width)}  {marks}".rstrip())
    return "\n".join(lines)


def block(facts: dict[str, str], indent: int = 0) -> list[str]:
    width = max((len(name) for name in facts), default=0)
    return [f"{' ' * indent}{name.ljust(width)}  {value}".rstrip() for name, value in facts.items()]


def words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def backend_words(state: dict[str, Any]) -> str:
    if state["usable"]:
        return "usable"
    return f"built, but {state['reason']}" if state["built"] else state["reason"]
