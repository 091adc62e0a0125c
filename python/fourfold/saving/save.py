"""``fourfold.save``: an exported program in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule

from fourfold import _C, _native
from fourfold.compiler.analysis.in_place import COPY
from fourfold.saving import tree
from fourfold.saving.executor import executor
from fourfold.saving.exported import lowered
from fourfold.saving.signature import Signature
from fourfold.saving.state import State, pairs_of, structure_of_stream
from fourfold.saving.steps import Encoder, Unsaved, constant
from fourfold.saving.tensors import Stored, order_of, temporary_beside, write

VERSION = 1  # increases when older releases can't read new files
KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}


def save(program: ExportedProgram, path: str | os.PathLike[str], *, state: State | None = None) -> None:
    """Saves an exported program as one file, which :func:`fourfold.load`, and ``fourfold::load`` in C++, run.

        program = torch.export.export(model.eval(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
        fourfold.save(program, "model.ff")

    The file has safetensors format. Its tensors are the parameters, buffers and constants under the module's names;
    shared tensors are stored once. Its metadata hold the graph in JSON: calls of operators by schema, fourfold's
    programs as text, scans. It runs on every device that its operators support, and with later releases of fourfold and
    torch.

    Args:
        program: the result of ``torch.export.export``, dynamic dimensions included. torch's LSTM and GRU become
            fourfold's operators; ``fourfold.scan`` and torch's ``scan`` are saved as loops.
        path: the file. It is replaced atomically, so processes that have loaded the old one keep it.
        state: the arguments that are the state of a stream, each with the result that it takes in the next call, by
            index or key, as in ``{"h": 1}``; or with None, if the model changes the argument in place. The result has
            the argument's dtype and shape. An argument may be a tuple of tensors, like the state of an LSTM; each of
            them also has a name, as in ``loaded.arguments``. ``loaded.stream()`` then makes calls of the others.

    Raises:
        TypeError: program is not an exported program, or state no dict.
        ValueError: a graph that needs Python (``torch.cond``, objects, tensor subclasses), with the reason and what to
            change; a path whose folder doesn't exist; or a state that the program doesn't have.
        ImportError: fourfold was installed without its compiled library.
    """
    if not isinstance(program, ExportedProgram):
        what = f"but got {type(program).__name__}; call torch.export.export(model, args) first"
        raise TypeError(f"save: expected the program that torch.export.export returns, {what}")
    if state is not None and not isinstance(state, Mapping):
        raise TypeError(f"save: expected state to be a dict of arguments, such as {{'h': 1}}, but got {state!r}")
    _native.expect_library("save")
    path = Path(path)
    if not path.parent.is_dir() or path.is_dir():
        raise ValueError(f"save: expected path to name a file in a folder that exists, but got {str(path)!r}")
    try:
        file = File(program, state or {})
    except Unsaved as reason:
        raise ValueError(f"save: expected a graph that runs without Python, but it has {reason}") from reason
    file.write(path)


class File:
    def __init__(self, program: ExportedProgram, state: State):
        """Raises Unsaved, and ValueError with a whole message."""
        self.stored = Stored()
        self.encoder = Encoder(self.stored)
        structure = {
            "inputs": tree.encoded(program.call_spec.in_spec),
            "outputs": tree.encoded(program.call_spec.out_spec),
        }
        self.structure = json.dumps(structure)
        program, module, results = lowered(program)
        self.outputs = [node.meta["val"] for node in module.graph.output_node().args[0]]
        self.signature = Signature(program)
        tensors = self.tensors(program)  # first, so that they keep their own names
        self.graph = {
            "symbols": self.signature.symbols,
            "tensors": tensors,
            "arguments": self.arguments(module),
            "programs": self.encoder.programs,
            "graph": self.encoder.module(module),
            "results": [
                {"output": each} if isinstance(each, int) else {"constant": constant(each[1])} for each in results
            ],
        }
        if state:
            changed = set((program.graph_signature.user_inputs_to_mutate or {}).values())
            self.graph["state"] = self.state(state, structure["inputs"], structure["outputs"], results, changed)

    def tensors(self, program: ExportedProgram) -> list[dict[str, object]]:
        found = []
        for spec in program.graph_signature.input_specs:
            if spec.kind not in KINDS:
                continue
            state = program.state_dict if spec.target in program.state_dict else program.constants
            tensor = state[spec.target]
            if not isinstance(tensor, Tensor):
                raise Unsaved(f"{spec.target}, which is not a tensor")
            described = {"name": spec.target, "kind": KINDS[spec.kind], "data": self.stored.add(spec.target, tensor)}
            order = order_of(tensor)
            found.append(described if order is None else described | {"order": order})
        return found

    def arguments(self, module: GraphModule) -> list[dict[str, object]]:
        inputs = module.graph.find_nodes(op="placeholder")
        changed = {node.args[0] for node in module.graph.find_nodes(op="call_function", target=COPY)}
        read = module.meta["plan"].read_by_torch
        relies = {node for k, node in enumerate(inputs) if k in read and node not in changed}
        return self.signature.arguments(inputs, relies)

    def state(
        self, state: State, inputs: tree.Tree, outputs: tree.Tree, results: Sequence[object], changed: Collection[str]
    ) -> list[object]:
        """changed: the arguments that the program changes in place."""
        arguments = self.graph["arguments"]
        pairs = pairs_of(state, inputs, outputs, [argument["name"] for argument in arguments])
        structure_of_stream(inputs, outputs, pairs)  # raises for what loaded.stream() can't return
        for argument, result in pairs:
            given = arguments[argument]
            if "dtype" not in given:
                raise ValueError(f"save: expected the state {given['name']} to be a tensor")
            if result is None:
                if given["name"] not in changed:
                    raise ValueError(
                        f"save: expected the model to change the state {given['name']} in place, as None says, but it "
                        "doesn't: give the result that it takes in the next call"
                    )
                continue
            output = results[result]
            found = self.signature.described(self.outputs[output]) if isinstance(output, int) else {}
            if any(found.get(key) != given[key] for key in ("dtype", "shape")):
                raise ValueError(
                    f"save: expected the result that {given['name']} takes to be {given['dtype']} {given['shape']}, as "
                    f"the argument, but it is {found.get('dtype', 'no tensor')} {found.get('shape', '')}"
                )
        return pairs

    def write(self, path: Path) -> None:
        metadata = {
            "format": "pt",
            "fourfold.version": str(VERSION),
            "fourfold.writer": f"fourfold {_C.build_info()['version']}, torch {torch.__version__}",
            "fourfold.graph": json.dumps(self.graph, ensure_ascii=False, separators=(",", ":")),
            "fourfold.structure": self.structure,
        }
        temporary = temporary_beside(path)
        try:
            write(temporary, self.stored.tensors, metadata)
            self.check(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def check(self, path: Path) -> None:
        """Loads the written file. Raises ValueError if that fails, as for operators that files may not call."""
        try:
            executor().Model(str(path), None, sorted(self.encoder.namespaces), 0)
        except ValueError as error:
            why = str(error).partition(" wrote, but ")[2] or str(error)
            raise ValueError(f"save: expected a graph that can be loaded, but {why}") from None
