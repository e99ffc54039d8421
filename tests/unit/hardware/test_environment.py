"""Which environment variables are recorded, and which a run cannot be given."""

import pytest

from paratune.hardware.environment import (
    RECORD_VARIABLE,
    record_words,
    recorded_environment,
    unset_variables,
    why_not_to_set,
)


def test_known_variables_are_recorded_and_secrets_are_not():
    environ = {
        "NCCL_NSOCKS_PERTHREAD": "4",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TORCH_HUB_TOKEN": "hf_x",
        # Names that begin as known ones do, and hold what nobody may read.
        "CUDA_REGISTRY_AUTH": "x",
        "FI_PASS": "x",
        "TORCH_HUB_PAT": "x",
        "NCCL_LICENCE": "x",
        "MKL_WEBHOOK_URL": "https://user:x@host",
        "HOME": "/home/me",
        "FOO": "1",
        "BAR": "2",
        "MY_API_KEY": "x",
        RECORD_VARIABLE: "FOO,MY_API_KEY,-GLOO_SOCKET_IFNAME",
    }
    assert recorded_environment(environ) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "FOO": "1",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "OMP_NUM_THREADS": "2",
    }
    assert unset_variables(environ) == ["GLOO_SOCKET_IFNAME"]


def test_strategies_without_a_name_are_an_error():
    assert (recorded_environment({}), unset_variables({})) == ({}, [])


def test_names_of_variables_are_passed_to_the_run():
    words = record_words({"FOO": "1", "BAR": None, "OMP_NUM_THREADS": None})
    assert words == "-BAR,FOO,-OMP_NUM_THREADS"
    assert unset_variables({RECORD_VARIABLE: words}) == ["BAR", "OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NCCL_DEBUG", None),
        ("PARATUNE_CACHE", None),
        ("TOKENIZERS_PARALLELISM", None),
        ("KEYBOARD", None),
        ("RANK", "set by paratune and torchrun in each process"),
        ("MASTER_ADDR", "set by paratune and torchrun"),
        ("TORCHELASTIC_RUN_ID", "set by paratune and torchrun"),
        ("PARATUNE_RENDEZVOUS", "internal to paratune"),
        ("SLURM_PROCID", "set by Slurm"),
        ("COLUMNS", "set by paratune for the logs"),
        ("HF_TOKEN", "looks like a secret"),
        ("AWS_SECRET_ACCESS_KEY", "looks like a secret"),
        ("1A", "is not the name of a variable"),
        ("A=B", "is not the name of a variable"),
        ("A;rm", "is not the name of a variable"),
        ("", "is not the name of a variable"),
    ],
)
def test_variables_that_a_matrix_cannot_set(name: str, part: str | None):
    reason = why_not_to_set(name)
    assert reason is None if part is None else part in (reason or "")
