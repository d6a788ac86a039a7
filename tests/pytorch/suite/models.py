"""Networks of torchvision and transformers against eager mode, by both doors: `sd.compile` and `torch.compile`.

The networks are small variants with random weights: what they are made of is what is tested. Nothing is downloaded.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

import stormdrop as sd
from stormdrop.compiler.pytorch import backend

TOLERANCE = 1e-4
"""The largest error of a result, relative to its largest element."""

Example = tuple[Any, Any]
"""A module and its example inputs."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One model's errors by the two doors; `remarks` say what of it ran in PyTorch."""

    model: str
    kernels: int
    compiled: float
    in_torch_compile: float
    remarks: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        return max(self.compiled, self.in_torch_compile) < TOLERANCE and not self.remarks


def agreement(name: str) -> Agreement:
    """Raises UserError for a model that cannot be compiled."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    _load_torchvision()
    module, inputs = MODELS[name]()
    module.eval()
    arguments, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():  # heads and biases that training starts from zero
                parameter.normal_(std=0.02)
        want = _tensors(module(*arguments, **named))
        fast = sd.compile(module, inputs)
        compiled = _error(_tensors(fast(*arguments, **named)), want)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            have = torch.compile(module, backend=backend)(*arguments, **named)
    remarks = tuple(str(w.message) for w in caught if "runs in PyTorch" in str(w.message))
    return Agreement(name, len(fast.model.image.calls), compiled, _error(_tensors(have), want), remarks)


def _tensors(results: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _error(have: list[Any], want: list[Any]) -> float:
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(have, want, strict=True))


def _images(size: int = 64) -> tuple[Any]:
    return (torch.randn(1, 3, size, size),)


def _tokens() -> dict[str, Any]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    return {"input_ids": torch.randint(0, 100, (2, 12)), "attention_mask": mask}


def _vision(name: str, *arguments: Any, **options: Any) -> Callable[[], Example]:
    def make() -> Example:
        from importlib import import_module

        module, _, function = f"torchvision.models.{name}".rpartition(".")
        return getattr(import_module(module), function)(*arguments, **options), _images()

    return make


def _load_torchvision() -> None:
    """Without the operators that torchvision brings compiled for another build of PyTorch: no model here needs them."""
    register: Any = torch.library.register_fake

    def lenient(name: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(name, str) and name.startswith("torchvision::"):
            return lambda function: function
        return register(name, *arguments, **options)

    with mock.patch.object(torch.library, "register_fake", lenient):
        import torchvision  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _convnext() -> Example:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(32, 64, 2), CNBlockConfig(64, None, 2)]), _images()


def _language(name: str, inputs: Callable[[], Mapping[str, Any]] = _tokens, **options: Any) -> Callable[[], Example]:
    """A transformer of two layers, from its class and configuration."""

    def make() -> Example:
        import transformers

        model: Any = getattr(transformers, name)
        return model(model.config_class(vocab_size=100, bos_token_id=1, eos_token_id=2, **options)), inputs()

    return make


def _uncached() -> dict[str, Any]:
    return {**_tokens(), "use_cache": False}


def _whisper_encoder() -> Example:
    import transformers

    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        num_mel_bins=16,
        max_source_positions=32,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
    )
    return transformers.WhisperModel(config).get_encoder(), (torch.randn(1, 16, 64),)


_BERT: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}

MODELS: dict[str, Callable[[], Example]] = {
    "resnet18": _vision("resnet18"),
    "mobilenet_v3_small": _vision("mobilenet_v3_small"),
    "efficientnet_b0": _vision("efficientnet_b0"),
    "squeezenet1_1": _vision("squeezenet1_1"),
    "shufflenet_v2_x0_5": _vision("shufflenet_v2_x0_5"),
    "regnet_y_400mf": _vision("regnet_y_400mf"),
    "convnext": _convnext,
    "vit": _vision(
        "VisionTransformer", image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128
    ),
    "swin": _vision("SwinTransformer", [4, 4], 32, [2, 2], [2, 4], [4, 4]),
    "lraspp": _vision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None),
    "bert": _language("BertModel", **_BERT),
    "distilbert": _language("DistilBertModel", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    "roberta": _language("RobertaModel", **_BERT),
    "t5 encoder": _language("T5EncoderModel", d_model=64, num_layers=2, num_heads=4, d_kv=16, d_ff=128),
    "gpt2": _language("GPT2LMHeadModel", _uncached, n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "llama": _language("LlamaForCausalLM", _uncached, num_key_value_heads=2, **_BERT),
    "whisper encoder": _whisper_encoder,
}
