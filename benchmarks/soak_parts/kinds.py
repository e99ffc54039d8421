"""The commands that are killed: the files that each needs, how it is restarted, and its result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paratune.records import read_json

from . import worlds
from .results import Result, files_below, run_result, sha256

RESUME = ("--resume",)


@dataclass(frozen=True)
class Kind:
    """A command that trials kill and restart until it finishes."""

    name: str
    words: tuple[str, ...]
    """After `paratune`."""
    again: tuple[str, ...]
    """Arguments added after a kill."""
    prepare: Callable[[Path], None]
    """Fills a folder once; each trial gets a copy."""
    result: Callable[[Path], Result]
    """Returns the result in a folder after the command."""
    share: float = 1.0
    """Share of the trials, relative to other kinds."""
    allowed: tuple[int, ...] = ()
    """Further exit codes after a kill, besides those that every command may have."""
    refuses: tuple[int, ...] = ()
    """Exit codes of a command whose work is already done, because the kill came after its last operation."""
    missing: str | None = None
    """Reason why it cannot run here."""
    before: tuple[str, ...] = ()
    """A command that creates this one's input, once, without kills."""


def named_run(folder: Path) -> Result:
    return run_result(folder / "runs" / "c")


def _adapter_run(folder: Path) -> Result:
    """Remove the folder, which differs between trials, from the name of the base model; paratune.json has its hash."""
    result, name = named_run(folder), "adapter_config.json"
    del result["model"]["paratune.json"]
    result["model"][name] = (folder / "runs/c/model" / name).read_text().replace(str(folder), "")
    return result


def _train(name: str, prepare: Callable[[Path], None], *more: str, **options: Any) -> Kind:
    kind = Kind(name, ("train", "c.yaml", *more), RESUME, prepare, named_run)
    return replace(kind, **options)


def _strategy(name: str, value: str, *more: str, **options: Any) -> Kind:
    two = ("--nproc", "2", "--set", f"strategy={value}", *more)
    return _train(name, worlds.sentences, *two, **{"share": 2.0, **options})


def _matrix_result(folder: Path) -> Result:
    runs = sorted((folder / "runs/m/runs").iterdir())
    states = [cell["state"] for cell in read_json(folder / "runs/m/sweep.json")["cells"]]
    return {"states": states, **{run.name: run_result(run) for run in runs if not run.name.startswith(".")}}


def _sweep(name: str, prepare: Callable[[Path], None], *more: str, share: float = 1.0) -> Kind:
    words = ("sweep", "m.yaml", *more)
    return Kind(name, words, ("--retry-failed",), prepare, _matrix_result, share=share, allowed=(1,))


def _certificate(folder: Path) -> Result:
    record = read_json(folder / "runs/c.certificate/certificate.json")
    return {key: record[key] for key in sorted(record) if key in ("verdict", "strategies", "rows", "steps", "results")}


def _corpus_result(folder: Path) -> Result:
    return files_below(folder / "work", ("part-*.parquet", "dropped-*.parquet", "counts-*.json"))


def _bundle_result(folder: Path) -> Result:
    from paratune.hub.bundle import read_manifest

    manifest = read_manifest(folder / "b.tar")
    return {"files": [[packed.name, packed.sha256] for packed in manifest.files], "config": dict(manifest.config)}


def _unbundled(folder: Path) -> Result:
    """Remove the folder, which differs between trials, from the configuration."""
    config = (folder / "exp" / "config.yaml").read_text().replace(str(folder), "")
    return {**files_below(folder / "exp"), "config.yaml": config}


def _report_result(folder: Path) -> Result:
    return files_below(folder / "out", ("*.md", "*.csv", "*.tex"))


def _rows(folder: Path) -> Result:
    return {"rows": sha256(folder / "out.parquet")}


def _use(name: str, words: tuple[str, ...], result: Callable[[Path], Result], **options: Any) -> Kind:
    """Return a command that is restarted with the same arguments."""
    return Kind(name, words, (), options.pop("prepare", worlds.sentences), result, **options)


_TRAIN = ("train", "c.yaml")
_LORA = "model.adapter={kind: lora, rank: 4, dropout: 0.1}"
_SHARDED = ("--set", "checkpoint.sharded=true")
_NO_PEFT = None if find_spec("peft") else "the extra hub is not installed"
_BUNDLE = ("bundle", "c.yaml", "-o", "b.tar")
_OUTPUT = ("--input", "new.csv", "--out", "out.parquet", "--overwrite")

