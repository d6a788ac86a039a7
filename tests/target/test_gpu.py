"""GPU targets are data: they round-trip through JSON, and wrong data is refused."""

import pytest

from stormdrop.base.errors import UserError
from stormdrop.target.gpu import ARCHITECTURES, gpu
from stormdrop.target.machine import target_from_json
from stormdrop.target.microkernels import PRECISIONS


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gpu_comes_back_from_json(architecture: str) -> None:
    plain = gpu(architecture)
    for target in (plain, plain.with_cold_weights(True), plain.with_precision("bf16")):
        assert target_from_json(target.to_json()) == target


def test_the_limits_are_those_of_the_architecture() -> None:
    limits = {name: g.shared_bytes_per_block >> 10 for name, g in ARCHITECTURES.items()}
    assert limits == {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227}
    assert 60_000 < gpu("sm_90").peak_gflops < 68_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"architecture": "sm_70"},
        {"multiprocessors": 0},
        {"clock_ghz": "fast"},
        {"cold": 1},
        {"coefficients": 3},
        {"precision": "f8"},
    ],
)
def test_a_wrong_gpu_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="not a target"):
        target_from_json({**gpu().to_json(), **wrong})


def test_precisions_have_keys_of_their_own() -> None:
    keys = [gpu().with_precision(p).key() for p in PRECISIONS]
    assert len(set(keys)) == len(PRECISIONS)
    assert gpu().with_precision("f32") == gpu()
    assert keys[0] == gpu().key() == "sm_90/132"
    with pytest.raises(UserError, match="tf32, 3xtf32"):
        gpu().with_precision("f8")


def test_an_unknown_architecture_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UserError, match="sm_80, sm_86"):
        gpu("sm_52")
