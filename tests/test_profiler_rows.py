"""From the records of torch's profiler to the table: with handwritten calls as torch makes them on CUDA and MPS."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from fourfold.profiler import Row, _records, _rows, _table
from fourfold.profiler._records import HostCall, Operand, Work

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps", 0)


class Recorder:
    """Makes calls with unique ids."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(
        self, name: str, milliseconds: float, *operands: Operand, calls: Any = (), kind: Any = None
    ) -> HostCall:
        self.count += 1
        kind = kind or _records.kind_of(name, "FUNCTION")
        return HostCall(self.count, name, round(1e6 * milliseconds), kind, operands, list(calls))


def on(device: torch.device, elements: int = 1000, dtype: torch.dtype = torch.float32) -> Operand:
    return Operand(device, dtype, elements)


def by_name(rows: list[Row]) -> dict[str, Row]:
    assert len({row.operator for row in rows}) == len(rows)
    return {row.operator: row for row in rows}


def ms(milliseconds: float) -> Any:
    return pytest.approx(milliseconds)


def test_a_fourfold_operators_time_holds_what_it_calls_and_a_torch_operators_is_its_own() -> None:
    call = Recorder()
    product = call("aten::mm", 3, on(CPU))
    ours = call("fourfold::mlp_layers", 10, on(CPU), calls=[product, call("aten::relu", 1, on(CPU))])
    addmm = call("aten::addmm", 5, on(CPU), calls=[call("aten::expand", 1, on(CPU))])
    linear = call("aten::linear", 8, on(CPU), calls=[addmm])
    rows = by_name(_rows.rows_of([ours, linear, linear], []))
    assert {name: (row.calls, row.host_time) for name, row in rows.items()} == {
        "fourfold::mlp_layers": (1, ms(10)),
        "aten::linear": (2, ms(6)),
        "aten::addmm": (2, ms(8)),
        "aten::expand": (2, ms(2)),
    }
    assert all(row.device_time == row.host_time and row.device == "cpu" for row in rows.values())


def test_a_row_for_each_dtype_and_device() -> None:
    call = Recorder()
    token, half = on(CPU, dtype=torch.int64), on(CUDA, dtype=torch.bfloat16)
    calls = [
        call("aten::embedding", 1, on(CPU), token),
        call("aten::embedding", 1, half, on(CUDA, dtype=torch.int64)),
        call("aten::add", 1, half, on(CUDA), on(CPU, 1)),
        call("aten::eq", 1, token),
        call("aten::empty", 1),
        call("aten::fft", 1, on(CPU, dtype=torch.complex64)),
        call("aten::arange", 1, calls=[call("aten::arange", 1, on(CUDA, dtype=torch.int64))]),
    ]
    assert [(row.operator, row.dtype, row.device, row.calls) for row in _rows.rows_of(calls, [])] == [
        ("aten::embedding", "float32", "cpu", 1),
        ("aten::embedding", "bfloat16", "cuda", 1),
        ("aten::add", "bfloat16, float32", "cuda", 1),
        ("aten::eq", "int64", "cpu", 1),
        ("aten::empty", "", "", 1),
        ("aten::fft", "complex64", "cpu", 1),
        ("aten::arange", "int64", "cuda", 1),
    ]


def test_autograd_regions_and_parts() -> None:
    """As torch nests a backward: engine, node, operator; a detach within a detach; a region named by the user."""
    call = Recorder()
    backward = call("fourfold::lltm_backward", 4, on(CPU))
    node = call("fourfold_lltmBackward", 5, on(CPU), calls=[backward], kind="autograd")
    engine = call("autograd::engine::evaluate_function: fourfold_lltmBackward", 7, calls=[node])
    detach = call("aten::detach", 2, on(CPU), calls=[call("detach", 1, on(CPU))])
    function = call("MyFunction", 3, on(CPU), calls=[call("aten::mul", 2, on(CPU))])
    region = call("step", 100, calls=[engine, detach, function], kind="region")
    rows = by_name(_rows.rows_of([region], []))
    assert {name: (row.calls, row.host_time) for name, row in rows.items()} == {
        "autograd": (1, ms(3)),
        "fourfold::lltm_backward": (1, ms(4)),
        "aten::detach": (1, ms(2)),
        "MyFunction": (1, ms(1)),
        "aten::mul": (1, ms(2)),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AddmmBackward0", "autograd"),
        ("torch::autograd::AccumulateGrad", "autograd"),
        ("fourfold_lltmBackward", "autograd"),
        ("MyFunctionBackward", "operator"),
        ("CompiledFunctionBackward", "operator"),
    ],
)
def test_a_node_with_code_of_its_own_has_a_row(name: str, kind: str) -> None:
    assert _records.kind_of(name, "BACKWARD_FUNCTION") == kind
    call = Recorder()
    node = call(name, 5, on(CPU), kind=kind)
    rows = by_name(_rows.rows_of([call(f"autograd::engine::evaluate_function: {name}", 6, calls=[node])], []))
    assert (name in rows) == (kind == "operator")
    assert sum(row.host_time for row in rows.values()) == ms(6)


