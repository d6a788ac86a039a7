"""Searches on recorded tables, without a machine: `stormdrop.testing`, for work on search strategies.

table = Table.load("tests/data/tables/c2d.npz")
run_on_table(table, factory, trials=500, seed=0).needed(1.05 * table.optimum)
"""

from stormdrop.testing.replay import Replayed, run_on_table
from stormdrop.testing.tables import AnsweringMeasurer, Request, Table, TableMeasurer, TableSpace

__all__ = ["AnsweringMeasurer", "Replayed", "Request", "Table", "TableMeasurer", "TableSpace", "run_on_table"]
