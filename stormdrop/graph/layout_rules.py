"""Layout rules per operator: the options to compute a node on permuted inputs, and the orders it prefers.

    order   dimensions of a value in memory order: (0, 2, 3, 1) is channels-last of [n, c, h, w]
    form    an order in which -1 stands for an inserted dimension of extent 1, and dimensions of extent 1 may be missing
    block   dimensions of the input and the dimensions of the result that they become; a Reshape keeps them together

Blocks describe a node that follows its input's order: ((2,), (2,)) for each dimension of a Slice, ((2, 3), (2,)) where
a Reshape joins h and w, ((2,), ()) where a reduction drops h. Blocks move as a whole; all rules for such nodes follow.

Invariant: an `Option` on permuted inputs computes the node's result, permuted by `order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stormdrop.ir.shape import matching_runs
from stormdrop.operators.node import Attribute, Node, OperatorKind

Order = tuple[int, ...]
Form = tuple[int, ...]
Block = tuple[Order, Order]
Held = Sequence[Order] | None
"""The orders in which an input exists; None for a constant, which takes any form at no cost."""

_ONE_DIMENSION = ("axis", "time_axis", "batch_axis")
_EACH_PIXEL_DIMENSION = ("kernel", "strides", "dilations", "before", "after", "extents")


@dataclass(frozen=True, slots=True)
class Option:
    """An option to compute a node: the result's order, the inputs' forms, and new attributes (None: unchanged)."""

    order: Order
    forms: tuple[Form, ...]
    attributes: Mapping[str, Attribute] | None = None


def identity(rank: int) -> Order:
    return tuple(range(rank))


def weighty(order: Iterable[int], shape: Sequence[int]) -> Order:
    """Returns the order without dimensions of extent 1, inserted or not; forms with equal results differ by a view."""
    return tuple([d for d in order if d >= 0 and shape[d] != 1])


def completed(order: Sequence[int], rank: int) -> Order:
    """Returns an order of all dimensions: each missing dimension follows its predecessor."""
    if len(order) == rank:
        return tuple(order)
    result, have = list(order), set(order)
    for d in range(rank):
        if d not in have:
            result.insert(result.index(d - 1) + 1 if d else 0, d)
    return tuple(result)


def is_window(node: Node) -> bool:
    """Returns whether the node slides over an image and runs faster with its channels last.

    Grouped transposed convolutions are written channels-first only.
    """
    return (
        node.operator.kind is OperatorKind.POOL
        or node.op == "Conv"
        or (node.op == "ConvTranspose" and node.integer("groups") == 1)
    )


def options(node: Node, held: Sequence[Held], wished: Iterable[Order]) -> Iterator[Option]:
    """Yields the options worth considering for a node, at least one; options on inputs as they are held come first."""
    if node.is_pointwise or node.op == "Expand":
        yield from _aligned_options(node, held, wished)
    elif is_window(node):
        yield from _window_options(node, held)
    elif node.op == "MatMul":
        yield _matmul_option(node, held)
    elif (blocks := blocks_of(node)) is not None:
        yield from _following_options(node, blocks, held, wished)
    else:
        yield Option(identity(node.output.rank), tuple(identity(v.rank) for v in node.inputs))


def wishes(node: Node, order: Order) -> list[Order]:
    """Returns the preferred order of each input, given the order in which readers prefer the result."""
    plain = [identity(v.rank) for v in node.inputs]
    if node.is_pointwise or node.op == "Expand":
        leads = [node.output.rank - v.rank for v in node.inputs]
        return [tuple(d - lead for d in order if d >= lead) for lead in leads]
    if is_window(node):
        if _is_flat(node):
            return [order]
        n, at, c = _roles(node)
        return [(n, *at, c), *([_weights(node, at)] if len(node.inputs) > 1 else [])]
    blocks = blocks_of(node)
    preferred = returned(blocks, order) if blocks is not None else None
    if preferred is None:
        return plain
    count = _followers(node)
    return [preferred if k < count else p for k, p in enumerate(plain)]


# Blocks


def blocks_of(node: Node) -> tuple[Block, ...] | None:
    """Returns the map from dimensions of the input to dimensions of the result, in the input's order.

    None means that the node allows no other order.
    """
    if node.operator.followers == 0:
        return None
    rank = node.inputs[0].rank
    match node.op:
        case "Reshape":
            return matched(node.inputs[0].shape, node.output.shape)
        case "Transpose":
            place = {d: k for k, d in enumerate(node.integers("perm"))}
            return tuple(((d,), (place[d],)) for d in range(rank))
        case "Gather":
            along, more = node.integer("axis"), node.inputs[1].rank - 1
            places = [range(d, d + 1 + more) if d == along else (d + more * (d > along),) for d in range(rank)]
            return tuple(((d,), tuple(place)) for d, place in enumerate(places))
        case _ if rank != node.output.rank:
            gone = node.integers("axes") if "axes" in node.attributes else (node.integer("axis"),)
            return tuple(((d,), () if d in gone else (d - sum(g < d for g in gone),)) for d in range(rank))
        case _:
            return tuple(((d,), (d,)) for d in range(rank))


def matched(source: Sequence[int], target: Sequence[int]) -> tuple[Block, ...] | None:
    """Returns the blocks of a Reshape (`matching_runs`); None for empty tensors, whose blocks are ambiguous."""
    return None if 0 in source else matching_runs(source, target)


def carried(blocks: Sequence[Block], order: Order, rank: int) -> tuple[Order, Order]:
    """Returns the nearest order to `order` that tears no block, and the result's order (of this rank)."""
    at = {d: k for k, d in enumerate(order)}
    moved = sorted(blocks, key=lambda block: at[block[0][0]])
    return completed([d for b in moved for d in b[0]], len(order)), completed([d for b in moved for d in b[1]], rank)


