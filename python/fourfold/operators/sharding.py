"""DTensor's sharding rules for the operators. Imported together with ``torch.distributed.tensor``.

Rows of a batch are independent, and so are all elements of an elementwise operator: results are sharded like DTensors
that are sharded along these. Weights are replicated, and their gradients from a part of the batch are Partial sums.
Other shardings are rejected: the steps of a sequence, and the units of a layer, depend on each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo, TupleStrategy
from torch.distributed.tensor.placement_types import Placement

from fourfold.operators._axes import Axes
from fourfold.operators._operator import Operator, declared
from fourfold.operators._schema import Schema, schema_of

Names = tuple[str, ...]


def register() -> None:
    """Registers the rules of all operators with DTensor."""
    for operator in declared.values():
        forward = operator.forward or operator
        _register(operator.op, Rule(operator.schema, forward, operator.name != forward.name))
    for name in declared:
        if hasattr(torch.ops.fourfold, f"{name}_prepack"):
            schema = schema_of(f"{name}_prepack")
            _register(getattr(torch.ops.fourfold, f"{name}_prepack").default, Rule(schema, None, False))


def _register(op: torch._ops.OpOverload, rule: "Rule") -> None:
    # torch caches a rule's result for calls with equal arguments, which it compares from this index on: a mask of
    # results, or a bias that is None, matters too.
    info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=bool(rule.schema.lists))
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(op, rule, info)


@dataclass(frozen=True)
class Argument:
    """A tensor argument of a call."""

    name: str
    spec: DTensorSpec
    dimensions: Names | None  # None: every part needs all of it
    own: bool  # an argument of the forward, not one that only its backward has


@dataclass(frozen=True)
class Rule:
    """The rule of one operator. forward: the operator that defines the dimensions; None if all is replicated."""

    schema: Schema
    forward: Operator | None
    is_backward: bool

    def __call__(self, call: OpSchema) -> OpStrategy:
        """The only strategy for this call. Raises NotImplementedError if there is none, which torch passes on
        unchanged."""
        a = self.schema.named([_as_list(value) for value in call.args_schema])
        dimensions, independent = self.forward.axes.of(a) if self.forward else ({}, frozenset())
        arguments = list(self._arguments(a, dimensions))
        mesh = arguments[0].spec.mesh
        if any(argument.spec.mesh != mesh for argument in arguments):
            raise NotImplementedError(f"{self.schema.name}: expected all DTensors to be on one mesh")
        by_mesh = [self._on(dim, arguments, independent) for dim in range(mesh.ndim)]
        wanted = [tuple(chosen.of(argument) for chosen in by_mesh) for argument in arguments]
        for argument, placements in zip(arguments, wanted, strict=True):
            self._expect_as_kept(argument, placements, independent)
        inputs = [
            DTensorSpec(mesh, placements, tensor_meta=argument.spec.tensor_meta)
            for argument, placements in zip(arguments, wanted, strict=True)
        ]
        results = [self._result(k, a, dimensions, by_mesh, mesh) for k in range(len(self.schema.results))]
        return OpStrategy([OpSpec(results[0] if self.schema.single else tuple(results), inputs)])

    def _arguments(self, a: SimpleNamespace, dimensions: dict[str, Names]) -> Iterator[Argument]:
        """The tensor arguments in torch's order."""
        for name in self.schema.arguments:
            value = getattr(a, name)
            own = not self.is_backward or name in self.forward.schema.arguments
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, (OpStrategy, DTensorSpec)):
                    yield Argument(name, _spec_of(each), dimensions.get(self._source(name)), own)

    def _source(self, name: str) -> str:
        """The forward's argument or result with the same dimensions."""
        if not self.is_backward:
            return name
        forward = self.forward.schema
        if name == "grad":
            return forward.results[0]
        return name.removeprefix("grad_") if name not in (*forward.arguments, *forward.results) else name

    def _on(self, mesh_dim: int, arguments: Sequence[Argument], independent: frozenset[str]) -> "Chosen":
        """What one dimension of the mesh splits."""
        placed = [argument.spec.placements[mesh_dim] for argument in arguments]
        for argument, placement in zip(arguments, placed, strict=True):
            if argument.own and not self._may_be(argument, placement, independent):
                raise NotImplementedError(self._refusal(argument, independent))
        axes = self.forward.axes if self.forward else Axes(lambda a: ({}, frozenset()))
        linear = axes.linear_backward if self.is_backward else axes.linear
        sums = {p for argument, p in zip(arguments, placed, strict=True) if argument.name in linear}
        others = [p for argument, p in zip(arguments, placed, strict=True) if argument.name not in linear]
        if len(sums) == 1 and all(map(Placement.is_replicate, others)) and _is_linear(sums, arguments, linear):
            return Chosen(None, sums.pop(), linear)
        # Arguments that only a backward has decide only if the forward's don't, and if nothing that was kept merges
        # dimensions.
        ordered = any(_holds_several(argument.dimensions, independent) for argument in arguments)
        for own in (True, False) if not ordered else (True,):
            for argument, placement in zip(arguments, placed, strict=True):
                if argument.own == own and type(placement) is Shard and argument.dimensions:
                    split = argument.dimensions[placement.dim]
                    if split in independent:
                        return Chosen(split)
        return Chosen(None)

    def _may_be(self, argument: Argument, placement: Placement, independent: frozenset[str]) -> bool:
        if type(placement) is Shard:
            return bool(argument.dimensions) and argument.dimensions[placement.dim] in (*independent, "1")
        return placement.is_replicate() or placement.is_partial()

    def _refusal(self, argument: Argument, independent: frozenset[str]) -> str:
        places = [k for k, name in enumerate(argument.dimensions or ()) if name in independent]
        allowed, such = "replicated", "Replicate()"
        if places:
            where = " or ".join(f"{k} ({argument.dimensions[k]})" if self._has_words else str(k) for k in places)
            allowed, such = f"sharded along dimension {where} or replicated", f"Shard({places[0]})"
        also = "" if places else ", or shard parameters by torch.distributed.fsdp.fully_shard, which gathers them"
        return (
            f"{self.schema.name}: expected {argument.name} to be {allowed}, but got placements "
            f"{tuple(argument.spec.placements)}; redistribute it before the call, "
            f"{argument.name}.redistribute(placements=[{such}]){also}"
        )

    @property
    def _has_words(self) -> bool:
        """Whether the names of dimensions are more helpful than their numbers."""
        return self.forward is not None and self.forward.name not in ("mlp", "mlp_layers")

    def _expect_as_kept(self, argument: Argument, placements: Names, independent: frozenset[str]) -> None:
        if _holds_several(argument.dimensions, independent) and argument.spec.placements != placements:
            raise NotImplementedError(
                f"{self.schema.name}: expected {argument.name} as the forward call gave it, with placements "
                f"{placements}, but got {tuple(argument.spec.placements)}"
            )

    def _result(
        self, k: int, a: SimpleNamespace, dimensions: dict[str, Names], by_mesh: Sequence["Chosen"], mesh: Any
    ) -> Any:
        name = self.schema.results[k]
        source = name.removeprefix("grad_") if self.is_backward else name
        found = dimensions.get(source)

        def placements(wanted: bool) -> tuple[Placement, ...]:
            return tuple(chosen.of_result(found) if wanted else Replicate() for chosen in by_mesh)

        if not self.is_backward:
            kept = self.forward is not None and k >= len(self.schema.results) - self.forward.kept
            return DTensorSpec(mesh, placements(not kept or a.save_for_backward))
        if k not in self.schema.result_lists:
            return DTensorSpec(mesh, placements(self._mask(a, k)[0]))
        # torch fills in the shapes of tensors, but not of those in lists.
        specs = []
        for of, wanted in zip(getattr(a, source), self._mask(a, k), strict=True):
            shape = tuple(of.shape) if wanted and of is not None else (0,)
            meta = TensorMeta(torch.Size(shape), _strides(shape), _spec_of(a.grad).tensor_meta.dtype)
            specs.append(DTensorSpec(mesh, placements(shape != (0,)), tensor_meta=meta))
        return specs

    def _mask(self, a: SimpleNamespace, k: int) -> list[bool]:
        """Whether the result's gradient is needed; for a list, one value for each element."""
        if not hasattr(a, "output_mask"):
            return [True]
        lengths = [
            len(getattr(a, name.removeprefix("grad_"))) if place in self.schema.result_lists else 1
            for place, name in enumerate(self.schema.results)
        ]
        first = sum(lengths[:k])
        return list(a.output_mask[first : first + lengths[k]])


