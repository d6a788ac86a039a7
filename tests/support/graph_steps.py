"""What random graphs are made of: each step does one thing to a value of a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stormdrop.ir.expr import FLOATS
from stormdrop.operators.node import Value
from tests.support.graph_draft import LONG, GraphDraft, Shape


def _cast(d: GraphDraft, x: Value) -> Value:
    return d.b.cast(x, d.among("f32", "f64", "i32", "i64", "bool"))


def _unary(d: GraphDraft, x: Value) -> Value:
    if x.dtype == "bool":
        return d.b.emit("Not", x)
    if x.dtype not in FLOATS or d.chance(0.4):
        return d.b.emit(d.among("Neg", "Abs", "Relu"), x)
    match d.among("jump", "smooth", "smooth", "root", "log", "clip", "leaky"):
        case "jump":
            return d.b.emit(d.among("Floor", "Ceil", "Round"), x)
        case "root":
            return d.b.emit("Sqrt", d.b.emit("Abs", x))
        case "log":
            return d.b.emit("Log", d.b.emit("Add", d.b.emit("Abs", x), d.b.number(1, x)))
        case "clip":
            return d.b.emit("Clip", x, min=-0.5, max=1.0)
        case "leaky":
            return d.b.emit("LeakyRelu", x, alpha=0.25)
        case _:
            return d.b.emit(d.among("Exp", "Tanh", "Sigmoid", "Erf", "Sin"), x)


def _binary(d: GraphDraft, x: Value) -> Value:
    if x.dtype == "bool":
        return d.b.emit(d.among("And", "Or", "Xor"), x, d.operand(x))
    operators = ("Add", "Add", "Sub", "Mul", "Mul", "Max", "Min", *(("Div", "Mod") if x.dtype not in FLOATS else ()))
    pair = [x, d.operand(x)]
    return d.b.emit(d.among(*operators), *(pair if d.chance(0.7) else reversed(pair)))


def _quotient(d: GraphDraft, x: Value) -> Value:
    d.wants(x.dtype in FLOATS)
    return d.b.emit("Div", x, d.b.emit("Add", d.b.emit("Abs", d.operand(x)), d.b.number(0.5, x)))


def _compare(d: GraphDraft, x: Value) -> Value:
    d.wants(x.dtype != "bool")
    return d.b.emit(d.among("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), x, d.operand(x))


def _where(d: GraphDraft, x: Value) -> Value:
    pair = [x, d.operand(x)]
    return d.b.emit("Where", d.operand(x, "bool"), *(pair if d.chance(0.6) else reversed(pair)))


def _gather(d: GraphDraft, x: Value) -> Value:
    along = d.axis(x)
    shape = d.among((), (d.extent(17),), (d.extent(17),), (d.extent(5), d.extent(5)))
    return d.b.emit("Gather", x, d.indices(shape, x.shape[along]), axis=along)


def _gather_elements(d: GraphDraft, x: Value) -> Value:
    along = d.axis(x)
    shape = tuple(d.extent(17) if k == along else n if d.chance(0.8) else max(1, n // 2) for k, n in enumerate(x.shape))
    return d.b.emit("GatherElements", x, d.indices(shape, x.shape[along]), axis=along)


def _gather_nd(d: GraphDraft, x: Value) -> Value:
    d.wants(x.rank >= 2)
    batch = int(d.pick.integers(0, 2))
    depth = int(d.pick.integers(1, x.rank - batch + 1))
    shape = (*x.shape[:batch], d.extent(9), depth)
    return d.b.emit("GatherND", x, d.indices(shape, min(x.shape[batch : batch + depth])), batch_dims=batch)


def _scatter(d: GraphDraft, x: Value) -> Value:
    d.wants(x.dtype != "bool" and x.size <= 300 and x.rank > 0)
    reduction = d.among("none", "add", "max")
    if d.chance(0.3):
        count, depth = d.extent(5), int(d.pick.integers(1, x.rank + 1))
        at = d.indices((count, depth), min(x.shape[:depth]))
        return d.b.emit("ScatterND", x, at, d.given((count, *x.shape[depth:]), x.dtype), reduction=reduction)
    along = d.axis(x)
    shape = tuple(d.extent(5) if k == along else n for k, n in enumerate(x.shape))
    return d.b.emit(
        "ScatterElements", x, d.indices(shape, x.shape[along]), d.given(shape, x.dtype), axis=along, reduction=reduction
    )


def _reverse(d: GraphDraft, x: Value) -> Value:
    d.wants(x.rank >= 2)
    time, batch = (int(k) for k in d.pick.permutation(x.rank)[:2])
    return d.b.emit("ReverseSequence", x, d.indices((x.shape[batch],), x.shape[time]), time_axis=time, batch_axis=batch)


def _pad(d: GraphDraft, x: Value) -> Value:
    mode = d.among("constant", "constant", "constant", "edge", "reflect", "wrap")
    before, after = (tuple(int(d.size.integers(0, 4)) if d.chance(0.5) else 0 for _ in x.shape) for _ in range(2))
    value = d.among(0.0, 0.0, 1.0, -2.0)
    return d.b.emit("Pad", x, before=before, after=after, mode=mode, value=abs(value) if x.dtype == "bool" else value)


def _slice(d: GraphDraft, x: Value) -> Value:
    starts, steps, shape = zip(*(_cut(d, n) for n in x.shape)) if x.rank else ((), (), ())
    return d.b.emit("Slice", x, starts=starts, steps=steps, shape=shape)


def _cut(d: GraphDraft, n: int) -> tuple[int, int, int]:
    """Start, step and count along one dimension."""
    step = d.among(1, 1, 2, 3, -1, -2)
    if d.chance(0.3):
        return 0, 1, n
    first = int(d.size.integers(n))
    left = (n - 1 - first) // step if step > 0 else first // -step
    return first, step, 1 + int(d.size.integers(left + 1))


def _concat(d: GraphDraft, x: Value) -> Value:
    along = d.axis(x)
    parts = [x]
    for _ in range(d.among(1, 1, 2)):
        fits = [v for v in d.values if v.rank == x.rank and v.dtype == x.dtype and _alike(v.shape, x.shape, along)]
        new = tuple(d.extent(9) if k == along else n for k, n in enumerate(x.shape))
        parts.append(d.among(*fits) if d.chance(0.6) else d.given(new, x.dtype))
    return d.b.emit("Concat", *(parts[int(k)] for k in d.pick.permutation(len(parts))), axis=along)


def _alike(a: Shape, b: Shape, but: int) -> bool:
    return all(k == but or m == n for k, (m, n) in enumerate(zip(a, b)))


def _transpose(d: GraphDraft, x: Value) -> Value:
    d.wants(x.rank >= 2)
    return d.b.transpose(x, [int(k) for k in d.pick.permutation(x.rank)])


def _reshape(d: GraphDraft, x: Value) -> Value:
    """Dimensions of one added or left out, two merged, one split."""
    shape = list(x.shape)
    k = d.axis(x)
    match d.among("one", "one", "merge", "split", "flat"):
        case "one":
            shape.insert(int(d.pick.integers(x.rank + 1)), 1)
        case "merge" if k + 1 < x.rank:
            shape[k : k + 2] = [shape[k] * shape[k + 1]]
        case "split":
            divisor = int(d.size.choice([n for n in range(1, shape[k] + 1) if shape[k] % n == 0]))
            shape[k : k + 1] = [divisor, shape[k] // divisor]
        case _:
            shape = [x.size]
    return d.b.reshape(x, shape)


def _spread(d: GraphDraft, x: Value) -> Value:
    """Repeated elements: broadcast, tiled, enlarged."""
    match d.among("Expand", "Tile", "Repeat"):
        case "Expand":
            return d.b.expand(x, [d.extent(9) if n == 1 else n for n in x.shape])
        case "Tile":
            return d.b.emit("Tile", x, times=tuple(int(d.size.integers(1, 4)) if d.chance(0.4) else 1 for _ in x.shape))
        case _:
            return d.b.emit("Repeat", x, axis=d.axis(x), times=int(d.size.integers(1, 4)))


def _triangle(d: GraphDraft, x: Value) -> Value:
    return d.b.emit("Trilu", x, upper=int(d.chance(0.5)), k=int(d.size.integers(-3, 4)))


def _reduce(d: GraphDraft, x: Value) -> Value:
    d.wants(x.rank > 0)
    axes = sorted(int(k) for k in d.pick.permutation(x.rank)[: int(d.pick.integers(1, x.rank + 1))])
    axes = [x.shape.index(max(x.shape))] if max(x.shape) >= min(LONG) else axes
    kind = d.among("Max", "Min") if x.dtype == "bool" else d.among("Sum", "Sum", "Sum", "Max", "Min", "Prod")
    return d.b.reduce(kind, x, axes, d.chance(0.5))


def _order(d: GraphDraft, x: Value) -> Value:
    d.wants(x.dtype != "bool")
    along = d.axis(x)
    match d.among("Arg", "Arg", "CumSum", "TopK"):
        case "Arg":
            return d.b.emit(d.among("ArgMax", "ArgMin"), x, axis=along, last=int(d.chance(0.3)))
        case "CumSum":
            return d.b.emit("CumSum", x, axis=along, exclusive=int(d.chance(0.3)), reverse=int(d.chance(0.3)))
        case _:
            k = int(d.size.integers(1, x.shape[along] + 1))
            return d.b.emit("TopKIndices", x, axis=along, k=k, largest=int(d.chance(0.5)))


def _norm(d: GraphDraft, x: Value) -> Value:
    d.wants(x.dtype in FLOATS)
    if d.chance(0.6):
        return d.b.emit(d.among("Softmax", "LogSoftmax"), x, axis=d.axis(x))
    return d.b.emit(d.among("Standardize", "RmsNormalize"), x, axes=(d.axis(x),), epsilon=0.25)


def _window(d: GraphDraft, x: Value, kernels: Sequence[int]) -> dict[str, tuple[int, ...]]:
    choices = {"kernel": kernels, "strides": (1, 1, 2), "dilations": (1, 1, 1, 2), "before": (0, 1), "after": (0, 1)}
    return {name: tuple(int(n) for n in d.size.choice(numbers, x.rank - 2)) for name, numbers in choices.items()}


def _pool(d: GraphDraft, x: Value) -> Value:
    d.wants(3 <= x.rank <= 4 and x.dtype in FLOATS)
    return d.b.emit(d.among("MaxPool", "SumPool"), x, layout="NCHW", **_window(d, x, (2, 3)))


def _conv(d: GraphDraft, x: Value) -> Value:
    """With the bias and the relu that often follow."""
    d.wants(3 <= x.rank <= 4 and x.dtype in FLOATS)
    groups = x.shape[1] if d.chance(0.2) else 1
    window = _window(d, x, (1, 1, 2, 3, 3))
    channels = groups * int(d.size.choice([1, 2])) if groups > 1 else d.extent(19)
    w = d.given((channels, x.shape[1] // groups, *window["kernel"]), x.dtype, 0.7)
    y = d.b.emit("Conv", x, w, groups=groups, layout="NCHW", **window)
    if d.chance(0.5):
        y = d.b.emit("Add", y, d.given((channels, *[1] * (x.rank - 2)), x.dtype, 0.8))
    return d.b.emit("Relu", y) if d.chance(0.4) else y


def _conv_transpose(d: GraphDraft, x: Value) -> Value:
    d.wants(3 <= x.rank <= 4 and x.dtype in FLOATS)
    window = _window(d, x, (1, 2, 3))
    columns = zip(x.shape[2:], *(window[name] for name in ("strides", "dilations", "kernel", "before", "after")))
    extents = tuple((n - 1) * s + e * (k - 1) + 1 - b - a for n, s, e, k, b, a in columns)
    d.wants(min(extents) >= 1)
    w = d.given((x.shape[1], d.extent(9), *window["kernel"]), x.dtype, 0.7)
    return d.b.emit("ConvTranspose", x, w, groups=1, layout="NCHW", extents=extents, **window)


def _sample(d: GraphDraft, x: Value) -> Value:
    """Pixels between pixels: along one dimension with constant weights, or in the plane where data says."""
    d.wants(x.dtype in FLOATS and x.rank >= 1)
    if x.rank == 4 and d.chance(0.5):
        grid = d.input((x.shape[0], d.extent(5), d.extent(9), 2), x.dtype)
        mode, padding = d.among("nearest", "linear"), d.among("zeros", "border")
        return d.b.emit("GridSample", x, grid, mode=mode, padding=padding, align_corners=int(d.chance(0.5)))
    along = d.axis(x)
    shape = (d.extent(17), d.among(1, 2, 4))
    taps = d.b.constant(d.size.integers(0, x.shape[along], shape))
    return d.b.emit("Interpolate", x, taps, d.constant(shape, x.dtype), axis=along)


def _contract(d: GraphDraft, x: Value) -> Value:
    """A sum of products over a dimension, which may stand anywhere on both sides."""
    d.wants(2 <= x.rank <= 3 and x.dtype != "bool")
    own = "abc"[: x.rank]
    over = d.among(*own)
    other = "".join(str(c) for c in d.pick.permutation([over, "z", *d.among((), (own[0],))]))
    other = "".join(dict.fromkeys(other))
    extents = {**dict(zip(own, x.shape)), "z": d.extent(9)}
    left = [c for c in dict.fromkeys(own + other) if c != over]
    result = "".join(str(c) for c in d.pick.permutation(left))
    w = d.given(tuple(extents[c] for c in other), x.dtype)
    return d.b.emit("Einsum", x, w, equation=f"{own},{other}->{result}")


def _matmul(d: GraphDraft, x: Value) -> Value:
    d.wants(x.rank >= 2 and x.dtype != "bool")
    k = x.shape[-1]
    match d.among("constant", "constant", "input", "own", "left"):
        case "own":
            return d.b.emit("MatMul", x, x, transpose_b=1)
        case "left":
            return d.b.emit("MatMul", d.given((d.extent(17), x.shape[-2]), x.dtype), x)
        case kind:
            n, turned = d.extent(33), d.chance(0.3)
            w = d.given((n, k) if turned else (k, n), x.dtype, 1.0 if kind == "constant" else 0.0)
            return d.b.emit("MatMul", x, w, transpose_b=int(turned))


STEPS: tuple[tuple[float, Callable[[GraphDraft, Value], Value]], ...] = (
    (5, _cast),
    (2, _unary),
    (3, _binary),
    (0.7, _quotient),
    (1.5, _compare),
    (1.5, _where),
    (3, _gather),
    (1, _gather_elements),
    (1, _gather_nd),
    (0.5, _scatter),
    (0.5, _reverse),
    (1, _sample),
    (3, _pad),
    (1.5, _slice),
    (2, _concat),
    (1.5, _transpose),
    (1.5, _reshape),
    (1, _spread),
    (1.5, _triangle),
    (4, _reduce),
    (0.7, _order),
    (0.7, _norm),
    (1.5, _pool),
    (2, _conv),
    (0.5, _conv_transpose),
    (1, _contract),
    (2, _matmul),
)
