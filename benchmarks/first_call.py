"""Measured by ``cold`` in a fresh process: ``python -m benchmarks.first_call BACKEND``; an empty BACKEND is plain
PyTorch.

Prints seconds as JSON: importing torch, then the first call, forward and backward, of one function and of a second one.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    start = time.perf_counter()
    import torch

    seconds = {"import torch": time.perf_counter() - start}
    from benchmarks.functions import gelu_tanh, sin2_cos2

    for name, function in (("first call", sin2_cos2), ("second function", gelu_tanh)):
        x = torch.linspace(-3, 3, 1000, requires_grad=True)
        gradient = torch.ones(1000)
        start = time.perf_counter()
        y = (torch.compile(function, backend=sys.argv[1]) if sys.argv[1] else function)(x)
        y.backward(gradient)
        seconds[name] = time.perf_counter() - start
        exact = x.detach().double().requires_grad_()
        function(exact).sum().backward()
        if (error := float(max((y - function(exact)).abs().max(), (x.grad - exact.grad).abs().max()))) > 1e-5:
            raise ArithmeticError(f"first_call: expected {name} within 1e-5 of float64, but got {error:.1e}")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
