"""Names in a file must be text: protocol buffers give bytes for those that are no UTF-8, and nothing else expects
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stormdrop.errors import UserError
from stormdrop.graph.graph import shown


def check_names(model: Any) -> None:
    """Raise UserError for the first name that is no text. Linear in the file, without recursion."""
    for text in _texts(model):
        if not isinstance(text, str):
            name = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            raise UserError(f"the name {shown(name)} is no UTF-8; write the model again with names that are")


def _texts(model: Any) -> Iterator[object]:
    for o in model.opset_import:
        yield o.domain
    graphs, nodes = [model.graph], [model.graph.node]
    for f in model.functions:
        yield from (f.name, f.domain, *f.input, *f.output, *f.attribute)
        nodes.append(f.node)
    while graphs or nodes:
        if graphs:
            g = graphs.pop()
            yield g.name
            yield from (t.name for t in g.initializer)
            for v in (*g.input, *g.output):
                yield v.name
                yield from (d.dim_param for d in v.type.tensor_type.shape.dim)
            nodes.append(g.node)
        for n in nodes.pop():
            yield from (n.name, n.op_type, n.domain, *n.input, *n.output)
            for a in n.attribute:
                yield a.name
                yield a.ref_attr_name
                graphs += [*([a.g] if a.HasField("g") else []), *a.graphs]
