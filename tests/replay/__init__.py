"""Recorded kernels that a refactoring must not change.

    pytest tests/replay                                     do all cases still give the recorded code?
    python -m tests.replay --dump DIR                       write the normalised code of every case
    python -m tests.replay --changed [--old DIR]            which cases changed; with the old texts, how one of them did
    python -m tests.replay --accept "why"                   record new code of cases whose outputs are as before
    python -m tests.replay --accept-defaults "why"          record the default schedules that are chosen now
    python -m tests.replay --record                         draw all cases anew
    python -m tests.replay --record-files                   make a store and a compiled model anew

A case is a task, a schedule, the views of its arrays and a target, all read from `data/cases.json.gz`: when the tests
run, nothing is detected and nothing is drawn.

    expected.json      one line for each case: hashes of its code and of its outputs, the operations it executes
    defaults.json      the default schedule of each (task, target) that was recorded with it
    accepted.txt       what was recorded again since then, and why
    machines.json      the targets that cases are drawn for
"""
