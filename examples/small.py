"""Writes small.onnx, the model that docs/models.md follows: a stem, two branches put side by side, a residual sum, a
classifier.
"""

from pathlib import Path

from stormdrop.zoo.builder import NetworkBuilder
from stormdrop.zoo.export import model

net = NetworkBuilder("small", batch=1, opset=18)
x = net.input("image", (3, 32, 32))
x = net.relu(net.norm(net.conv(x, "stem", 16, 3, pad=1, bias=False), "norm"))
one = net.relu(net.conv(x, "one", 16, 1))
three = net.relu(net.conv(x, "three", 16, 3, pad=1))
mixed = net.conv(net.concat("both", [one, three]), "mix", 16, 1)
x = net.relu(net.add("sum", mixed, x))
x = net.linear(net.flatten(net.global_average(x, "mean")), "fc", 10)

Path("small.onnx").write_bytes(model(net.finish(x), seed=0).SerializeToString())
