"""Compiled signatures above a stand-in for PyTorch: a single compilation for all threads and for each state."""

# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stormdrop.base.errors import StormdropWarning, UserError

SOURCES = Path(__file__).parents[2] / "stormdrop" / "pytorch"


class StandInTensor:
    """A tensor of this shape, whose elements are all `value`."""

    def __init__(self, shape: tuple[int, ...], value: int = 0) -> None:
        self.shape, self.value, self.dtype, self.requires_grad = shape, value, "f32", False


class StandInModule:
    """A module that adds its parameter."""

    def __init__(self) -> None:
        self.training, self.parameter = False, 1


class State:
    """The parameter of a module at one moment."""

    def __init__(self, module: StandInModule) -> None:
        self._module, self._parameter = module, module.parameter

    def holds(self) -> bool:
        return self._module.parameter == self._parameter


class Frozen:
    """Static arguments of one moment."""

    def __init__(self, static: Sequence[StandInTensor]) -> None:
        self._values = [t.value for t in static]

    def holds(self, static: Sequence[StandInTensor]) -> bool:
        return [t.value for t in static] == self._values


class NothingComputed(UserError):
    """An export without results."""


def exported(module: Any, leaves: Sequence[Any], spec: Any, frozen: Any) -> Any:
    """The stand-in of an export: its graph is the shape and the value to add."""
    added = module.parameter if isinstance(module, StandInModule) else sum(leaves[k].value for k in frozen)
    given = [k for k in range(len(leaves)) if k not in frozen]
    graph = leaves[given[0]].shape, added
    return SimpleNamespace(graph=graph, spec=spec, inputs=given, results=(Computed(0),), views=None)


class Computed:
    """A result of the graph."""

    __match_args__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def modules() -> dict[str, ModuleType]:
    """What the modules under test import of PyTorch and of the modules around it."""
    tree = SimpleNamespace(
        tree_flatten=lambda given: (list(given[0]), "spec"),
        tree_unflatten=lambda leaves, _: leaves[0],
        tree_structure=lambda _: "spec",
    )
    disabled = {"is_grad_enabled": lambda: False, "is_autocast_enabled": lambda _: False}
    parts: dict[str, dict[str, Any]] = {
        "torch": {"Tensor": StandInTensor, "fx": SimpleNamespace(), "nn": SimpleNamespace(), **disabled},
        "torch.utils": {"_pytree": tree},
        "stormdrop.pytorch.export": {
            "Aliased": type("Aliased", (Computed,), {}),
            "Fixed": type("Fixed", (Computed,), {}),
            "Computed": Computed,
            "Exported": object,
            "NothingComputed": NothingComputed,
            "export": exported,
            "runnable": lambda module: module,
        },
        "stormdrop.pytorch.frozen": {"ModuleState": State, "Frozen": Frozen},
        "stormdrop.pytorch.tensors": {
            "array_of": lambda tensor: tensor.value,
            "tensor_of": lambda value: value,
            "refusal": lambda _: None,
        },
    }
    made: dict[str, ModuleType] = {}
    for name, content in parts.items():
        made[name] = ModuleType(name)
        made[name].__dict__.update(content)
    return made


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Loads a module of `stormdrop.pytorch` above the stand-ins."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)

    def loaded(name: str) -> Any:
        spec = spec_from_file_location(f"stormdrop.pytorch.{name}", SOURCES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


class Builds:
    """Makes models of stand-in graphs. Models of the shape `slow` are made when `go` is set."""

    def __init__(self, slow: tuple[int, ...] | None = None) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.begun, self.go = Event(), Event()
        self._slow = slow

    def __call__(self, graph: tuple[tuple[int, ...], int]) -> Callable[[int], int]:
        shape, added = graph
        self.shapes.append(shape)
        if shape == self._slow:
            self.begun.set()
            assert self.go.wait(60)
        if shape == (13,):
            raise UserError("13 elements are refused")
        return lambda value: value + added


def tensor(n: int, value: int = 0) -> StandInTensor:
    return StandInTensor((n,), value)


def test_threads_at_a_new_signature_compile_it_once_and_block_no_other_signature(
    stand_ins: Callable[[str], Any],
) -> None:
    build = Builds(slow=(3,))
    module = stand_ins("compiled").CompiledModule(StandInModule(), [tensor(2)], {}, build)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(module, tensor(3, 10)) for _ in range(3)]
        assert build.begun.wait(60)
        assert module(tensor(4, 20)) == 21
        build.go.set()
        assert [call.result() for call in calls] == [11] * 3
    assert build.shapes == [(2,), (3,), (4,)]
    assert len(module.models) == 3


def test_a_refused_signature_is_compiled_once(stand_ins: Callable[[str], Any]) -> None:
    build = Builds()
    module = stand_ins("compiled").CompiledModule(StandInModule(), [tensor(2)], {}, build)
    for _ in range(2):
        with pytest.raises(UserError, match="13 elements are refused"):
            module(tensor(13))
    assert build.shapes == [(2,), (13,)]


def test_a_compilation_that_ends_after_a_change_of_parameters_is_not_used_again(
    stand_ins: Callable[[str], Any],
) -> None:
    build, network = Builds(slow=(3,)), StandInModule()
    module = stand_ins("compiled").CompiledModule(network, [tensor(2)], {}, build)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(module, tensor(3, 10))
        assert build.begun.wait(60)
        network.parameter = 5
        with pytest.warns(StormdropWarning, match="have changed"):
            assert module(tensor(2, 10)) == 15
        build.go.set()
        assert call.result() == 11
    assert module(tensor(3, 10)) == 15


def test_a_graph_serves_modules_of_different_parameters_and_stays_in_pytorch_after_many_changes(
    stand_ins: Callable[[str], Any],
) -> None:
    stand_ins("compiled")
    backend = stand_ins("backend")

    def graph(*arguments: StandInTensor) -> tuple[str]:
        return ("in PyTorch",)

    def placeholder(meta: dict[str, Any]) -> Any:
        return SimpleNamespace(op="placeholder", meta=meta)

    nodes = [placeholder({"tensor_dict": {"_dynamo_static_input_type": 1}}), placeholder({})]
    backend.torch.nn.Parameter = StandInTensor
    captured = SimpleNamespace(graph=SimpleNamespace(nodes=nodes))
    function = backend.GraphFunction(captured, Builds())
    function._graph = graph
    assert function(tensor(1, 7), tensor(2, 10)) == (17,)
    for value in range(backend.MOST_REFREEZES):
        assert function(tensor(1, value), tensor(2, 10)) == (10 + value,)
    with pytest.warns(StormdropWarning, match="have changed more than 8 times"):
        assert function(tensor(1, 70), tensor(2, 10)) == ("in PyTorch",)