@dataclass(frozen=True)
class Chosen:
    """What a mesh dimension splits: a dimension of tensors, or, for linear arguments, sums; else nothing."""

    split: str | None
    sums: Placement | None = None
    linear: Names = ()

    def of(self, argument: Argument) -> Placement:
        if self.sums is not None:
            return self.sums if argument.name in self.linear else Replicate()
        place = _place(self.split, argument.dimensions)
        return Replicate() if place is None else Shard(place)

    def of_result(self, dimensions: Names | None) -> Placement:
        if self.sums is not None:
            return self.sums
        if self.split is None:
            return Replicate()
        place = _place(self.split, dimensions)
        return Partial("sum") if place is None else Shard(place)  # the gradient of an argument that all parts share


def _place(split: str | None, dimensions: Names | None) -> int | None:
    """The index of the dimension of a tensor that is split, or None."""
    return next((k for k, name in enumerate(dimensions or ()) if split in name.split("*")), None)


def _holds_several(dimensions: Names | None, independent: frozenset[str]) -> bool:
    """Whether a dimension merges an independent one with others, in an order that a part doesn't determine."""
    return any("*" in name and independent & set(name.split("*")) for name in dimensions or ())


def _is_linear(sums: set[Placement], arguments: Sequence[Argument], linear: Names) -> bool:
    (kind,) = sums
    dtypes = (argument.spec.tensor_meta.dtype for argument in arguments if argument.name in linear)
    floating = all(dtype.is_floating_point for dtype in dtypes)
    return floating and type(kind) is Partial and kind.reduce_op in ("sum", "avg")


def _as_list(value: Any) -> Any:
    """A list of tensors; torch represents one without None as a TupleStrategy."""
    return list(value.children) if isinstance(value, TupleStrategy) else value


def _spec_of(value: OpStrategy | DTensorSpec) -> DTensorSpec:
    """The spec of a tensor; torch 2.10 passes elements of a list that begins with None as specs."""
    return value if isinstance(value, DTensorSpec) else value.strategies[0].output_spec


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return tuple(strides)
