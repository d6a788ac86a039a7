"""Whole models for a GPU, run by the emulator's device and compared with the same models on this machine's CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import stormdrop as sd
from stormdrop.builder import building
from stormdrop.compare.oracle import agreements
from stormdrop.compiler import kernel_builds as build
from stormdrop.device.arrays import random_inputs
from stormdrop.model.fixed_model import FixedModel
from stormdrop.target.gpu import gpu
from stormdrop.zoo.bert import Bert, bert
from stormdrop.zoo.builder import Network, NetworkBuilder
from stormdrop.zoo.export import model as onnx_model
from tests.emulator.building import checked_text
from tests.emulator.device import EmulatedDevice


def residual(net: NetworkBuilder) -> Network:
    """Convolutions with batch norm, a sum, pooling, a dense layer."""
    x = net.input("x", (3, 12, 12))
    x = net.relu(net.norm(net.conv(x, "stem", 8, 3, pad=1, bias=False), "stem.norm"))
    y = net.relu(net.conv(x, "a", 8, 3, pad=1))
    x = net.relu(net.add("sum", net.conv(y, "b", 8, 1), x))
    return net.classified(net.flatten(net.max_pool(x, "pool", 3, 2, pad=1)), "head", 10)


def mobile(net: NetworkBuilder) -> Network:
    """A depthwise convolution with a stride, concatenated with an average of its input."""
    x = net.input("x", (16, 9, 9))
    y = net.relu6(net.conv(x, "depthwise", 16, 3, stride=2, pad=1, groups=16))
    y = net.concat("both", [y, net.avg_pool(x, "average", 3, 2, pad=1)])
    return net.classified(net.flatten(net.global_average(net.silu(y), "mean")), "head", 7)


def transformer(net: NetworkBuilder) -> Network:
    return bert(net, Bert(40, 12, 2, hidden=16, heads=2, intermediate=24, layers=1, sequence=6))


@pytest.mark.parametrize("describe", [residual, mobile, transformer], ids=lambda f: f.__name__)
def test_a_model_computes_on_a_gpu_what_it_computes_on_the_cpu(
    describe: Callable[[NetworkBuilder], Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx_model(describe(NetworkBuilder(describe.__name__, batch=1, opset=18)), seed=0)
    on_cpu = sd.compile(proto, threads=1)
    inputs = random_inputs(on_cpu.inputs)
    wanted = on_cpu.run(inputs)
    monkeypatch.setattr(building, "code_from", checked_text)
    monkeypatch.setattr(build, "WORTH_A_WORKER", 1000)  # other processes would assemble
    compiled = sd.compile(proto, target=gpu("sm_90"))
    model = FixedModel(compiled.image, compiled.weights, EmulatedDevice(seed=1))
    for found in (model.run(inputs), model.run(inputs)):
        for judged in agreements(list(wanted), found, wanted, tolerance=1e-5):
            assert judged.ok, str(judged)
