"""PyTorch's side of `benchmarks.gpu`: the same operators and networks, f32 on the same GPU.

Everything is timed in a CUDA graph with `cudnn.benchmark` on. A convolution takes the better of NCHW and NHWC. What
PyTorch writes as several kernels (softmax, norms, epilogues, attention's scores) takes the better of eager and
Inductor; a network is timed eagerly and, where asked for, by Inductor with freezing and `max-autotune`.
"""

# PyTorch is not among the packages that type checks install.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from stormdrop.zoo.bert import Bert

CALLS = 10
RUNS = 40
COMPOSED = ("NRM", "SFM", "CBR", "TBG", "ADR")
"""Operators that Inductor may fuse."""


def set_precision(tf32: bool) -> None:
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def seconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """The median seconds of one call, `calls` of them in a CUDA graph."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    found: list[float] = []
    for run in range(RUNS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found += [begin.elapsed_time(end) * 1e-3 / calls] if run >= RUNS // 2 else []
    return float(np.median(found))


# ---- operators -------------------------------------------------------------------------------------------------------


def operator_seconds(name: str, case: Sequence[int], inductor: bool = True) -> float:
    """One of the catalogue's operators, without TF32."""
    set_precision(tf32=False)
    found: list[float] = []
    with torch.no_grad():
        for function, arguments in _ways(name, case):
            found.append(seconds(partial(function, *arguments)))
            if inductor and name in COMPOSED:
                torch.compiler.reset()
                found.append(seconds(partial(torch.compile(function), *arguments)))
    return min(found)


def _drawn(*sizes: int) -> Any:
    return torch.randn(*sizes, device="cuda")


def _ways(name: str, case: Sequence[int]) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    """Functions that compute an operator, with their arguments on the GPU."""
    match name, list(case):
        case "GMM" | "DEN", [batch, n, m, k]:
            yield torch.matmul, [_drawn(batch, n, k), _drawn(batch, k, m)]
        case "GMV", [n, k]:
            yield torch.mv, [_drawn(n, k), _drawn(k)]
        case "DOT", [n]:
            yield torch.dot, [_drawn(n), _drawn(n)]
        case "TRN", [m, n]:
            yield lambda x: x.t().contiguous(), [_drawn(m, n)]
        case "ADR", [n, h, w, c]:
            yield lambda a, b: torch.relu(a + b), [_drawn(n, h, w, c), _drawn(n, h, w, c)]
        case "SFM", [m, n]:
            yield lambda x: torch.softmax(x, -1), [_drawn(m, n)]
        case "NRM", [batch, m, n]:
            yield lambda x: torch.linalg.vector_norm(x, dim=(1, 2)), [_drawn(batch, m, n)]
        case "TBG", [batch, seq, heads, dim]:

            def scores(q: Any, k: Any) -> Any:
                return torch.softmax(torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1)), -1)

            yield scores, [_drawn(batch, seq, heads, dim), _drawn(batch, seq, heads, dim)]
        case "MXP", [n, h, w, c, kernel, stride, pad]:
            for order in _orders(2):
                x = _drawn(n, c, h, w).to(memory_format=order)
                yield lambda x: functional.max_pool2d(x, kernel, stride, pad), [x]
        case _, numbers:
            yield from _convolutions(name, numbers)


def _orders(rank: int) -> list[Any]:
    others = {2: [torch.channels_last], 3: [torch.channels_last_3d]}
    return [torch.contiguous_format, *others.get(rank, [])]


