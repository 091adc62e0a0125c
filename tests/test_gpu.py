"""Tests that need a GPU: streams, graphs, several devices, and that nothing waits for the device."""

from __future__ import annotations

import pytest
import torch

import fourfold
from machine import devices
from op_cases import CASES, Case, case_id, differentiable, flatten, on_its_path, tolerance

DEVICE = "cuda"  # of each test
GPUS = [device for device in devices() if device == "cuda"]
SPECIAL = ("tutorial", "row-tiles", "row-tiles-reset", "launches-reset", "vendor", "deep")
FEW = [case for case in CASES if case.every_path or case.name in SPECIAL]

pytestmark = pytest.mark.skipif(not GPUS, reason="needs a GPU (make check-gpu)")


def run(case: Case, args: tuple, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results without their graph: it would keep the leaves' nodes, and with them the stream of this call, for calls on
    other streams."""
    outputs = flatten(case.function(*args))
    gradients = torch.autograd.grad(sum(o.sum() for o in outputs), leaves, materialize_grads=True)
    return [*(o.detach() for o in outputs), *gradients]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=case_id)
@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_forward_and_backward_are_captured_in_a_graph(case: Case, dtype: torch.dtype) -> None:
    args, leaves = differentiable(case.arguments(dtype, device="cuda"))
    expected = [r.clone() for r in run(case, args, leaves)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(case, args, leaves)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(case, args, leaves)
    for result in captured:
        result.fill_(float("nan"))
    for _ in range(2):
        graph.replay()
    for result, wanted in zip(captured, expected, strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_a_call_runs_on_the_current_stream(case: Case) -> None:
    """After a long operation on a side stream, the call reads that operation's result."""
    args = case.arguments(torch.float32, device="cuda")
    late = [torch.full_like(a, float("nan")) if isinstance(a, torch.Tensor) and a.is_cuda else a for a in args]
    expected = flatten(case.function(*args))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for a, b in zip(args, late, strict=True):
            if isinstance(a, torch.Tensor) and a.is_cuda:
                b.copy_(a)
        results = flatten(case.function(*late))
    stream.synchronize()
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_nothing_waits_for_the_device(case: Case) -> None:
    args, leaves = differentiable(case.arguments(torch.float32, device="cuda"))
    run(case, args, leaves)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(500_000_000)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(case, args, leaves)
        done.record()
        assert not done.query(), "the call returned only when the device had finished what came before it"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("case", FEW, ids=case_id)
def test_a_call_runs_on_its_tensors_device(case: Case) -> None:
    expected = flatten(case.function(*case.arguments(torch.float32, device="cuda:0")))
    results = flatten(case.function(*case.arguments(torch.float32, device="cuda:1")))
    assert torch.cuda.current_device() == 0
    for result, wanted in zip(results, expected, strict=True):
        assert result.device == torch.device("cuda:1")
        torch.testing.assert_close(result.cpu(), wanted.cpu())


def test_tensors_on_different_devices_are_refused_and_the_next_call_works() -> None:
    x = torch.randn(5, device="cuda")
    with pytest.raises(ValueError, match=r"axpby: expected y to be on cuda:0 like x, but got cpu; move it with"):
        fourfold.axpby(x, torch.randn(5))
    with pytest.raises(RuntimeError, match=r"axpby: expected y to be on cuda:0 like x, but got cpu; move it with"):
        torch.ops.fourfold.axpby(x, torch.randn(5))
    torch.testing.assert_close(fourfold.axpby(x, x), 3 * x)


def test_running_out_of_memory_is_an_error_and_the_next_call_works() -> None:
    x = torch.ones(1, device="cuda").expand(1 << 45)
    with pytest.raises(RuntimeError, match="(?i)out of memory|allocation|torch's log has the reason"):
        fourfold.softshrink(x)
    torch.testing.assert_close(fourfold.softshrink(x[:3]), torch.full((3,), 0.5, device="cuda"))


def test_64_bit_indices() -> None:
    n = 2**31 + 77
    if torch.cuda.mem_get_info()[0] < 2 * n:
        pytest.skip("needs 4 GiB of the GPU's memory")
    x = torch.ones(1, dtype=torch.uint8, device="cuda").expand(n)
    y = torch.arange(2, dtype=torch.uint8, device="cuda")[1:].expand(n)
    z = fourfold.axpby(x, y)
    assert z.shape == (n,)
    assert (z == 3).all()


@pytest.mark.parametrize("op", ["lltm", "lstm", "gru"])
def test_the_persistent_kernels_agree_with_a_launch_a_step(op: str) -> None:
    """Sizes that fill a large device, against the same layer in float64, which has no persistent kernel."""
    torch.manual_seed(0)
    time, batch, size = 64, 16, 768
    bound = size**-0.5
    parameters = {
        "lltm": [(3 * size, 2 * size), (3 * size,)],
        "lstm": [(4 * size, size)] * 2 + [(4 * size,)] * 2,
        "gru": [(3 * size, size)] * 2 + [(3 * size,)] * 2,
    }[op]
    drawn = [torch.randn(time, batch, size), *torch.randn(1 if op == "gru" else 2, batch, size)]
    exact = [*drawn, *(torch.randn(shape) * bound for shape in parameters)]
    reset = torch.rand(time, batch, device="cuda") < 0.05

    def results(args: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = flatten(getattr(fourfold.functional, op)(*args, reset=reset))
        return [*outputs, *torch.autograd.grad(sum((o * o).sum() for o in outputs), args)]

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        args = [a.to("cuda", dtype).requires_grad_() for a in exact]
        wide = [a.detach().double().requires_grad_() for a in args]
        for result, wanted in zip(results(args), results(wide), strict=True):
            allowed = tolerance(wanted, dtype, "cuda", gradient=True)
            torch.testing.assert_close(result.double(), wanted, **allowed)


@pytest.mark.parametrize("op", ["lltm", "lstm", "gru"])
def test_tf32_follows_torchs_setting(op: str) -> None:
    case = next(c for c in CASES if c.id == f"{op}-row-tiles")
    args = case.arguments(torch.float32, device="cuda")
    with on_its_path(case, torch.float32, DEVICE):
        exact = flatten(case.function(*args))[0]
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            rounded = flatten(case.function(*args))[0]
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=1e-2, atol=1e-2)


def test_autocast_computes_in_16_bits() -> None:
    layer = fourfold.nn.LLTM(8, 16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        output, (h, c) = layer(torch.randn(4, 3, 8, device="cuda"))
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())
