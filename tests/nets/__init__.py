"""Recorded results of the layers above tasks: what a refactoring must not change by accident.

    pytest tests/nets                            does every net still give its recorded results?
    python -m tests.nets --changed               list the entries that are not as recorded
    python -m tests.nets --accept "why"          record all nets again, with the reason

A net is a function that returns results by name: hashes, counts, or keys. Nets compile little and measure nothing that
they record, so a net gives the same results on every machine.

    networks        tasks and partition of each network: of the zoo, and of small ones
    node_suite      tasks and partition of each case of ONNX's node suite
    images          the tree of the compiled image of three models, without machine code
    json_keys       the keys that `--json` of each command prints
    tuning          the events of a tuned model and of a tuned task, with a measurer that follows a formula
    public_names    the signatures of the package's public names, and of the members of public classes

`data/NET.json` has the results, `data/accepted.txt` the reasons of every later recording.
"""
