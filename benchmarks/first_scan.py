"""A recurrence in a fresh process: ``python -m benchmarks.first_scan WAY``. WAY is "fourfold" for a scan, empty for a
Python loop, or a backend of torch.compile for one compiled step, which is the cost of capture.

Prints seconds as JSON: importing torch, then the first call, forward and backward, of one step and of a second one.
"""

from __future__ import annotations

import json
import sys
import time

STEPS, BATCH, INPUTS, HIDDEN = 100, 16, 32, 128
FIRST, SECOND = "GRU", "spiking neuron"


def main() -> None:
    start = time.perf_counter()
    import torch

    seconds = {"import torch": time.perf_counter() - start}
    from torch.utils import _pytree as pytree

    from benchmarks.other_recurrences import OTHERS
    from benchmarks.recurrences import RECURRENCES, loop

    way = sys.argv[1]
    for name, recurrence in (("first call", RECURRENCES[FIRST]), ("second function", OTHERS[SECOND])):
        made = recurrence.make(STEPS, BATCH, INPUTS, HIDDEN)
        given = pytree.tree_map(lambda x: x.requires_grad_(), (made.init, made.xs, made.weights))
        start = time.perf_counter()
        if way == "fourfold":
            import fourfold

            _, ys = fourfold.scan(made.step, made.init, made.xs)
        elif way:
            _, ys = torch.compile(made.step, backend=way)(made.init, made.xs[0])
        else:
            _, ys = loop(made.step, made.init, made.xs)
        gradient = torch.ones_like(ys)
        ys.backward(gradient)
        seconds[name] = time.perf_counter() - start
        init, xs, weights = pytree.tree_map(lambda x: x.detach().double(), given)
        _, exact = loop(recurrence.of(weights), init, xs)
        if (error := float((ys - (exact if ys.dim() == exact.dim() else exact[0])).norm() / exact.norm())) > 1e-4:
            raise ArithmeticError(f"first_scan: expected {name} within 1e-4 of float64, but got {error:.1e}")
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
