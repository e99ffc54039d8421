"""Collects the facts about a run before it is queued, on this machine or on a site, for `paratune doctor CONFIG`.

Data files are read whole, and a sample is tokenized.
"""

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune import checkpoint
from paratune.base.units import GIB, format_bytes
from paratune.cluster.site import Site, processes_per_node
from paratune.commands.doctor_model import model_facts
from paratune.config.load import LoadedConfig
from paratune.config.own_code import importable_parts
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config, data_sources, named_columns
from paratune.config.sources import has_tokens, local_path, path_and_split
from paratune.config.task_sections import (
    ClassTask,
    EmbeddingTask,
    MaskedLMTask,
    MultiLabelTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
    class_names,
)
from paratune.data.columns import Samples, TableReader
from paratune.data.duplicates import overlaps, repeats
from paratune.data.guess import guess_options
from paratune.data.labels import class_counts
from paratune.data.load import load_samples, samples_fingerprint
from paratune.data.questions import drop_misplaced
from paratune.data.read import read_table
from paratune.data.selection import select
from paratune.data.slices import column_values
from paratune.data.tokenizers import cut_long_texts
from paratune.doctor.facts import DataFacts, Finding, MachineFacts, Probes, QueuedRun, SplitFacts, Start
from paratune.doctor.probe import gather, start_of
from paratune.errors import DataError, ParatuneError, nearest_name
from paratune.records import CHECKPOINTS_FOLDER

MAX_BYTES = GIB
"""Maximum size of all files together, to read them within a minute."""
NUM_TOKENIZED = 400
"""Number of rows of a split that are tokenized."""
MIN_ID_ROWS = 10
"""Minimum number of rows to decide that a column contains ids."""
_ID = re.compile(r"(?=.*\d)[\w.:/#@-]{1,64}", re.ASCII)
_NEAREST = re.compile(r"; did you mean (.+?)\?")
"""The nearest name in a message, from `did_you_mean`."""


