"""The signature of every public name of the package, and of every public member of its classes."""

from __future__ import annotations

import ast

from tests.support.api_reference import INTERNAL, bases_of, definition, heading, members, public_names


def signatures() -> dict[str, str]:
    """Returns the signature of each public name; members have their class's name in front, inherited members too."""
    results: dict[str, str] = {}
    for name in sorted(public_names()):
        results[name] = _line(heading(name))
        kind = definition(name)
        for each in reversed([kind, *bases_of(name)]) if isinstance(kind, ast.ClassDef) else ():
            promised = [member for member in members(each) if member.name not in INTERNAL.get(name, ())]
            results |= {f"{name}.{member.name}": _line(member.heading) for member in promised}
    return results


def _line(heading: str) -> str:
    return " ".join(heading.split())
