"""Writes the model card of a run, `model/README.md`, from its record.

It has no paths, host names or user names, and is the same for the same record. Texts from files are escaped.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paratune import records
from paratune.base.atomic import write_text
from paratune.base.text import listing, plain
from paratune.base.units import NOT_AVAILABLE, format_bytes, format_duration, format_number
from paratune.config.feasibility import DEMO_MODEL
from paratune.config.metric_names import LABELS, metric_name
from paratune.config.sections import named_columns
from paratune.config.sources import local_path
from paratune.errors import CheckpointError, DataError, ParatuneError, os_error_as
from paratune.models.locate import locate
from paratune.records.own import TASK_FILE
from paratune.verdicts.scoring import CannotTell, read_rows
from paratune.verdicts.slices import score_records, scored_task

CARD_FILE: Final = "README.md"
_TEMPLATE: Final = Path(__file__).with_suffix(".md")
_ADAPTER_FILE: Final = "adapter_config.json"

_PIPELINES: Final = {
    **dict.fromkeys(("classification", "multi_label", "ordinal", "regression"), "text-classification"),
    "token_classification": "token-classification",
    "qa": "question-answering",
    "multiple_choice": "multiple-choice",
    "mlm": "fill-mask",
    "embedding": "sentence-similarity",
}
"""Pipelines of transformers, or of sentence-transformers, by the kind of the task."""
_LIBRARIES: Final = {"embedding": "sentence-transformers"}
"""Libraries that load a model folder, where it is not transformers."""
_METRIC_IDS: Final = {
    **dict.fromkeys(("f1_macro", "f1_micro", "f1_weighted"), "f1"),
    "matthews": "matthews_correlation",
    "r2": "r_squared",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact": "exact_match",
}
"""Names of metrics on the hub, where they differ."""
_AUTO_CLASSES: Final = {
    **dict.fromkeys(("classification", "multi_label", "ordinal", "regression"), "AutoModelForSequenceClassification"),
    "token_classification": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "mlm": "AutoModelForMaskedLM",
    "embedding": "AutoModel",
}
_PACKAGES: Final = ("python", "paratune", "torch", "transformers", "tokenizers", "safetensors", "peft", "cuda")
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>|~&$])")
"""Characters with a meaning inside a line of Markdown."""
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclass(frozen=True)
class BaseModel:
    """The model that a run started from."""

    name: str | None
    """Of a folder only its last part; None for new weights."""
    hub_name: str | None
    licence: str | None
    """In its own card, if that is on this machine."""


def write_card(folder: Path, run: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Write the model card of a run atomically; an existing one is replaced.

    `run` is the content of run.json, `summary` that of summary.json.

    Raises:
        CheckpointError: The card cannot be written.
    """
    path = folder / records.MODEL_FOLDER / CARD_FILE
    with os_error_as(CheckpointError, f"{path} cannot be written", "free space there", code="output.not_writable"):
        write_text(path, card_text(folder, run, summary))