def _convolutions(name: str, numbers: list[int]) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    rank = {"C1D": 1, "C3D": 3}.get(name, 2)
    batch, sizes, rest = numbers[0], numbers[1 : 1 + rank], numbers[1 + rank :]
    if name == "DEP":
        rest = [rest[0], *rest]
    inputs, outputs, kernel, stride, pad, *last = rest
    options: dict[str, int] = {"stride": stride, "padding": pad}
    match name:
        case "GRP":
            options["groups"] = last[0]
        case "DIL":
            options["dilation"] = last[0]
        case "DEP":
            options["groups"] = inputs
        case "CAP":  # rows of the left matrix are images, the common index and the right columns are channels
            batch, inputs, outputs = 4 * batch, 4 * inputs, 4 * outputs
        case _:
            pass
    kind = getattr(torch.nn, "ConvTranspose2d" if name == "T2D" else f"Conv{rank}d")
    for order in _orders(rank):
        layer = kind(inputs, outputs, kernel, bias=name == "CBR", **options).cuda().to(memory_format=order)
        x = _drawn(batch, inputs, *sizes).to(memory_format=order)
        yield (lambda x, layer=layer: torch.relu(layer(x))) if name == "CBR" else layer, [x]


# ---- networks --------------------------------------------------------------------------------------------------------


class _Layer(torch.nn.Module):
    """A layer of BERT's encoder, with PyTorch's fused attention."""

    def __init__(self, shape: Bert) -> None:
        super().__init__()
        width = shape.hidden
        self.heads = shape.heads
        self.query, self.key, self.value, self.output = (torch.nn.Linear(width, width) for _ in range(4))
        self.wide = torch.nn.Linear(width, shape.intermediate)
        self.narrow = torch.nn.Linear(shape.intermediate, width)
        self.norm, self.last_norm = (torch.nn.LayerNorm(width, eps=1e-12) for _ in range(2))

    def forward(self, x: Any, bias: Any) -> Any:
        batch, length, width = x.shape

        def headed(layer: Any) -> Any:
            return layer(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        y = functional.scaled_dot_product_attention(
            headed(self.query), headed(self.key), headed(self.value), attn_mask=bias
        )
        x = self.norm(x + self.output(y.transpose(1, 2).reshape(batch, length, width)))
        return self.last_norm(x + self.narrow(functional.gelu(self.wide(x))))


class _Encoder(torch.nn.Module):
    """BERT-base as `stormdrop.zoo` builds it: embeddings, layers, pooler."""

    def __init__(self, shape: Bert) -> None:
        super().__init__()
        rows = (shape.vocabulary, shape.types, shape.positions)
        self.words, self.types, self.positions = (torch.nn.Embedding(n, shape.hidden) for n in rows)
        self.norm = torch.nn.LayerNorm(shape.hidden, eps=1e-12)
        self.layers = torch.nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.pooler = torch.nn.Linear(shape.hidden, shape.hidden)

    def forward(self, ids: Any, mask: Any, types: Any) -> Any:
        places = self.positions.weight[: ids.shape[1]]
        x = self.norm(self.words(ids) + self.types(types) + places)
        bias = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


def network_seconds(name: str, tf32: bool, inductor: bool) -> dict[str, float]:
    """A network of torchvision, or BERT: eager in a CUDA graph and, where asked for, by Inductor."""
    set_precision(tf32)
    eager: list[float] = []
    compiled: list[float] = []
    with torch.no_grad():
        for network, inputs in _networks(name):
            eager.append(seconds(partial(network, *inputs), calls=1))
        if inductor:
            from torch._inductor import config

            config.freezing = True
            for network, inputs in list(_networks(name))[:1]:  # Inductor chooses the order of dimensions itself
                fast = torch.compile(network, mode="max-autotune-no-cudagraphs")
                compiled.append(seconds(partial(fast, *inputs), calls=1))
    found = {"eager": min(eager)}
    return found | ({"inductor": min(compiled)} if compiled else {})


def _networks(name: str) -> Iterator[tuple[Any, list[Any]]]:
    if name.startswith("bert"):
        shape = Bert()
        ids = torch.randint(0, shape.vocabulary, (1, shape.sequence), device="cuda")
        yield _Encoder(shape).eval().cuda(), [ids, torch.ones_like(ids), torch.zeros_like(ids)]
        return
    import torchvision

    for order in _orders(2):
        network = getattr(torchvision.models, name)(weights=None).eval().cuda().to(memory_format=order)
        yield network, [_drawn(1, 3, 224, 224).to(memory_format=order)]