def test_what_only_computes_shapes_is_no_device() -> None:
    call, meta = Recorder(), torch.device("meta")
    rows = _rows.rows_of([call("aten::mm", 1, on(meta)), call("aten::mm", 2, on(CPU))], [])
    assert [(row.device, row.device_time) for row in rows] == [("meta", 1.0), ("cpu", 2.0)]
    text = _table.table(rows, 5.0, None)
    assert "host ms" not in text and "worked" not in text
    assert ["all", "2", "-", "cpu", "3.000", "100.0", "%", "-", "-"] in [line.split() for line in text.splitlines()]


def test_an_operator_within_itself_is_one_call() -> None:
    call = Recorder()
    inner = call("fourfold::softshrink", 1, on(CPU))
    mapped = call("fourfold::softshrink", 4, on(CPU), calls=[call("aten::movedim", 1, on(CPU)), inner])
    total = call("aten::sum", 3, on(CPU), calls=[call("aten::sum", 2, on(CPU))])
    rows = by_name(_rows.rows_of([mapped, total], []))
    assert {name: (row.calls, row.host_time) for name, row in rows.items()} == {
        "fourfold::softshrink": (1, ms(4)),
        "aten::sum": (1, ms(3)),
    }


def test_cuda_kernels_are_their_callers() -> None:
    """As CUPTI reports them: each kernel and memcpy with the operator that launched it, and a graph's kernels without
    one."""
    call = Recorder()
    written = call("aten::copy_", 0.2, on(CUDA, 500), on(CPU, 500))
    to = call("aten::to", 0.3, on(CPU, 500), calls=[call("aten::_to_copy", 0.3, on(CPU, 500), calls=[written])])
    product = call("aten::mm", 0.1, on(CUDA))
    ours = call("fourfold::lltm", 1.5, on(CUDA), calls=[product])
    view = call("aten::view", 0.01, on(CUDA))
    local = call("aten::_local_scalar_dense", 0.4, on(CUDA, 1, torch.float64))
    item = call("aten::item", 0.5, on(CUDA, 1, torch.float64), calls=[local])
    work = [
        Work(written.id, "cuda", "Memcpy HtoD (Pageable -> Device)", 10_000),
        Work(ours.id, "cuda", "persistent_forward<float>", 2_000_000),
        Work(product.id, "cuda", "sgemm_128x128", 500_000),
        Work(ours.id, "cuda", "persistent_forward<float>", 1_000_000),
        Work(0, "cuda", "captured_kernel", 250_000),
        Work(local.id, "cuda", "Memcpy DtoH (Device -> Pinned)", 2_000),
    ]
    zeros = call("aten::zeros", 0.1)
    work.append(Work(zeros.id, "cuda", "Memset (Device)", 1000))
    rows = by_name(_rows.rows_of([to, ours, view, item, zeros], work))
    assert rows["fourfold::lltm"].device_time == ms(3.5) and rows["fourfold::lltm"].host_time == ms(1.5)
    assert (rows["aten::copy_"].device_time, rows["aten::copy_"].copied) == (ms(0.01), 2000)
    assert (rows["aten::view"].device, rows["aten::view"].device_time) == ("cuda", 0.0)
    assert rows["aten::to"].device_time == rows["aten::to"].host_time  # for a tensor on the CPU
    assert rows["aten::_local_scalar_dense"].copied == 8 and rows["aten::item"].copied == 0
    assert rows["no operator"] == Row("no operator", "", "cuda", 1, 0.25)
    assert (rows["aten::zeros"].device, rows["aten::zeros"].device_time) == ("cuda", ms(0.001))
    assert sum(row.copied for row in rows.values()) == 2008
    text = _table.table(list(rows.values()), 9.0, None)
    assert [line.split() for line in text.splitlines() if "fourfold::lltm" in line] == [
        ["fourfold::lltm", "1", "float32", "cuda", "3.500", "93.0", "%", "1.500", "-", "-"]
    ]
    assert "doesn't record" not in text


