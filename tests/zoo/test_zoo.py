"""The zoo's graphs: how many parameters and operations, which nodes, valid at every batch and opset."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from stormdrop import zoo
from stormdrop.base.errors import UserError
from stormdrop.zoo import OPSETS, describe

# Parameters, and billions of multiply-adds: as torchvision publishes them with its weights; BERT's and DCGAN's are
# worked out by hand. Last, the digests of graphs that were compared with torch.
KNOWN = {
    "alexnet": (61100840, 0.714, "3b760a29d533"),
    "densenet121": (7978856, 2.834, "663ac7be72cb"),
    "densenet161": (28681000, 7.728, "11a567e79479"),
    "densenet169": (14149480, 3.36, "48c7ce749d50"),
    "densenet201": (20013928, 4.291, "33144cfe9d3c"),
    "googlenet": (6624904, 1.498, "615512f59fa7"),
    "inception_v3": (27161264, 5.713, "d7e702fc272c"),
    "mnasnet1_0": (4383312, 0.314, "f6c7e259980c"),
    "mobilenet_v2": (3504872, 0.301, "2deefd9fe152"),
    "resnet18": (11689512, 1.814, "837469e61f13"),
    "resnet34": (21797672, 3.664, "425f19ad8b06"),
    "resnet50": (25557032, 4.089, "f813e1c629e2"),
    "resnet101": (44549160, 7.801, "a62d3a65ee6a"),
    "resnet152": (60192808, 11.514, "8c078f7f1170"),
    "shufflenet_v2_x1_0": (2278604, 0.145, "908e2cc745b0"),
    "squeezenet1_0": (1248424, 0.819, "dcc37e2a986a"),
    "vgg11": (132863336, 7.609, "f3bce3946858"),
    "vgg13": (133047848, 11.308, "859ba3a16e88"),
    "vgg16": (138357544, 15.47, "c3fddfae70bc"),
    "vgg19": (143667240, 19.632, "ab86f54f403d"),
    "bert_base_seq128": (109482240, 11.174, "e870835da01a"),
    "resnet3d_18": (33371472, 40.697, "898d246f026e"),
    "dcgan_generator": (3576704, 0.105, "d6aaae0cf2be"),
    "efficientnet_b0": (5288548, 0.386, "9962de47c893"),
}


def test_the_zoo_has_the_twenty_networks_and_four_beyond() -> None:
    assert zoo.names() == tuple(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_parameters_are_as_many_as_known(name: str) -> None:
    assert zoo.parameters(name) == KNOWN[name][0]


@pytest.mark.parametrize("name", KNOWN)
def test_operations_are_as_many_as_known(name: str) -> None:
    assert zoo.flops(name) / 2e9 == pytest.approx(KNOWN[name][1], abs=6e-4)


def test_operations_grow_with_the_batch() -> None:
    assert zoo.flops("squeezenet1_0", batch=3) == 3 * zoo.flops("squeezenet1_0")


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("batch", [1, 3, None])
def test_graphs_are_valid_and_onnx_infers_the_shapes_we_say(name: str, batch: int | None) -> None:
    model = zoo.skeleton(name, batch)
    onnx.checker.check_model(model, full_check=True)
    said = [list(o.type.tensor_type.shape.dim) for o in model.graph.output]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    assert [list(o.type.tensor_type.shape.dim) for o in inferred.output] == said
    assert len(inferred.value_info) == sum(len(n.output) for n in model.graph.node) - len(model.graph.output)


def test_names_of_nodes_are_unique() -> None:
    for name in zoo.names():
        nodes = [n.name for n in zoo.skeleton(name).graph.node]
        assert len(set(nodes)) == len(nodes)


def test_image_networks_turn_input_into_output() -> None:
    for name in set(zoo.names()) - {"bert_base_seq128"}:
        network = describe(name)
        assert [i.name for i in network.inputs] == ["input"]
        assert [o.name for o in network.outputs] == ["output"]
    (given,) = zoo.build("squeezenet1_0").graph.input
    assert (given.name, given.type.tensor_type.elem_type) == ("input", onnx.TensorProto.FLOAT)


@pytest.mark.parametrize("name", KNOWN)
def test_graphs_are_those_that_were_compared_with_torch(name: str) -> None:
    """Where this fails on purpose, run test_torchvision.py with torch before noting the new digest."""
    network = describe(name)
    constants = {k: v.tolist() for k, v in network.constants.items()}
    text = "\n".join(map(repr, (*network.nodes, *((p.name, p.shape) for p in network.parameters), constants)))
    text = text.replace("OnnxNode", "Node").replace("OnnxValue", "Value")  # as the classes were called then
    assert sha256(text.encode()).hexdigest()[:12] == KNOWN[name][2]


def test_the_inference_graph_of_inception_has_no_auxiliary_head() -> None:
    model = zoo.build("inception_v3")
    trained = (
        t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and ".running_" not in t.name
    )
    assert sum(int(np.prod(t.dims)) for t in trained) == 23834568


def test_a_built_model_is_its_skeleton_with_values() -> None:
    model, bare = zoo.build("shufflenet_v2_x1_0", batch=2), zoo.skeleton("shufflenet_v2_x1_0", batch=2)
    onnx.checker.check_model(model, full_check=True)
    assert list(model.graph.node) == list(bare.graph.node)
    values = {t.name: list(t.dims) for t in model.graph.initializer}
    declared = {
        i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in bare.graph.input if i.name != "input"
    }
    assert declared.items() <= values.items()
    assert values.keys() - declared.keys() == {t.name for t in bare.graph.initializer}


def test_weights_depend_on_the_seed_and_not_on_the_batch() -> None:
    weights = {
        (seed, batch): [t.raw_data for t in zoo.build("squeezenet1_0", batch, seed).graph.initializer]
        for seed, batch in ((0, 1), (0, 4), (1, 1))
    }
    assert weights[0, 1] == weights[0, 4]
    assert not set(weights[0, 1]) & set(weights[1, 1])


def test_batch_norms_have_statistics_worth_folding() -> None:
    tensors = {t.name: numpy_helper.to_array(t) for t in zoo.build("mobilenet_v2").graph.initializer}
    norms = [name.removesuffix(".running_var") for name in tensors if name.endswith(".running_var")]
    assert len(norms) == 52
    for norm in norms:
        variance, mean = tensors[f"{norm}.running_var"], tensors[f"{norm}.running_mean"]
        assert variance.min() > 0
        assert variance.max() / variance.min() > 3
        assert mean.std() > 0.05 * np.sqrt(variance.mean())
        assert tensors[f"{norm}.weight"].std() > 0.05
        assert tensors[f"{norm}.bias"].std() > 0.01


def test_every_opset_gives_a_valid_graph() -> None:
    for opset in OPSETS:
        for name in ("mnasnet1_0", "efficientnet_b0", "bert_base_seq128"):
            model = zoo.skeleton(name, opset=opset)
            onnx.checker.check_model(model, full_check=True)
            assert [o.version for o in model.opset_import] == [opset]


def test_importing_the_zoo_and_counting_parameters_does_not_import_onnx() -> None:
    script = (
        "import sys; from stormdrop import zoo; zoo.names(); zoo.parameters('alexnet'); print('onnx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean resnet50"):
        zoo.build("resnet-50")
    with pytest.raises(UserError, match="it has alexnet"):
        zoo.parameters("42")


@pytest.mark.parametrize(("what", "value"), [("batch", 0), ("seed", -1), ("opset", 16), ("opset", 25)])
def test_wrong_arguments_are_told(what: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{what}.*{value}"):
        zoo.build("squeezenet1_0", **{what: value})