def returned(blocks: Sequence[Block], order: Order) -> Order | None:
    """Returns the order of the input that gives the result's dimensions this order; None if a block would be torn."""
    at = {d: k for k, d in enumerate(order)}
    named = [(min(at[d] for d in block[1] if d in at), block) for block in blocks if any(d in at for d in block[1])]
    moved = [block for _, block in sorted(named)]
    if [d for b in moved for d in b[1] if d in at] != list(order):
        return None
    return tuple(d for b in moved for d in b[0])


def _followers(node: Node) -> int:
    count = node.operator.followers
    return len(node.inputs) if count is None else count


def _following_options(
    node: Node, blocks: Sequence[Block], held: Sequence[Held], wished: Iterable[Order]
) -> Iterator[Option]:
    rank, count = node.inputs[0].rank, _followers(node)
    tried = {order: None for h in held[:count] for order in h or ()}
    tried |= {completed(back, rank): None for w in wished for back in [returned(blocks, w)] if back is not None}
    for order in tried | {identity(rank): None}:
        source, target = carried(blocks, order, node.output.rank)
        forms = tuple(source if k < count else identity(v.rank) for k, v in enumerate(node.inputs))
        yield Option(target, forms, _moved(node, source))


def _moved(node: Node, order: Order) -> Mapping[str, Attribute] | None:
    """Returns the attributes of a node whose input has this order. The caller sets the shape of a Reshape."""
    if order == identity(len(order)) or node.op in ("Reshape", "Transpose"):
        return None
    changed: dict[str, Attribute] = dict(node.attributes)
    for key in _ONE_DIMENSION:
        if key in changed:
            changed[key] = order.index(node.integer(key))
    if "axes" in changed:
        changed["axes"] = tuple(sorted(order.index(d) for d in node.integers("axes")))
    for key in node.operator.by_dimension:
        values = node.integers(key)
        changed[key] = tuple(values[d] for d in order)
    return changed


# Broadcasting


def _aligned_options(node: Node, held: Sequence[Held], wished: Iterable[Order]) -> Iterator[Option]:
    rank = node.output.rank
    tried: dict[Order, None] = {}
    for v, orders in sorted(zip(node.inputs, held), key=lambda pair: -pair[0].size):
        for order in orders or ():
            lead = rank - v.rank
            tried[(*range(lead), *(d + lead for d in order))] = None
    tried |= {completed(w, rank): None for w in wished}
    tried[identity(rank)] = None
    for order in tried:
        yield _aligned(node, held, order)