def card_text(folder: Path, run: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the model card: metadata of the Hugging Face hub in YAML, then Markdown; arguments as `write_card`."""
    from huggingface_hub import ModelCard

    is_adapter = (folder / records.MODEL_FOLDER / _ADAPTER_FILE).is_file()
    base = _base_model(run["config"]["model"])
    kind, labels, model = run["task"]["kind"], run["task"].get("labels") or [], run["config"]["model"]
    own, columns = model.get("head") or model.get("class"), run["config"]["data"]["columns"]
    num_targets = 1 if run["config"]["task"].get("raters") else len(named_columns(columns.get("label")))
    saved = records.read_json(folder / records.MODEL_FOLDER / TASK_FILE)
    card = ModelCard.from_template(
        _metadata(folder.name, run, summary, base.hub_name, is_adapter=is_adapter),
        template_str=_TEMPLATE.read_text(encoding="utf-8"),
        md=_escaped,
        py=repr,
        name=folder.name,
        kind=kind,
        labels=labels,
        base=base.name,
        scores=list(_scores(folder, run, summary)),
        constant=(summary.get("baseline") or {}).get("predicts"),
        best=summary.get("best"),
        auto_class=_AUTO_CLASSES.get(kind),
        is_adapter=is_adapter,
        num_outputs={"regression": num_targets, "ordinal": len(labels) - 1}.get(kind, len(labels)),
        own=own and plain(own["function"] if isinstance(own, Mapping) else own),
        texts=[columns[key] for key in ("text", "text_pair", "choices") if columns.get(key)],
        data=list(_data(run)),
        training=_training(run, summary, base, saved),
        versions=[f"{name} {run['versions'][name]}" for name in _PACKAGES if run["versions"].get(name)],
    )
    return f"{card}\n"


def _metadata(
    name: str, run: Mapping[str, Any], summary: Mapping[str, Any], base: str | None, *, is_adapter: bool
) -> Any:
    """Return the metadata, in the fields of the hub's specification of model cards."""
    from huggingface_hub import ModelCardData

    kind = run["task"]["kind"]
    sources = [source for split in run["data"].values() for source in _sources(split)]
    return ModelCardData(
        library_name="peft" if is_adapter else _LIBRARIES.get(kind, "transformers"),
        pipeline_tag=_PIPELINES.get(kind),
        base_model=base,
        datasets=list(dict.fromkeys(hub for source in sources if (hub := _hub_data_set(source)))) or None,
        metrics=list(dict.fromkeys(_METRIC_IDS.get(metric, metric) for metric in run["task"]["metrics"])) or None,
        tags=["paratune"],
        model_name=plain(name),
        eval_results=list(_results(run, summary)) or None,
    )


def _results(run: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Any]:
    from huggingface_hub import EvalResult

    pipeline = _PIPELINES.get(run["task"]["kind"], plain(run["task"]["kind"]))
    for split, scores in summary["scores"].items():
        source = next(iter(_sources(run["data"].get(split))), split)
        for metric, value in scores.items():
            if value is not None and metric != "loss":
                yield EvalResult(
                    task_type=pipeline,
                    dataset_type=_hub_data_set(source) or _source_name(source),
                    dataset_name=_source_name(source),
                    dataset_split=plain(split),
                    metric_type=_METRIC_IDS.get(metric, metric),
                    metric_name=LABELS.get(metric, plain(metric)),
                    metric_value=float(f"{value:.6g}"),
                )


def _scores(folder: Path, run: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of scores, beside those of a constant answer."""
    constant = (summary.get("baseline") or {}).get("scores") or {}
    for split, scores in summary["scores"].items():
        num_rows, intervals = (run["data"].get(split) or {}).get("num_samples"), _intervals(folder, run, split)
        for metric, value in scores.items():
            if metric == "f1" and len(run["task"].get("labels") or ()) > 2 and "f1_macro" in scores:
                continue  # f1 is f1_macro
            interval, other = intervals.get(metric), (constant.get(split) or {}).get(metric)
            between = NOT_AVAILABLE if interval is None else " to ".join(f"{limit:.4f}" for limit in interval)
            yield split, format_number(num_rows), metric_name(metric), _score(value), between, _score(other)


def _data(run: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for split, facts in run["data"].items():
        if isinstance(facts, Mapping):
            pseudo = facts.get("num_pseudo")
            yield (
                split,
                listing(map(_source_name, _sources(facts))),
                format_number(facts.get("num_rows")) + (f" ({pseudo:,} labelled by a model)" if pseudo else ""),
                format_number(facts.get("num_tokens")),
                format_number(facts.get("num_truncated")),
                plain(facts.get("fingerprint") or NOT_AVAILABLE)[:16],
            )


def _training(
    run: Mapping[str, Any], summary: Mapping[str, Any], base: BaseModel, saved: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return base model, settings, strategy, hardware, time and energy."""
    config = run["config"]
    sessions = run.get("sessions") or [run]
    strategies = dict.fromkeys(
        f"{session['strategy']['kind']}, {session['world_size']} process{'es' if session['world_size'] > 1 else ''}"
        for session in sessions
    )
    total, trained = (format_duration(summary["time"][name]) for name in ("total_s", "train_s"))
    energy_j = (summary.get("utilisation") or {}).get("energy_j")
    return [
        ("base model", base.name or "none: all weights were new"),
        ("licence of the base model", base.licence or NOT_AVAILABLE),
        ("parameters", f"{run['model']['num_parameters']:,}, of which {run['model']['num_trainable']:,} are trained"),
        ("seed", run["seed"]),
        ("strategy", " → ".join(strategies)),
        ("precision", config["precision"]),
        ("global batch size", run["batch"]["global_batch_size"]),
        ("data.max_length", saved["max_length"]),
        ("data.truncation", saved["truncation"]),
        *_options("train", config["train"]),
        *_options("model.adapter", config["model"].get("adapter") or {}),
        *_options("model", {"quantize_base": config["model"].get("quantize_base")}),
        ("steps", f"{summary['num_steps']:,} ({summary['num_epochs']:.4g} epochs), kept: {summary.get('kept_step')}"),
        ("hardware", _hardware(sessions)),
        ("time", f"{total}, of which {trained} in training steps"),
        ("energy", "not measured" if energy_j is None else f"{energy_j / 3.6e6:.4g} kWh in training steps"),
        ("largest memory of a process", format_bytes((summary.get("memory") or {}).get("largest_bytes"))),
    ]


def _options(section: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a section that are not off, with dotted names."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _options(f"{section}.{name}", value)
        elif value not in (None, False, [], ()):
            yield f"{section}.{name}", value


def _hardware(sessions: Sequence[Mapping[str, Any]]) -> str:
    """Return the kinds of machine, with the number of each, without names of hosts."""
    texts = dict.fromkeys(
        ", ".join(f"{count} × {kind}" for kind, count in Counter(map(_node, session.get("hardware") or ())).items())
        for session in sessions
    )
    return " → ".join(texts) or NOT_AVAILABLE


def _node(node: Mapping[str, Any]) -> str:
    gpus = Counter(str(gpu.get("name")) for gpu in node.get("gpus") or ())
    devices = [f"{count} {name}" for name, count in gpus.items()]
    return " + ".join([f"{node.get('cpu_model') or 'CPU'}, {node.get('num_usable_cores')} cores", *devices])


def _intervals(folder: Path, run: Mapping[str, Any], split: str) -> dict[str, Sequence[float] | None]:
    """Return the 95% interval of each score of a split; without those that predictions do not give."""
    task = run["task"]
    options = {**run["config"]["task"], "grades": run.get("grades")}
    scored = scored_task(folder.name, folder, task["kind"], task.get("labels") or (), options)
    try:
        return {metric: score["interval"] for metric, score in score_records(scored, read_rows(scored, split)).items()}
    except (CannotTell, DataError):
        return {}


def _base_model(model: Mapping[str, Any]) -> BaseModel:
    name = str(model["name"])
    if model["from_scratch"]:
        return BaseModel(None, None, None)
    try:
        source = locate(name)
    except ParatuneError:  # it was there when the run started
        source = name
    is_folder = Path(source).is_dir() or name.startswith(("/", ".", "~"))
    is_local = is_folder and name != DEMO_MODEL
    shown = Path(name).expanduser().resolve().name if is_local else name
    return BaseModel(shown, None if is_folder else name, _licence(source, model.get("revision")))


def _licence(source: str, revision: str | None) -> str | None:
    """Return the licence in the card of a model folder, or of a model in the cache of the hub."""
    from huggingface_hub import metadata_load, try_to_load_from_cache

    card: Any = Path(source) / CARD_FILE
    try:
        if not Path(source).is_dir():
            card = try_to_load_from_cache(source, CARD_FILE, revision=revision)
        metadata = metadata_load(card) if isinstance(card, str | Path) and Path(card).is_file() else None
    except Exception:  # the card of another program may have any content
        return None
    licence = metadata.get("license") if isinstance(metadata, Mapping) else None
    return plain(licence) if isinstance(licence, str) else None


def _sources(facts: Any) -> list[str]:
    """Return the files or data sets of a split."""
    if not isinstance(facts, Mapping):
        return []
    return [str(part["source"]) for part in facts.get("sources") or ()] or [str(facts["source"])]


def _source_name(source: str) -> str:
    """Return a data set of the hub as it is, and of a file only its name."""
    path = local_path(source)
    return plain(source if path is None else path.name)


def _hub_data_set(source: str) -> str | None:
    """Return the hub name of a data set of the hub, without its configuration and split; None for other sources."""
    name = "/".join(source.removeprefix("hub:").partition("@")[0].split("/")[:2])
    return name if source.startswith("hub:") and _HUB_NAME.fullmatch(name) else None


def _score(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:.4f}"


def _escaped(value: Any) -> str:
    """Return a text of any origin as one line of Markdown without markup."""
    return _MARKUP.sub(r"\\\1", plain(value))
