"""The processes of a run meet: they find each other, see that all are to train the same, and say when one is lost."""

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import paratune
from paratune import hardware
from paratune.config.differences import flatten
from paratune.config.plain import one_line
from paratune.config.strategy_sections import OutsideStrategy
from paratune.engine.stop import StopRequest
from paratune.errors import LaunchError, ParatuneError
from paratune.strategies.process_group import close_process_group, open_process_group, reduce_over_ranks
from paratune.train.prepare import Prepared

MAY_DIFFER = frozenset({"data.cache_dir"})
"""Options that each node may have its own value of: where its own disk is."""
COMPARED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "deepspeed")
"""Whose version may change what is computed."""
LOST = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "remote process exited",
    "Broken pipe",
)
"""What gloo and NCCL say when another process is gone."""


@contextmanager
def met(prepared: Prepared, stop: StopRequest) -> Iterator[None]:
    """Bring up the process group for the block, if the strategy has several processes. Collective.

    Raises:
        LaunchError: The processes do not find each other, are not to train the same, or one of them died in the block.
        Stopped: A signal came while this one waited for the others.
    """
    if prepared.traits.max_world_size == 1:
        yield
        return
    with stop.ends_at_once("waiting for the other processes"):
        open_process_group(prepared.place, prepared.device)
    try:
        check_same(facts(prepared))
        yield
    except RuntimeError as error:
        if isinstance(error, ParatuneError) or not is_loss_of_a_rank(error):
            raise
        first = str(error).strip().splitlines()[0].partition(". ")[0]  # gloo goes on with what one might do
        raise LaunchError(
            f"rank {prepared.place.rank} of {prepared.place.world_size} lost the connection to another rank, "
            f"which ended before: the log of that rank, or of the launcher, has the reason ({first})",
            code="launch.rank_lost",
            rank=prepared.place.rank,
            world_size=prepared.place.world_size,
        ) from error
    finally:
        close_process_group()


def is_loss_of_a_rank(error: BaseException) -> bool:
    """Say whether an error is what a collective raises when another process has gone."""
    return any(words in str(error) for words in LOST)


def facts(prepared: Prepared) -> dict[str, Any]:
    """Return what all processes must have in common: options, the content of the data, and the code."""
    config = prepared.config.strategy
    own_code = {}
    if isinstance(config, OutsideStrategy):
        source = inspect.getsourcefile(prepared.strategy_type)
        own_code = {f"code of {config.kind}": file_hash([Path(source)]) if source else None}
    versions = hardware.package_versions()
    return {
        **{key: value for key, value in flatten(prepared.loaded.values).items() if key not in MAY_DIFFER},
        **{f"content of data.{name} (SHA-256)": split.fingerprint for name, split in prepared.splits.items()},
        **{name: versions[name] for name in COMPARED_PACKAGES},
        "paratune": paratune.__version__,
        "code of paratune (SHA-256)": file_hash(sorted(Path(paratune.__file__).parent.rglob("*.py"))),
        **own_code,
    }


def file_hash(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over the names and contents of files, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def check_same(values: Mapping[str, Any]) -> None:
    """Compare plain values over all processes. Collective.

    Raises:
        LaunchError: On every rank, with the same text: which rank differs in which key.
    """
    text = json.dumps(values, sort_keys=True).encode()
    digest = torch.tensor(list(hashlib.sha256(text).digest()), dtype=torch.uint8)
    digests = reduce_over_ranks(digest[None], "concat")
    if bool((digests == digests[0]).all()):
        return
    everyones = [json.loads(each) for each in gather(text)]
    lines = [
        f"  {key}: {_who_has_what([each.get(key) for each in everyones])}"
        for key in dict.fromkeys(key for each in everyones for key in each)
        if any(each.get(key) != everyones[0].get(key) for each in everyones)
    ]
    raise LaunchError(
        f"the {len(everyones)} processes are not to train the same, and none began:\n"
        + "\n".join(lines)
        + "\nstart all of them with the same configuration, data and code",
        code="launch.ranks_differ",
    )


def gather(own: bytes) -> list[bytes]:
    """Return the bytes of every rank, in rank order, on every rank. Collective."""
    lengths = reduce_over_ranks(torch.tensor([len(own)]), "concat").tolist()
    together = bytes(reduce_over_ranks(torch.tensor(list(own), dtype=torch.uint8), "concat").tolist())
    parts = []
    for length in lengths:
        parts.append(together[:length])
        together = together[length:]
    return parts


def _who_has_what(values: Sequence[Any]) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(one_line(value), []).append(str(rank))
    return "; ".join(f"{_short(shown)} on rank {', '.join(who)}" for shown, who in ranks.items())


def _short(text: str) -> str:
    """Shorten long texts; hashes are told apart by their beginning."""
    return text if len(text) <= 60 else f"{text[:16]}..." if text.isalnum() else f"{text[:60]}..."