KINDS: tuple[Kind, ...] = (
    _train("single", worlds.sentences, share=4.0),
    _train("regression", worlds.regression),
    _train("ordinal-pairs", worlds.pairs),
    _train("multi-label", worlds.labels),
    _train("questions", worlds.questions),
    _train("masked-lm", worlds.masked),
    _train("workers", worlds.sentences, "--set", "data.num_workers=2"),
    _train("adapter", worlds.sentences, "--set", _LORA, missing=_NO_PEFT),
    _train(
        "adapter-alone",
        worlds.sentences,
        "--set",
        f"{_LORA[:-1]}, save: adapter}}",
        missing=_NO_PEFT,
        result=_adapter_run,
    ),
    _train("adamw-8bit", worlds.sentences, "--set", "train.optimizer=adamw_8bit"),
    _train("adafactor", worlds.sentences, "--set", "train.optimizer=adafactor"),
    _train("own-code", worlds.own_code),
    _train("embedding", worlds.embedding),
    _train("windows", worlds.windows),
    _train("distil", worlds.distillation, before=("train", "teacher.yaml")),
    _strategy("ddp", "ddp"),
    _strategy("zero1", "zero1"),
    _strategy("zero2", "zero2"),
    _strategy("zero3", "zero3"),
    _strategy("pipeline", "{kind: pipeline, stages: 2}"),
    _strategy("zero2-shards", "zero2", *_SHARDED),
    _strategy("zero3-shards", "zero3", *_SHARDED),
    _strategy("pipeline-shards", "{kind: pipeline, stages: 2}", *_SHARDED),
    _strategy(
        "deepspeed",
        "{kind: deepspeed, stage: 2}",
        share=0.5,
        missing=None if find_spec("deepspeed") else "the extra deepspeed is not installed",
    ),
    _sweep("sweep", worlds.matrix, share=2.0),
    _sweep("parallel", worlds.side_by_side, "--parallel", "2"),
    _sweep("folds", worlds.folds),
    _sweep("until", worlds.seeds, "--until", "quality"),
    _use(
        "certify",
        ("certify", "c.yaml", "--strategies", "ddp", "--steps", "2"),
        _certificate,
        allowed=(1,),
    ),
    _use(
        "corpus",
        ("corpus", "corpus.yaml"),
        _corpus_result,
        prepare=worlds.corpus,
        missing=None if find_spec("trafilatura") and find_spec("warcio") else "the extra corpus is not installed",
    ),
    _use(
        "tokenizer",
        ("tokenizer", "train", "data.csv", "-o", "out", "--vocab-size", "200", "--overwrite"),
        lambda folder: files_below(folder / "out"),
    ),
    _use("predict", ("predict", "runs/c", *_OUTPUT), _rows, before=_TRAIN),
    _use(
        "pseudo-label",
        ("pseudo-label", "runs/c", *_OUTPUT, "--threshold", "0.5001"),
        _rows,
        before=_TRAIN,
    ),
    _use(
        "explain",
        ("explain", "runs/c", "--input", "new.csv", "--rows", "0", "--out", "out"),
        lambda folder: files_below(folder / "out", ("report.json",)),
        before=_TRAIN,
    ),
    _use(
        "feedback",
        ("feedback", "runs/c", "--input", "new.csv", "--out", "out", "--coverage", "0.5"),
        lambda folder: files_below(folder / "out", ("report.json",)),
        before=_TRAIN,
        prepare=worlds.regression,
    ),
    _use(
        "quantize",
        ("quantize", "runs/c", "--to", "int8", "--out", "out"),
        lambda folder: files_below(folder / "out", ("*.onnx", "config.json", "tokenizer.json")),
        before=_TRAIN,
        refuses=(2,),
        missing=None if find_spec("onnxruntime") and find_spec("onnx") else "the extra serve is not installed",
    ),
    _use(
        "compress",
        ("compress", "runs/c", "--to", "bf16", "--rows", "8", "--timed-rows", "2"),
        lambda folder: files_below(
            folder / "runs" / "c" / "compressed", ("model.safetensors", "predictions.*.parquet")
        ),
        before=_TRAIN,
    ),
    _use("report", ("report", "runs/c", "--out", "out"), _report_result, before=_TRAIN),
    _use("bundle", _BUNDLE, _bundle_result),
    _use("unbundle", ("unbundle", "b.tar", "-d", "exp"), _unbundled, before=_BUNDLE, refuses=(3,)),
)