def queued_run(
    path: Path,
    loaded: LoadedConfig | None,
    problems: Sequence[Problem],
    machine: MachineFacts,
    *,
    num_processes: int | None = None,
    probes: Probes | None = None,
    start: Start | None = None,
) -> QueuedRun:
    """Return the facts about a run.

    Args:
        loaded: The configuration; None if it is invalid.
        num_processes: Number of processes of the run; that of the environment when None.
        probes: Facts from tools and the system; collected when None.
        start: Start of the run on a site; that of this machine when None.
    """
    if loaded is None:
        return QueuedRun(machine, path, tuple(problems))
    start = start or start_of(loaded.config, machine.environ, num_processes)
    setup = QueuedRun(machine, path, tuple(problems), loaded, start=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = importable_parts(loaded.config)
        model, tokenizer, limit = model_facts(read, setup)
        data = data_facts(read, tokenizer, limit, setup)
    if probes is None:
        checkpoints = checkpoint.list_checkpoints(machine.out_folder / CHECKPOINTS_FOLDER)
        complete = checkpoint.find_newest(machine.out_folder / CHECKPOINTS_FOLDER) if checkpoints else None
        is_damaged = checkpoints and complete != checkpoints[-1]
        probes = gather(machine, checkpoints[-1].name if is_damaged else None)
    return replace(setup, data=data, model=model, probes=probes)


def start_on(site: Site, path: Path) -> Start:
    """Return the start of a run on a site."""
    return Start(
        num_nodes=site.nodes,
        processes_per_node=processes_per_node(site),
        gpus_per_node=site.gpus_per_node,
        source=str(path),
        no_network=not site.internet,
        gpu_type=site.gpu_type,
        cores_per_node=site.cpus_per_node,
        is_elsewhere=True,
        missing_folders=tuple(_missing_folders(site)),
    )


def site_environment(site: Site) -> dict[str, str]:
    """Return the environment variables of the site, with the variables of this shell expanded."""
    return {name: os.path.expandvars(str(value)) for name, value in site.environment.items()}


def _missing_folders(site: Site) -> Iterator[tuple[str, Path, str]]:
    folders = {"venv": site.venv, "container.image": site.container.image if site.container else None}
    for option, value in folders.items():
        path = Path(os.path.expandvars(value)).expanduser() if value else None
        if path is None or "$" in str(path) or path.exists():  # a variable that only the nodes have
            continue
        near = nearest_name(path.name, [file.name for file in path.parent.iterdir()]) if path.parent.is_dir() else None
        yield option, path, f"{option}: {path.with_name(near)}" if near else ""


def data_facts(config: Config, tokenizer: Any, model_limit: int | None, setup: QueuedRun) -> DataFacts:
    """Return the facts about the data of a configuration.

    Args:
        tokenizer: Of the model; None if it cannot be loaded, which leaves lengths unknown.
        model_limit: Maximum number of tokens of the model; None without a limit.
    """
    max_length = config.data.max_length or model_limit
    sources = list(data_sources(config.data))
    sizes = {}
    for _, source in sources:
        path = local_path(source)
        if path is not None and (file := path_and_split(path)[0]).is_file():
            sizes[source] = file.stat().st_size
    if sum(sizes.values()) > MAX_BYTES:
        why = "Reading it takes too long for a check."
        remedy = "paratune data shows its content"
        place = str(setup.path)
        large = (f"{source} ({format_bytes(size)}) was not read" for source, size in sizes.items())
        notes = (Finding("data_large", "note", fact, why, remedy, place) for fact in large)
        return DataFacts(findings=tuple(notes), max_length=max_length, model_limit=model_limit)
    findings: dict[tuple[str, ...], Finding] = {}
    for key, source in sources:
        if source.startswith("hub:") or has_tokens(source):  # reading it could download it
            continue
        for finding in _source_findings(key, source, config, setup):
            # Files of the same table have the same column of ids; other problems differ between files.
            same = (finding.where,) if finding.code == "text_is_id" else (finding.where, finding.fact)
            findings.setdefault((finding.code, *same), finding)
    is_own = not any(getattr(config.data, name) for name in ("train", "validation", "test"))
    if findings or is_own or any(source.startswith("hub:") or has_tokens(source) for _, source in sources):
        return DataFacts(findings=tuple(findings.values()), max_length=max_length, model_limit=model_limit)
    try:
        parts = load_samples(config.data.model_copy(update={"missing": "drop"}), config.task)
        if isinstance(config.task, QuestionAnsweringTask) and "train" in parts:
            source, samples = parts["train"]
            parts["train"] = source, drop_misplaced(samples, "drop", source=source)
    except ParatuneError as error:
        return DataFacts(findings=(_problem(setup, "data_value", "data.train", error),))
    if slices := tuple(_slice_findings(config, parts, setup)):
        return DataFacts(findings=slices)
    splits = tuple(
        _split_facts(name, source, samples, config.task, _lengths(samples, config, tokenizer), max_length)
        for name, (source, samples) in parts.items()
    )
    is_text = not isinstance(config.task, MaskedLMTask)
    shared = overlaps({name: samples for name, (_, samples) in parts.items()}) if is_text else ()
    return DataFacts(splits, tuple(shared), (), max_length, model_limit)


def _problem(setup: QueuedRun, code: str, key: str, error: Exception, line: str = "") -> Finding:
    return setup.finding(code, "problem", str(error), "Training fails (exit code 3).", line, key=key)


def _source_findings(key: str, source: str, config: Config, setup: QueuedRun) -> Iterator[Finding]:
    """Yield the problems of a file with the lines that repair them: of the file, else its columns, else its values."""
    columns, task, is_labelled = config.data.columns, config.task, not key.startswith("data.predict.")
    try:
        table = read_table(source, config.data.reading)
    except ParatuneError as error:
        near = _NEAREST.search(str(error))
        line = f"{key}: {Path(source).with_name(near[1])}" if near else ""
        yield _problem(setup, "data_file", key, error, line)
        return
    try:
        table = TableReader(table, columns, "drop", source, require_labels=is_labelled).table
    except DataError as error:
        absent = re.search(r"data\.columns\.(\w+)", str(error))
        near = re.search(r"data\.columns\.(\w+) names [^;]*; did you mean (.+?)\?", str(error))
        line = f"data.columns.{near[1]}: {near[2]}" if near and isinstance(getattr(columns, near[1]), str) else ""
        code = "data_column" if error.code == "data.column_missing" else "data_value"
        yield _problem(setup, code, absent[0] if absent else key, error, line)
        return
    has_ids = False
    for option in ("text", "text_pair"):
        names = named_columns(getattr(columns, option))
        example = _id_example(table.column(names[0]).to_pylist()) if len(names) == 1 else None
        if example is None:
            continue
        has_ids = True
        fact = f"{source}: the column of data.columns.{option} contains ids, such as {example!r}, and not texts"
        why = "A model learns nothing from ids; the loss falls because it memorises them."
        line = _text_line(table, config, f"data.columns.{option}", names[0])
        remedy = "" if line else "name another"
        yield setup.finding("text_is_id", "problem", fact, why, line, remedy, key=f"data.columns.{option}")
    if has_ids:
        return
    is_class = isinstance(task, ClassTask | RegressionTask)
    try:
        if is_class:
            select(TableReader(table, columns, "drop", source, require_labels=False), task)
        if is_labelled:
            select(TableReader(table, columns, "drop", source), task)
    except DataError as error:
        if (is_class and error.code in ("data.label_unseen", "task.labels")) or error.code.startswith("data.target_"):
            option = "task.labels" if isinstance(task, ClassTask) else "data.columns.label"
            yield _problem(setup, "label_unknown", option, error, _label_line(table, config))
            return
        named = re.search(r"column (.+) \((data\.columns\.text\w*)\) contains", str(error))
        line = _text_line(table, config, named[2], named[1]) if named else ""
        yield _problem(setup, "data_value", named[2] if named else "data.train", error, line)


def _id_example(values: Sequence[Any]) -> str | None:
    """Return the first value if all values look like ids: different, and single words with a digit, or numbers."""
    present = [str(value).strip() for value in values if value is not None and str(value).strip()]
    if len(present) < MIN_ID_ROWS or len(set(present)) < len(present):
        return None
    return present[0] if all(_ID.fullmatch(value) for value in present) else None


def _suggested(table: pa.Table, config: Config, *, without: str | None = None) -> dict[str, Any]:
    """Return the options that `paratune config init` writes for a table without a column; none where it cannot."""
    label = config.data.columns.label
    with suppress(DataError, KeyError):  # KeyError: two columns have one name
        rest = table.select([name for name in table.column_names if name != without])
        known = label if isinstance(label, str) and label in rest.column_names else None
        return guess_options(rest, "", task=None if known else "mlm", columns={"label": known}).values
    return {}


def _text_line(table: pa.Table, config: Config, key: str, not_this: str) -> str:
    text = _suggested(table, config, without=not_this).get("data.columns.text")
    return f"{key}: {text}" if text is not None else ""


def _slice_findings(config: Config, parts: Mapping[str, tuple[str, Samples]], setup: QueuedRun) -> Iterator[Finding]:
    """Yield the columns of `evaluate.slices` that a scored set lacks, or that have too many values for slices."""
    names, seen = config.evaluate.slices, set()
    scored = [part for name, part in parts.items() if name != "train" and name not in config.data.predict]
    for source, samples in () if config.measure.probe else scored:
        for name in names:
            try:
                column_values(samples, source, [name], config.data.reading)
            except DataError as error:
                if str(error) not in seen:  # else two sets of one file
                    near = _NEAREST.search(str(error))
                    shown = [
                        near[1] if near and column == name else column for column in names if near or column != name
                    ]
                    line = f"evaluate.slices: {one_line(shown)}"
                    yield _problem(setup, "data_column", "evaluate.slices", error, line)
                seen.add(str(error))


def _label_line(table: pa.Table, config: Config) -> str:
    """Return a configuration line with all values of the column as labels, or for a regression if they are numbers."""
    suggested, is_regression = _suggested(table, config), isinstance(config.task, RegressionTask)
    if isinstance(config.task, MultiLabelTask) or suggested.get("task.kind") not in ("classification", "regression"):
        return ""
    if suggested["task.kind"] == "regression":
        return "" if is_regression else "task: {kind: regression}"
    labels = one_line(suggested["task.labels"])
    return f"task: {{kind: classification, labels: {labels}}}" if is_regression else f"task.labels: {labels}"


def _split_facts(
    name: str, source: str, samples: Samples, task: Task, lengths: Sequence[int] | None, max_length: int | None
) -> SplitFacts:
    labels, names = samples.labels, class_names(task)
    counts: Mapping[str, int] | None = class_counts(labels, names) if labels is not None and names else None
    is_index = False
    if labels is not None and isinstance(task, RegressionTask) and len(labels) >= MIN_ID_ROWS:
        is_index = bool((np.diff(labels.astype(np.float64)) == 1).all())
    known = lengths is not None and max_length is not None and len(lengths) > 0
    return SplitFacts(
        name=name,
        source=source,
        num_rows=len(samples),
        fingerprint=samples_fingerprint(samples, task),
        num_dropped=samples.num_dropped,
        labels=counts,
        label_counts_rows=is_index,
        num_conflicting=(repeats(samples).num_conflicting_rows or 0) if labels is not None else 0,
        share_truncated=float((np.asarray(lengths) > max_length).mean()) if known else None,
        p95_length=int(np.quantile(lengths, 0.95)) if known and lengths is not None else None,
    )


def _lengths(samples: Samples, config: Config, tokenizer: Any) -> list[int] | None:
    """Return the numbers of tokens of some rows; None for tasks that cut windows and truncate nothing."""
    task = config.task
    joins_texts = isinstance(task, MaskedLMTask) and task.windows != "documents"
    if tokenizer is None or isinstance(task, QuestionAnsweringTask) or joins_texts or len(samples) == 0:
        return None
    rows = np.unique(np.linspace(0, len(samples) - 1, min(NUM_TOKENIZED, len(samples))).astype(np.int64))
    texts = [samples.texts[row] for row in rows]
    pairs = None if samples.text_pairs is None else [samples.text_pairs[row] for row in rows]
    if samples.choices is not None:
        longest = [max(samples.choices[row], key=len) for row in rows]
        pairs = longest if pairs is None else [pair + choice for pair, choice in zip(pairs, longest, strict=True)]
    if isinstance(task, EmbeddingTask):  # each text is a sequence: the longest one of a row counts
        columns = [column for column in (samples.texts, samples.text_pairs, samples.negatives) if column is not None]
        texts, pairs = [max((column[row] for column in columns), key=len) for row in rows], None
    if config.data.max_length is not None:
        texts, pairs = cut_long_texts(texts, pairs, tokenizer, config.data.max_length)
    return [len(ids) for ids in tokenizer(texts, pairs, truncation=False, verbose=False)["input_ids"]]
