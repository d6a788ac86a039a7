"""Random models through the whole compiler, against other implementations of ONNX.

    python -m tests.fuzz                                  # fresh seeds until Ctrl-C; goes on where it was stopped
    python -m tests.fuzz --seeds 0:300                    # these
    python -m tests.fuzz --special --models 5000          # with NaN, infinities, signed zeros, subnormals in the data
    python -m tests.fuzz --counts                         # how often each operator and type has been drawn
    python -m tests.fuzz --case NAME                      # one kept case again

The way of one model:

    seed ──draft + makers──▶ Recipe (nodes, arrays) ──evaluate──▶ expected outputs with tolerances
                                │                                        │
                                └─compile, run twice─▶ outputs ─compare─▶ None | Failure ─shrink─▶ cases/NAME.json

`recipe` is the data, `oracle` (with `numpy_*` and `control_flow`) evaluates one node, `held` carries values with the
rounding they may have, `draft` is a recipe under construction, `makers` know the operators,
`trial` compiles and compares, `shrink` makes a failure small.
"""
