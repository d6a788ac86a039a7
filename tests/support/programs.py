"""Loop programs with something changed all over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stormdrop.lower.program import (
    Access,
    Barrier,
    CommitCopies,
    Finish,
    For,
    If,
    Phase,
    Program,
    RegisterTile,
    Stmt,
    Threads,
    Update,
    WaitForCopies,
    with_inner,
)


def changed(program: Program, change: Callable[[Stmt], Stmt], at_load: bool = True) -> Program:
    """The program with every statement replaced, outer ones first."""

    def visit(s: Stmt) -> Stmt:
        return with_inner(change(s), visit)

    def phase(p: Phase) -> Phase:
        return replace(p, body=tuple(map(visit, p.body))) if at_load or not p.at_load else p

    return replace(program, phases=tuple(map(phase, program.phases)))


def with_tiles(program: Program, change: Callable[[RegisterTile], RegisterTile], at_load: bool = True) -> Program:
    """The program with every register tile replaced."""
    tiles: dict[RegisterTile, RegisterTile] = {}

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, (For, If, Threads, Barrier, CommitCopies, WaitForCopies)):
            return s
        if s.tile not in tiles:
            tiles[s.tile] = change(s.tile)
        return replace(s, tile=tiles[s.tile])

    return changed(program, visit, at_load)


def with_accesses(program: Program, change: Callable[[Access], Access]) -> Program:
    """The program with every read and every final store done otherwise."""

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, Finish):
            s = replace(s, store=change(s.store))
        return replace(s, reads={e: change(a) for e, a in s.reads.items()}) if isinstance(s, (Update, Finish)) else s

    return changed(program, visit)
