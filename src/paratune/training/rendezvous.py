"""Connects the processes of a run, checks that they train the same thing, and detects the loss of one."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import paratune
from paratune import hardware
from paratune.config.own_code import own_code_record, source_hash
from paratune.config.plain import flatten, one_line
from paratune.config.strategy_sections import OutsideStrategy
from paratune.engine.stop import StopRequest
from paratune.errors import LaunchError, ParatuneError
from paratune.strategies.process_group import close_process_group, open_process_group, reduce_over_ranks
from paratune.strategies.protocol import gather_texts
from paratune.training.prepare import Prepared

MAY_DIFFER = frozenset({"data.cache_dir"})
"""Options whose value may differ between nodes, because it names a path on the local disk."""
COMPARED_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "deepspeed")
"""Packages whose version may change the results."""
LOST_PEER_MESSAGES = (
    "gloo/transport",
    "Connection closed by peer",
    "Connection reset by peer",
    "remote process exited",
    "Broken pipe",
)
"""Parts of the messages of gloo and NCCL after another process has ended."""


@contextmanager
def process_group(prepared: Prepared, stop: StopRequest) -> Iterator[None]:
    """Open the process group for the block, unless the strategy has only one process. Collective.

    Raises:
        LaunchError: The processes cannot connect, have different settings or data, or one of them ended in the block.
        Stopped: A signal came while this process waited for the others.
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
        if isinstance(error, ParatuneError) or not is_peer_lost(error):
            raise
        first = str(error).strip().splitlines()[0].partition(". ")[0]  # gloo's second sentence is advice
        raise LaunchError(
            f"rank {prepared.place.rank} of {prepared.place.world_size} lost the connection to another rank, which "
            f"has ended: the log of that rank, or of the launcher, has the reason ({first})",
            code="launch.rank_lost",
            rank=prepared.place.rank,
            world_size=prepared.place.world_size,
        ) from error
    finally:
        close_process_group()


def is_peer_lost(error: BaseException) -> bool:
    """Return whether a collective raised an error because another process has ended."""
    return any(words in str(error) for words in LOST_PEER_MESSAGES)


def facts(prepared: Prepared) -> dict[str, Any]:
    """Return the values that must be equal on all ranks: options, hashes of the data, versions and code."""
    config = prepared.config.strategy
    own_code = {f"code of {key}": code["sha256"] for key, code in own_code_record(prepared.config).items()}
    if isinstance(config, OutsideStrategy):
        own_code[f"code of {config.kind}"] = source_hash(config.kind, "strategy.kind")
    versions = hardware.package_versions()
    return {
        **{key: value for key, value in flatten(prepared.loaded.values).items() if key not in MAY_DIFFER},
        **{f"content of data.{name} (SHA-256)": split.fingerprint for name, split in prepared.splits.items()},
        **{name: versions[name] for name in COMPARED_PACKAGES},
        "paratune": paratune.__version__,
        "code of paratune (SHA-256)": file_hash(sorted(Path(paratune.__file__).parent.rglob("*.py"))),
        **own_code,
        **{f"teacher {about['name']}": about["inputs_sha256"] for about in prepared.teachers},
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
        LaunchError: On every rank, with the same text: the keys that differ, with the ranks of each value.
    """
    # 32 bytes instead of the text with hundreds of options; the texts are sent only for the error message.
    text = json.dumps(values, sort_keys=True)
    digest = torch.tensor(list(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
    digests = reduce_over_ranks(digest[None], "concat")
    if bool((digests == digests[0]).all()):
        return
    rank_values = [json.loads(rank_text) for rank_text in gather_texts(reduce_over_ranks, text)]
    lines = [
        f"  {key}: {_values_with_ranks([values.get(key) for values in rank_values])}"
        for key in dict.fromkeys(key for values in rank_values for key in values)
        if any(values.get(key) != rank_values[0].get(key) for values in rank_values)
    ]
    raise LaunchError(
        f"the {len(rank_values)} processes have different settings, data or code, so none started to train:\n"
        + "\n".join(lines)
        + "\nstart all of them with the same configuration, data and code",
        code="launch.ranks_differ",
    )


def _values_with_ranks(values: Sequence[Any]) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(one_line(value), []).append(str(rank))
    return "; ".join(f"{_short(value)} on rank {', '.join(numbers)}" for value, numbers in ranks.items())


def _short(text: str) -> str:
    """Shorten a long text; for a hash the first 16 characters are enough."""
    return text if len(text) <= 60 else f"{text[:16]}..." if text.isalnum() else f"{text[:60]}..."