def _aligned(node: Node, held: Sequence[Held], order: Order) -> Option:
    """Returns the option that aligns operands at their last dimensions.

    An operand of lower rank gets extents of 1 where the order needs them.
    """
    if order == identity(len(order)):
        return Option(order, tuple(identity(v.rank) for v in node.inputs))
    forms: list[Form] = []
    # A constant may lose leading dimensions of extent 1, unless it determines the rank of the result.
    full = [orders for v, orders in zip(node.inputs, held) if v.rank == len(order)]
    spare = node.op == "Expand" or any(orders is not None for orders in full)
    for v, orders in zip(node.inputs, held):
        lead = len(order) - v.rank
        form = [d - lead if d >= lead else -1 for d in order] if v.size != 1 else list(range(v.rank))
        while form and (form[0] < 0 or (spare and orders is None and v.size != 1 and v.shape[form[0]] == 1)):
            del form[0]
        forms.append(tuple(form))
    if node.op != "Expand":
        return Option(order, tuple(forms))
    return Option(order, tuple(forms), {"shape": tuple(node.output.shape[d] for d in order)})


# Windows and products


def _roles(node: Node) -> tuple[int, Order, int]:
    """Returns the image's batch, spatial and channel dimensions."""
    rank = node.inputs[0].rank
    return (0, tuple(range(2, rank)), 1) if node.text("layout") == "NCHW" else (0, tuple(range(1, rank - 1)), rank - 1)


def _weights(node: Node, at: Order) -> Form:
    """Returns the weights as [kernel…, in, out], the kernel's dimensions in the image's order."""
    if node.text("layout") == "NHWC":
        rank = node.inputs[1].rank
        return (*(d - 1 for d in at), rank - 2, rank - 1)
    return (*at, 1, 0) if node.op == "Conv" else (*at, 0, 1)


def _is_flat(node: Node) -> bool:
    """Returns whether a pool slides over an image of one channel, as in response normalisation's sum over channels.

    It is good in any order.
    """
    return node.operator.kind is OperatorKind.POOL and node.inputs[0].shape[_roles(node)[2]] == 1


def _window_options(node: Node, held: Sequence[Held]) -> Iterator[Option]:
    n, at, c = _roles(node)
    yield _window(node, at)
    for order in held[0] or ():
        if order[0] == n and order[-1] == c and order[1:-1] != at:
            yield _window(node, order[1:-1])
        elif _is_flat(node) and {order[0], order[1]} == {n, c}:
            # Still channels-first: vectors run along the last spatial dimension.
            yield Option(order, (order,), _window_attributes(node, order[2:], "NCHW"))


def _window(node: Node, moved: Order) -> Option:
    n, _, c = _roles(node)
    order = (n, *moved, c)
    forms = (order, _weights(node, moved)) if len(node.inputs) > 1 else (order,)
    return Option(order, forms, None if order == identity(len(order)) else _window_attributes(node, moved, "NHWC"))


def _window_attributes(node: Node, moved: Order, layout: str) -> Mapping[str, Attribute]:
    """Returns the attributes of a window with its spatial dimensions in another order."""
    _, at, _ = _roles(node)
    attributes: dict[str, Attribute] = {**node.attributes, "layout": layout}
    for key in _EACH_PIXEL_DIMENSION:
        if key in attributes:
            values = node.integers(key)
            attributes[key] = tuple(values[at.index(d)] for d in moved)
    return attributes


def _matmul_option(node: Node, held: Sequence[Held]) -> Option:
    """Returns a product's option: matrices as they are, or flags for matrices with their last dimensions swapped."""
    forms: list[Form] = []
    attributes: dict[str, Attribute] = dict(node.attributes)
    changed = False
    for v, orders, key in zip(node.inputs, held, ("transpose_a", "transpose_b")):
        plain = identity(v.rank)
        swapped = (*plain[:-2], plain[-1], plain[-2])
        have = {weighty(order, v.shape) for order in orders or ()}
        if weighty(plain, v.shape) not in have and weighty(swapped, v.shape) in have:
            forms.append(swapped)
            attributes[key] = 1 - node.integer(key, 0)
            changed = True
        else:
            forms.append(plain)
    return Option(identity(node.output.rank), tuple(forms), attributes if changed else None)
