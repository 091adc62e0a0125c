"""ONNX Runtime's LSTM and GRU, if the packages onnx and onnxruntime are installed: forward only, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.problem import Candidate, Problem, Unavailable

# Positions of ONNX's gates in torch's order: i, o, f, c in i, f, g, o; z, r, h in r, z, n.
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
OPSET = 14


def layer(problem: Problem) -> Candidate:
    """A session with the problem's parameters. Raises Unavailable if a package is missing."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise Unavailable(f"not installed: {error.name}; pip install onnx onnxruntime") from error

    def gates_in_order(parameter: Tensor) -> Tensor:
        chunks = parameter.chunk(len(GATES[problem.kind]))
        return torch.cat([chunks[gate] for gate in GATES[problem.kind]])

    w, r, *biases = map(gates_in_order, problem.parameters)
    values = {"W": w, "R": r, "B": torch.cat(biases)}
    states = ["h", "c"][: len(problem.inputs) - 1]
    outputs = ["Y", *(f"Y_{name}" for name in states)]
    like_torch = {"linear_before_reset": 1} if problem.kind == "GRU" else {}
    inputs, size = ["X", "W", "R", "B", "", *states], problem.sizes["hidden_size"]
    node = helper.make_node(problem.kind, inputs, outputs, hidden_size=size, **like_torch)
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("X", *states, *outputs)}
    weights = [numpy_helper.from_array(value.unsqueeze(0).numpy(), name) for name, value in values.items()]
    given, found = [infos[name] for name in ("X", *states)], [infos[name] for name in outputs]
    graph = helper.make_graph([node], problem.kind, given, found, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Otherwise its threads keep spinning after a call and slow down the row that is timed next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def call(input: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        feed = {"X": input.numpy()}
        feed.update((name, state.unsqueeze(0).numpy()) for name, state in zip(states, given, strict=True))
        output, *state = map(torch.from_numpy, session.run(outputs, feed))
        return output.squeeze(1), *(value.squeeze(0) for value in state)

    return Candidate(call, tuple(p.clone() for p in problem.parameters))
