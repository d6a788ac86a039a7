"""The identity of a task: sizes and structure count, names do not."""

from __future__ import annotations

import stormdrop as sd
from stormdrop.operators.catalogue import build


def matmul(names: tuple[str, str, str], n: int = 8, k: int = 5) -> sd.Task:
    a, b = sd.tensor(names[0], (n, k)), sd.tensor(names[1], (k, 7), constant=True)
    i, j, r = sd.axis(n), sd.axis(7), sd.reduce_axis(k)
    return sd.Task([sd.compute(names[2], (i, j), sd.sum(a[i, r] * b[r, j], r))], name="".join(names))


def test_names_do_not_matter() -> None:
    assert matmul(("A", "B", "C")).digest == matmul(("x", "y", "z")).digest


def test_sizes_matter_although_the_class_is_the_same() -> None:
    small, large = matmul(("A", "B", "C")), matmul(("A", "B", "C"), n=9)
    assert small.class_key == large.class_key
    assert small.digest != large.digest


def test_strides_and_padding_matter() -> None:
    digests = {build("C2D", [1, 8, 8, 4, 4, 3, *rest]).digest for rest in ([1, 1], [2, 1], [1, 0])}
    assert len(digests) == 3


def test_a_task_read_from_json_has_the_same_digest() -> None:
    task = matmul(("A", "B", "C"))
    assert sd.Task.from_json(task.to_json()).digest == task.digest
