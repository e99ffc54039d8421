"""Strategies that shard weights never hold the whole model in a process: not on the host, and not on the device."""

import json
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from start_ranks import one_rank
from tiny import tiny_tokenizer
from transformers import BertConfig, BertForSequenceClassification

pytestmark = pytest.mark.slow
WORLD_SIZES = (2, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of 403 MB, in 32 and in 16 bits, and a small one."""
    folder = tmp_path_factory.mktemp("start")
    for name, num_layers in (("small", 4), ("float32", 8), ("bfloat16", 8)):
        sizes = {"hidden_size": 1024, "num_hidden_layers": num_layers, "num_attention_heads": 16}
        model = BertForSequenceClassification(BertConfig(vocab_size=2000, intermediate_size=4096, **sizes))
        model.to(torch.bfloat16 if name == "bfloat16" else torch.float32).save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_process_holds_its_shard_and_two_blocks_at_most(
    world_size: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # the C library returns freed memory at once
    torch.multiprocessing.spawn(one_rank, (world_size, str(folder), str(tmp_path)), nprocs=world_size)
    for rank in range(world_size):
        for name, about in json.loads((tmp_path / f"{rank}.json").read_text()).items():
            assert about["model"] > 400e6
            limit = about["model"] / world_size + 2 * about["block"]
            assert (about["anonymous"] < limit, about["live"] < limit) == (True, True), (name, rank, about)
