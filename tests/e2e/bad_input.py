"""Cases of bad input as data: the command, its exit code, and the parts of its message."""

from collections.abc import Callable
from pathlib import Path

from bad_case import Case, damaged_model, text_file, train_with
from bad_data import COLUMNS, FILES, QUESTIONS, RUNNING_TEXT

from paratune.errors import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DATA, EXIT_NOT_FINITE


def _no_tokenizer(model: Path) -> None:
    for path in model.glob("*token*"):
        path.unlink()


def _truncated(name: str) -> Callable[[Path], None]:
    def truncate(model: Path) -> None:
        whole = (model / name).read_bytes()
        (model / name).write_bytes(whole[: len(whole) // 2])

    return truncate


MODELS = [
    Case(
        "model folder without tokenizer",
        train_with("model.name=bare"),
        EXIT_CONFIG,
        ("bare has none of tokenizer.json", "it has config.json, model.safetensors", "model.tokenizer"),
        prepare=damaged_model("bare", _no_tokenizer),
    ),
    Case(
        "model folder without weights",
        train_with("model.name=light"),
        EXIT_CONFIG,
        ("light", "model.safetensors", "model.from_scratch: true"),
        prepare=damaged_model("light", lambda model: (model / "model.safetensors").unlink()),
    ),
    Case(
        "torn weights",
        train_with("model.name=torn"),
        EXIT_CONFIG,
        ("model: torn", "weights are incomplete"),
        prepare=damaged_model("torn", _truncated("model.safetensors")),
    ),
    Case(
        "truncated configuration of a model",
        train_with("model.name=torn"),
        EXIT_CONFIG,
        ("torn/config.json", "not a valid JSON file"),
        prepare=damaged_model("torn", _truncated("config.json")),
    ),
    Case(
        "hub name offline",
        train_with("model.name=google-bert/bert-base-uncased"),
        EXIT_CONFIG,
        (
            "google-bert/bert-base-uncased is not a local folder, its tokenizer is not in the cache of the hub, "
            "and HF_HUB",
            "a folder",
        ),
    ),
    Case(
        "hub data set offline",
        train_with("data.train=hub:imdb"),
        EXIT_DATA,
        ("hub:imdb", "HF_HUB_OFFLINE", "save_to_disk"),
    ),
    Case("no such model folder", train_with("model.name=./modle"), EXIT_CONFIG, ("./modle is not a folder",)),
    Case(
        "max_length larger than the positions of the model",
        train_with("data.max_length=5000"),
        EXIT_CONFIG,
        ("data.max_length: 5000", "at most 64"),
    ),
    Case(
        "no space for text",
        train_with("data.max_length=2"),
        EXIT_CONFIG,
        ("data.max_length: 2 leaves no tokens for text next to 2 special tokens", "at least 3 is needed"),
    ),
    Case(
        "unknown option of the model",
        train_with("model.overrides={hidden_dropout: 0}"),
        EXIT_CONFIG,
        ("model.overrides.hidden_dropout", "did you mean hidden_dropout_prob?"),
    ),
]

SETTINGS = [
    Case(
        "unknown --set key",
        train_with("train.lerning_rate=1"),
        EXIT_CONFIG,
        ("--set: train.lerning_rate is not an option of train; did you mean learning_rate?",),
    ),
    Case(
        "--set without a value",
        train_with("train.learning_rate"),
        EXIT_CONFIG,
        ("'train.learning_rate' cannot be set", "="),
    ),
    Case("unknown option", ("train", "c.yaml", "--foo"), EXIT_CONFIG, ("Unknown option: --foo",)),
    Case("option as a flag", ("train", "c.yaml", "--weight-decay", "3"), EXIT_CONFIG, ("--set train.weight_decay=3",)),
    Case("data as configuration", ("train", "data.csv"), EXIT_CONFIG, ("data.csv is a data file", "data.train")),
    Case("unknown command", ("trian", "c.yaml"), EXIT_CONFIG, ('Did you mean "train"?',)),
    Case("no configuration named", ("train",), EXIT_CONFIG, ("error: CONFIG is missing", "paratune train my.yaml")),
    Case("--nproc 0", ("train", "c.yaml", "--nproc", "0"), EXIT_CONFIG, ("--nproc 0: at least 1 is needed",)),
    Case(
        "--nproc 2 with strategy single",
        ("train", "c.yaml", "--nproc", "2"),
        EXIT_CONFIG,
        ("strategy.kind: single runs in 1 process, and the run has 2", "set strategy.kind: ddp"),
    ),
    Case("--resume and --overwrite", ("train", "c.yaml", "--resume", "--overwrite"), EXIT_CONFIG, ("use one of them",)),
    Case(
        "batch not divisible by ranks",
        (*train_with("strategy=ddp"), "--nproc", "3"),
        EXIT_CONFIG,
        ("batch.global is 16, which 3 ranks cannot share evenly", "15 or 18"),
    ),
    Case(
        "batch not divisible by micro-batches",
        train_with("batch.micro_batch_size=5"),
        EXIT_CONFIG,
        ("batch.micro_batch_size", "5", "16", "4 or 8"),
    ),
    Case(
        "no GPU",
        train_with("device=cuda"),
        EXIT_CONFIG,
        ("device: cuda, but PyTorch sees no GPU here", "device: cpu"),
    ),
    Case(
        "fp16 on a CPU",
        train_with("precision=fp16", "device=cpu"),
        EXIT_CONFIG,
        ("precision: fp16 is for GPUs (4 to 300 times slower than fp32 on a CPU", "use precision: fp32"),
    ),
    Case(
        "offloading without an accelerator",
        train_with("strategy={kind: zero3, cpu_offload: true}", "device=cpu"),
        EXIT_CONFIG,
        ("strategy.cpu_offload: true has no effect with device: cpu",),
    ),
    Case(
        "activation checkpointing of more blocks than the model has",
        train_with("train.activation_checkpointing=9"),
        EXIT_CONFIG,
        ("train.activation_checkpointing: 9 is more than the 2 blocks of this model", "set at most 2"),
    ),
    Case(
        "no such strategy module",
        train_with("strategy={kind: 'nosuch:Strategy'}"),
        EXIT_CONFIG,
        ("strategy.kind: nosuch:Strategy cannot be imported", "No module named 'nosuch'"),
    ),
    Case(
        "a class that is not a strategy",
        train_with("strategy={kind: 'pathlib:Path'}"),
        EXIT_CONFIG,
        ("strategy.kind: pathlib:Path is not a strategy", "docs/explanation/strategies.md"),
    ),
    Case(
        "wrong options of an outside strategy",
        train_with("strategy={kind: 'paratune.strategies.single:SingleStrategy', options: {speed: 2}}"),
        EXIT_CONFIG,
        ("strategy.options of paratune.strategies.single:SingleStrategy", "unexpected keyword argument 'speed'"),
    ),
    Case(
        "an outside strategy that raises an error",
        train_with("strategy={kind: 'outside:Refuses', options: {speed: 2}}"),
        EXIT_CONFIG,
        ("strategy.kind: outside:Refuses cannot be made: KeyError: 'speed'",),
    ),
    Case(
        "an outside module that cannot be imported",
        train_with("strategy={kind: 'broken:Strategy'}"),
        EXIT_CONFIG,
        ("strategy.kind: broken:Strategy cannot be imported: ZeroDivisionError",),
        prepare=text_file("broken.py", "1 / 0\n"),
    ),
]

PLACES = [
    Case(
        "a file at the path of the run folder",
        train_with("run.folder=data.csv"),
        EXIT_CHECKPOINT,
        ("data.csv/c cannot be created, because data.csv is a file", "change run.folder"),
    ),
    Case(
        "a run folder that cannot be created",
        train_with("run.folder=/proc/nowhere"),
        EXIT_CHECKPOINT,
        ("/proc/nowhere/c cannot be used", "change run.folder"),
    ),
    Case(
        "a folder with other files",
        train_with("run.folder=.", "run.name=model"),
        EXIT_CHECKPOINT,
        ("model contains files but no run", "nothing in it was changed"),
    ),
    Case(
        "a cache folder that cannot be created",
        train_with("data.cache_dir=/proc/nowhere"),
        EXIT_DATA,
        ("tokens cannot be written to /proc/nowhere", "data.cache_dir or $PARATUNE_CACHE"),
    ),
]

OTHER_COMMANDS = [
    Case(
        "evaluate without a text column",
        ("evaluate", "model", "--data", "data.csv"),
        EXIT_CONFIG,
        ("model does not record which column has the text", "--text COLUMN"),
    ),
    Case(
        "evaluate a missing file",
        ("evaluate", "model", "--data", "dota.csv", "--text", "text"),
        EXIT_DATA,
        ("dota.csv does not exist; did you mean data.csv?",),
    ),
    Case(
        "predict into an unsupported file format",
        ("predict", "model", "--input", "data.csv", "--out", "out.txt", "--text", "text"),
        EXIT_CONFIG,
        ("--out out.txt", ".csv, .jsonl, .parquet"),
    ),
    Case(
        "predict into a missing folder",
        ("predict", "model", "--input", "data.csv", "--out", "no/out.csv", "--text", "text"),
        EXIT_CONFIG,
        ("no/out.csv", "no is not a folder"),
    ),
    Case(
        "predict into an existing file",
        ("predict", "model", "--input", "data.csv", "--out", "data.csv", "--text", "text"),
        EXIT_CONFIG,
        ("data.csv exists", "--overwrite"),
    ),
    Case(
        "batch size 0", ("evaluate", "model", "--data", "data.csv", "--batch-size", "0"), EXIT_CONFIG, ("at least 1",)
    ),
    Case("report without a run", ("report",), EXIT_CONFIG, ("needs at least one run folder", "runs/NAME")),
    Case(
        "report of another folder",
        ("report", "model"),
        EXIT_CHECKPOINT,
        ("model is not a run: it has no run.json",),
    ),
    Case("data without a file", ("data", "d.yaml"), EXIT_CONFIG, ("d.yaml does not exist",)),
    Case(
        "config init into an existing file",
        ("config", "init", "c.yaml", "--task", "regression"),
        EXIT_CONFIG,
        ("c.yaml", "[output.exists]"),
    ),
    Case(
        "config init with unknown task",
        ("config", "init", "d.yaml", "--task", "ranking"),
        EXIT_CONFIG,
        ('"regression"',),
    ),
]

NOT_FINITE = Case(
    "loss not finite",
    train_with("train.learning_rate=1e30", "train.max_grad_norm="),
    EXIT_NOT_FINITE,
    ("step 2: the loss is nan", "learning rate 9.66667e+29", "Try a smaller train.learning_rate"),
)

CASES = [*QUESTIONS, *FILES, *COLUMNS, *RUNNING_TEXT, *MODELS, *SETTINGS, *PLACES, *OTHER_COMMANDS]
"""All cases that must not leave files behind."""