def test_copies_between_devices_are_counted_once_in_the_type_that_is_written() -> None:
    call = Recorder()
    meta, other = torch.device("meta"), torch.device("cuda", 1)
    half = torch.float16
    inner = call("aten::_copy_from", 1, on(CPU, 10), on(MPS, 10))
    calls = [
        call("aten::copy_", 1, on(MPS, 10), on(CPU, 10), calls=[inner]),  # some backends copy in two steps
        call("aten::copy_", 1, on(CPU, 10, half), on(MPS, 10)),
        call("aten::_copy_from_and_resize", 1, on(CPU, 10), on(MPS, 10, half)),
        call("aten::copy_", 1, on(CUDA, 10), on(other, 10)),
        call("aten::copy_", 1, on(CUDA, 10), on(CUDA, 10)),
        call("aten::copy_", 1, on(meta, 10), on(CPU, 10)),
        call("aten::_local_scalar_dense", 1, on(CPU, 1)),
        call("aten::add", 1, on(CUDA, 10), on(CPU, 1)),
    ]
    assert [_rows.rows_of([each], [])[0].copied for each in calls] == [40, 20, 20, 40, 0, 0, 0, 0]
    assert sum(row.copied for row in _rows.rows_of(calls, [])) == 120


def fallback(call: Recorder, name: str, *operands: Operand, calls: Any = ()) -> HostCall:
    """As at::native::cpu_fallback: copies to the CPU, the CPU's kernel, and a copy back."""
    there = [call("aten::copy_", 1, on(CPU, o.elements, o.dtype), o) for o in operands]
    to_cpu = call("aten::_to_cpu", 1 + len(there), *operands, calls=there)
    back = call("aten::copy_", 1, *operands[:1], on(CPU, operands[0].elements, operands[0].dtype))
    inside = [to_cpu, *calls, call("aten::to", 1, on(CPU), calls=[back])]
    return call(name, 2 + sum(each.nanoseconds for each in inside) * 1e-6, *operands, calls=inside)


def test_an_operator_that_fell_back_is_told_with_what_it_cost() -> None:
    call = Recorder()
    svd = fallback(call, "aten::linalg_svd", on(MPS, 100), calls=[call("aten::mm", 3, on(CPU))])
    calls = [svd, call("aten::mm", 1, on(MPS)), call("aten::linalg_svd", 1, on(CPU))]
    rows = _rows.rows_of(calls, [])
    assert [(row.operator, row.device, row.calls, row.fell_back, row.copied) for row in rows] == [
        ("aten::linalg_svd", "mps", 1, 1, 800),
        ("aten::mm", "mps", 1, 0, 0),
        ("aten::linalg_svd", "cpu", 1, 0, 0),
    ]
    assert rows[0].host_time == ms(8)
    text = _table.table(rows, 20.0, torch_rows=0)
    (line,) = [line.split() for line in text.splitlines() if line.startswith("  aten")]
    assert line == ["aten::linalg_svd", "1", "float32", "mps", "-", "-", "8.000", "800", "B", "1"]
    assert "aten::linalg_svd fell back to the CPU in 1 of 1 calls: it has no kernel for mps, so its inputs and" in text
    assert "torch's profiler doesn't record the time on mps; Metal System Trace, in Apple's Instruments, shows" in text
    assert "  2 more" in text


def test_what_falls_back_within_a_fourfold_operator_is_told_too() -> None:
    call = Recorder()
    inner = fallback(call, "aten::linear", on(MPS, 10), calls=[call("fourfold::axpby", 1, on(CPU))])
    again = call("aten::cholesky", 20, on(MPS, 5), calls=[fallback(call, "aten::cholesky", on(MPS, 5))])
    ours = call("fourfold::mlp", 30, on(MPS), calls=[inner, call("aten::relu", 1, on(MPS))])
    rows = by_name(_rows.rows_of([ours, again, fallback(call, "fourfold::gru", on(MPS, 3))], []))
    assert {name: (row.calls, row.fell_back, row.copied) for name, row in rows.items()} == {
        "fourfold::mlp": (1, 0, 0),
        "aten::linear": (1, 1, 80),
        "aten::cholesky": (1, 1, 40),
        "fourfold::gru": (1, 1, 24),
    }
    assert rows["fourfold::mlp"].host_time + rows["aten::linear"].host_time == ms(30)


