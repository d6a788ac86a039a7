"""All SQL of the store, as functions of a connection: the tables, rows in and out, queries, summaries.

No other package holds SQL. The functions convert nothing: rows (`stormdrop.store.rows`) go in and come out. Of the
statements, only SQLite accepts `INDEXED BY`, `json_each`, the columns beside `min` and `max` in groups, the PRAGMAs,
`sqlite_schema` in `schema.check`, and `?` for values.
"""
