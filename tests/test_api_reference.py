"""docs/api.md is what the docstrings say."""

from __future__ import annotations

import ast
import re

import pytest

import stormdrop
from tests.support.api_reference import ELSEWHERE, INTERNAL, PAGE, bases_of, definition, members, page

CLASSES = [name for name in (*stormdrop.__all__, *ELSEWHERE) if isinstance(definition(name), ast.ClassDef)]


def public_members(name: str) -> set[str]:
    """Returns the names that a class and its bases define or assign to `self`, of public names only."""
    names: set[str] = set()
    for kind in (definition(name), *bases_of(name)):
        assert isinstance(kind, ast.ClassDef)
        names |= {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(kind):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                    names.add(attribute)
                case ast.Name(id=attribute, ctx=ast.Store()) if is_in_body(kind, node):
                    names.add(attribute)
                case _:
                    pass
    return {member for member in names if not member.startswith("_")} - INTERNAL.get(name, set())


def is_in_body(kind: ast.ClassDef, target: ast.Name) -> bool:
    """Returns whether a name is assigned in the body of a class itself, not in a method."""
    statements = [node for node in kind.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    return any(target is node for statement in statements for node in ast.walk(statement))


def documented_members(name: str) -> dict[str, str]:
    """Returns the text of each member of a class on the page; of inherited members, the text that names them."""
    section = re.split(r"^##+ ", PAGE.read_text().partition(f"### {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    texts: dict[str, str] = {}
    for text in re.findall(r"^Inherited from .*?(?=\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL):
        texts |= dict.fromkeys(re.findall(r"`(\w+)`", text), text)
    blocks = re.findall(r"^```text\n(\w+).*?^```\n(.*?)(?=^```text|\Z)", section, flags=re.MULTILINE | re.DOTALL)
    return texts | {member: text.partition("Inherited from")[0].strip() for member, text in blocks[1:]}


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == page(), "write it: python -m tests.support.api_reference"


def test_the_reference_has_every_public_name() -> None:
    headings = {line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")}
    assert set(stormdrop.__all__) - {"__version__"} <= headings


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_of_a_class_is_documented(name: str) -> None:
    documented = documented_members(name)
    assert documented.keys() - {"__call__"} == public_members(name), "annotate attributes in the body of the class"
    assert [member for member, text in documented.items() if not text] == [], "members without a docstring"


def test_an_attribute_has_the_string_after_it_as_its_docstring() -> None:
    kind = ast.parse("class A:\n    x: int = 1\n    '''Rows.'''\n    y: int\n    _z: int\n    def f(self): ...").body[0]
    assert isinstance(kind, ast.ClassDef)
    assert [(m.heading, m.text) for m in members(kind)] == [("x: int", "Rows."), ("y: int", ""), ("f()", "")]