def test_the_table_adds_up_what_has_no_row_of_its_own() -> None:
    rows = [
        Row("aten::small", "float32", "cpu", 2, 1.0, 1.0),
        Row("fourfold::lltm", "float32", "cpu", 3, 6.0, 6.0),
        Row("autograd", "", "", 5, None, 2.0),
        Row("aten::large", "float64", "cpu", 1200, 11.0, 11.0, 1_500_000),
    ]
    lines = [line.split() for line in _table.table(rows, 25.0, torch_rows=1).splitlines()]
    assert lines == [
        ["calls", "dtype", "device", "ms", "share", "copied", "fell", "back"],
        ["fourfold's", "operators", "3", "-", "cpu", "6.000", "30.0", "%", "-", "-"],
        ["fourfold::lltm", "3", "float32", "cpu", "6.000", "30.0", "%", "-", "-"],
        ["torch's", "and", "others", "1,207", "-", "cpu", "14.000", "70.0", "%", "1.5", "MB", "-"],
        ["aten::large", "1,200", "float64", "cpu", "11.000", "55.0", "%", "1.5", "MB", "-"],
        ["2", "more", "7", "-", "cpu", "3.000", "15.0", "%", "-", "-"],
        ["all", "1,210", "-", "cpu", "20.000", "100.0", "%", "1.5", "MB", "-"],
        [],
        f"The block took {25:.3f} ms; the host spent {20:.3f} ms in the listed rows.".split(),
        _table.OWN.split(),
    ]
    assert _table.table([], None, 10).splitlines()[-1] == _table.OWN


def test_times_of_different_devices_are_not_added_up() -> None:
    rows = [Row("aten::a", "float32", "cuda", 1, 4.0, 1.0), Row("aten::b", "float32", "cpu", 1, 2.0, 2.0)]
    for more, line in (
        ([], ["all", "2", "-", "cuda", "4.000", "100.0", "%", "3.000", "-", "-"]),
        ([Row("aten::c", "float32", "xpu", 1, 1.0, 1.0)], ["all", "3", "-", "-", "-", "-", "4.000", "-", "-"]),
    ):
        text = _table.table([*rows, *more], 5.0, None)
        assert [each.split() for each in text.splitlines() if each.startswith("all")] == [line]
        assert "2.000  100.0 %" in text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "-"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3 * 10**15, "3000.0 TB")]
)
def test_sizes(count: int, text: str) -> None:
    assert _table.size(count) == text


def event_of_torchs(
    name: str, id: int, *inputs: Any, scope: str = "FUNCTION", children: Any = (), tag: str = "TorchOp"
) -> Any:
    """An event of the tree that torch's profiler returns."""
    fields = SimpleNamespace(inputs=list(inputs), scope=SimpleNamespace(name=scope))
    kind = SimpleNamespace(name=tag)
    return SimpleNamespace(
        name=name, correlation_id=id, duration_time_ns=10 * id, typed=(kind, fields), children=list(children)
    )


def test_torchs_events_become_calls() -> None:
    tensor = SimpleNamespace(device=CUDA, dtype=torch.float16, sizes=[2, 3])
    launch = event_of_torchs("cudaLaunchKernel", 90, tag="Kineto")
    product = event_of_torchs("aten::mm", 3, tensor, 1.5, None, children=[launch])
    frame = event_of_torchs("model.py(3): forward", 91, tag="PyCall", children=[product])
    cat = event_of_torchs("aten::cat", 2, [tensor, tensor], 0)
    outer = event_of_torchs("step", 1, scope="USER_SCOPE", children=[cat, frame])
    node = event_of_torchs("MmBackward0", 4, scope="BACKWARD_FUNCTION")
    (region, backward) = _records.calls_of(SimpleNamespace(experimental_event_tree=lambda: [outer, node]))
    operand = Operand(CUDA, torch.float16, 6)
    assert region == HostCall(
        1,
        "step",
        10,
        "region",
        (),
        [
            HostCall(2, "aten::cat", 20, "operator", (operand, operand)),
            HostCall(3, "aten::mm", 30, "operator", (operand,)),
        ],
    )
    assert (backward.kind, backward.id) == ("autograd", 4)


def test_torchs_kernels_become_work() -> None:
    def event(name: str, call: int, device: DeviceType, annotation: bool = False) -> Any:
        return SimpleNamespace(
            name=lambda: name,
            linked_correlation_id=lambda: call,
            duration_ns=lambda: 7,
            device_type=lambda: device,
            is_user_annotation=lambda: annotation,
        )

    events = [
        event("aten::mm", 0, DeviceType.CPU),
        event("cudaLaunchKernel", 3, DeviceType.CPU),
        event("sgemm", 3, DeviceType.CUDA),
        event("step", 1, DeviceType.CUDA, annotation=True),  # a region, which spans its kernels
        event("Memcpy HtoD (Pageable -> Device)", 2, DeviceType.HIP),
    ]
    assert _records.work_of(SimpleNamespace(events=lambda: events)) == [
        Work(3, "cuda", "sgemm", 7),
        Work(2, "cuda", "Memcpy HtoD (Pageable -> Device)", 7),
    ]
