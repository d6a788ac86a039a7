"""User-defined operators: a domain, a name, and a formula over tensor expressions.

def scaled_silu(x, scale=1.0):
    i = [sd.axis(n) for n in x.shape]
    return sd.compute("Y", i, x[*i] * sd.sigmoid(x[*i] * scale))

sd.compile("model.onnx", operators=[sd.CustomOperator("my.ops", "ScaledSilu", scaled_silu)])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stormdrop.base import arguments
from stormdrop.base.errors import UserError
from stormdrop.frontend.node_reader import NodeReader, qualified
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.ir.tensor import Task, Tensor, tensor
from stormdrop.operators.formula import formula
from stormdrop.operators.node import Value, shown

Formula = Callable[..., Tensor | Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """A user-defined operator, or a user's replacement of a known operator.

    `formula` takes a tensor for every input (None for an omitted input) and the node's attributes by name: numbers,
    texts, and tuples of them. It returns the computed tensor of the output, or several for several outputs.

    The formula is called once for each node, when the model is loaded; shapes and types are those of its tensors. The
    domain of ONNX's own operators is "".
    """

    domain: str
    """The domain of the operator in ONNX files."""
    name: str
    """The name of the operator in its domain."""
    formula: Formula
    """The function that returns the computed tensors of a node."""

    def __post_init__(self) -> None:
        texts = isinstance(self.domain, str) and isinstance(self.name, str)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not texts or not self.name or not callable(self.formula):
            raise UserError("an operator has a domain and a name, which are texts, and a function as its formula")


def imported(references: Iterable[str]) -> tuple[CustomOperator, ...]:
    """Returns the operators of `module:NAME` references. Raises UserError."""
    operators: list[CustomOperator] = []
    for reference in references:
        value = arguments.imported(reference, "operator")
        if not isinstance(value, CustomOperator):
            raise UserError(f"{reference} is no sd.CustomOperator but a {type(value).__name__}")
        operators.append(value)
    return tuple(operators)


def importers_of(operators: Iterable[CustomOperator]) -> Mapping[tuple[str, str], Importer]:
    """Returns importers by domain and name. Raises UserError if two operators share both."""
    importers: dict[tuple[str, str], Importer] = {}
    for operator in operators:
        if not isinstance(operator, CustomOperator):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"operators= takes sd.CustomOperator values, not {type(operator).__name__}")
        key = "" if operator.domain == "ai.onnx" else operator.domain, operator.name
        if key in importers:
            raise UserError(f"the operator {qualified(*key)} is defined twice")
        importers[key] = _importer(operator)
    return importers


def _importer(operator: CustomOperator) -> Importer:
    def importer(n: NodeReader) -> Results:
        inputs = [n.optional(k) for k in range(len(n.inputs))]
        given = [None if v is None else tensor(f"x{k}", v.shape, v.dtype) for k, v in enumerate(inputs)]
        attributes = {key: tuple(v) if isinstance(v, list) else v for key, v in n.attributes.items()}
        outputs = _called(n, operator, given, attributes)
        if len(outputs) < len([o for o in n.outputs if o]):
            raise n.fail(f"its formula gives {len(outputs)} outputs, but the node has {len(n.outputs)}")
        return [_emitted(n, operator, y) if n.wanted(k) else None for k, y in enumerate(outputs)]

    return importer


def _called(
    n: NodeReader, operator: CustomOperator, given: Sequence[Tensor | None], attributes: Mapping[str, Any]
) -> list[Tensor]:
    try:
        result = operator.formula(*given, **attributes)
    except UserError as error:
        raise n.fail(f"its formula: {error}") from error
    except TypeError as error:  # most often an input or attribute that the formula has no parameter for
        raise n.fail(f"its formula does not take {len(given)} inputs and {sorted(attributes)}: {error}") from error
    outputs = [result] if isinstance(result, Tensor) else list(result)
    for y in outputs:
        if not isinstance(y, Tensor) or y.compute is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise n.fail(f"its formula must return tensors made by sd.compute, got {y!r:.60}")
    return outputs


def _emitted(n: NodeReader, operator: CustomOperator, result: Tensor) -> Value:
    """Emits a node for one output; its inputs are the inputs that the formula reads."""
    task = Task([result], name=operator.name)
    by_name = {f"x{k}": v for k in range(len(n.inputs)) if (v := n.optional(k)) is not None}
    unknown = [t.name for t in task.inputs if t.name not in by_name]
    if unknown:
        raise n.fail(f"its formula reads {unknown[0]}, which is none of its inputs")
    inputs = [by_name[t.name] for t in task.inputs]
    record, attributes = formula(task, shown(operator.name))
    return n.build.emit(record, *inputs, **attributes)
