"""The command line. Each command imports what it needs when it is called, so that --help is instant.

Exit codes are those of `paratune.errors`; docs/exit_codes.md lists them.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter
from rich.text import Text

from paratune import __version__
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError, LaunchError, ParatuneError, Stopped

EXAMPLES = {
    "train": "paratune train my.yaml",
    "data": "paratune data my.yaml",
    "bundle": "paratune bundle my.yaml -o bundle.tar",
    "unbundle": "paratune unbundle bundle.tar -d DIR",
    "plan": "paratune plan my.yaml --devices 1,2,4,8 --device a100-40gb",
    "sweep": "paratune sweep matrix.yaml --dry-run",
    "launch": "paratune launch my.yaml --site site.yaml --dry-run",
    "cancel": "paratune cancel 1234",
    "toy-cluster": "paratune toy-cluster start",
    "evaluate": "paratune evaluate runs/NAME --data reviews.csv",
    "predict": "paratune predict runs/NAME --input reviews.csv --output predictions.csv",
    "fill-mask": "paratune fill-mask runs/NAME 'What a [MASK] film.'",
    "pseudo-label": "paratune pseudo-label runs/NAME --input more.csv --output labelled.csv --threshold 0.95",
    "corpus": "paratune corpus corpus.yaml",
    "tokenizer train": "paratune tokenizer train texts.parquet --output tokenizer",
    "tokenizer compare": "paratune tokenizer compare tokenizer bert-base-uncased --texts texts.parquet",
    "config show": "paratune config show my.yaml",
    "config from-trainer": "paratune config from-trainer training_args.json -o my.yaml",
    "config init": "paratune config init my.yaml --task classification",
}
"""How each command that needs something is typed."""


def _usage_error(error: CycloptsError) -> str:
    """Return what is wrong with a command line as paratune says all else, with an example when something is missing."""
    name = " ".join(error.command_chain or ())
    if not isinstance(error, MissingArgumentError) or name not in EXAMPLES:
        return f"error: {error}"
    assert error.argument is not None
    if error.keyword or error.argument.tokens:
        what = f"{error}".rstrip(".")
    else:
        is_positional = error.argument.index is not None
        what = f"{error.argument.name.removeprefix('--').upper() if is_positional else error.argument.name} is missing"
    return f"error: {what}; for example: {EXAMPLES[name]} (paratune {name} --help shows all options)"


app = App(
    name="paratune",
    help="Fine-tune BERT-family models on one device or many: one file, measured, resumable, compared.",
    version=__version__,
    help_format="plaintext",
    error_formatter=lambda error: Text(_usage_error(error)),
)
config_app = App(name="config", help="Show, describe or begin a configuration file.")
app.command(config_app)
tokenizer_app = App(name="tokenizer", help="Train a tokenizer on texts, or compare tokenizers on them.")
app.command(tokenizer_app)

Overrides = Annotated[
    list[str] | None,
    Parameter(name="--set", negative=(), help="section.key=value, on top of the file; may be repeated"),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="print the result as JSON on stdout")]
TextColumn = Annotated[str | None, Parameter(help="column of the text")]
PairColumn = Annotated[str | None, Parameter(help="column of the second text of a pair")]
LabelColumn = Annotated[str | None, Parameter(help="column of the label, target or answer")]
StartColumn = Annotated[str | None, Parameter(help="column of the character at which the answer of --label begins")]
BatchSize = Annotated[int, Parameter(help="samples of one forward pass, if they are the longest; of shorter ones more")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="where to compute")]
BEGAN = time.perf_counter()


@app.command
def train(
    config: Path,
    *,
    set_: Overrides = None,
    nproc: Annotated[int, Parameter(help="processes to start on this machine")] = 1,
    resume: Annotated[bool, Parameter(negative=(), help="go on with an unfinished run, or begin it")] = False,
    overwrite: Annotated[bool, Parameter(negative=(), help="delete the run folder if it exists")] = False,
    json: Json = False,
) -> int:
    """Train what CONFIG says, and evaluate, save and report it.

    Under torchrun it is one of the run's processes; --nproc starts them itself.
    """
    from paratune.commands.train import train_command

    return train_command(
        config, set_ or [], num_processes=nproc, resume=resume, overwrite=overwrite, as_json=json, began=BEGAN
    )


@app.command
def sweep(
    matrix: Path,
    *,
    set_: Overrides = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), help="show the runs and what is wrong with them; start none")
    ] = False,
    only: Annotated[
        list[str] | None, Parameter(negative=(), help="AXIS=VALUE[,VALUE] or a pattern of names; all of them must hold")
    ] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), help="train again what failed before")] = False,
    overwrite: Annotated[
        bool, Parameter(negative=(), help="delete, and train again, runs that the file has changed since")
    ] = False,
    probe: Annotated[
        bool, Parameter(negative=(), help="take 20 steps of each run, to time them, in a folder of their own")
    ] = False,
    list_: Annotated[
        bool, Parameter(name="--list", negative=(), help="print the command of each run, for a cluster; start none")
    ] = False,
    json: Json = False,
) -> int:
    """Train every combination that MATRIX says, choose the best by validation, and report all over seeds.

    What cannot run here is left out with the reason. Finished runs are not made again and interrupted ones gone on
    with: start it again after a crash.
    """
    from paratune.commands.sweep import sweep_command

    return sweep_command(
        matrix,
        set_ or [],
        dry_run=dry_run,
        only_words=only or [],
        retry_failed=retry_failed,
        overwrite=overwrite,
        as_json=json,
        probe=probe,
        as_list=list_,
    )


@app.command
def launch(
    config: Path,
    *,
    site: Annotated[Path, Parameter(help="profile of the cluster, such as those in configs/sites")],
    set_: Overrides = None,
    nodes: Annotated[int | None, Parameter(help="nodes of a run, instead of the site's")] = None,
    gpus_per_node: Annotated[int | None, Parameter(help="GPUs on each node, instead of the site's; 0: CPUs")] = None,
    array: Annotated[
        bool, Parameter(negative=(), help="CONFIG is a matrix: submit what is left of it, each run by itself")
    ] = False,
    max_at_once: Annotated[int | None, Parameter(help="runs of an array at one time")] = None,
    only: Annotated[
        list[str] | None, Parameter(negative=(), help="runs of the matrix, as paratune sweep --only takes them")
    ] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), help="of the matrix, also what failed before")] = False,
    after: Annotated[
        list[str] | None, Parameter(negative=(), help="number of a job that must end well first; may be repeated")
    ] = None,
    wait: Annotated[bool, Parameter(negative=(), help="say what happens until it is over; end as it ends")] = False,
    dry_run: Annotated[bool, Parameter(negative=(), help="print the batch script; submit and write nothing")] = False,
    json: Json = False,
) -> int:
    """Submit CONFIG to Slurm: a readable batch script, on one node or several, that saves and goes on by itself.

    It is kept in the run folder, in slurm/, with what the nodes print. The same command goes on with a run.
    """
    from paratune.commands.launch import launch_command

    return launch_command(
        config,
        set_ or [],
        site_path=site,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        is_array=array,
        max_at_once=max_at_once,
        only_words=only or [],
        retry_failed=retry_failed,
        after=after or [],
        wait=wait,
        dry_run=dry_run,
        as_json=json,
    )


@app.command
def jobs(
    *paths: Path,
    all_: Annotated[bool, Parameter(name="--all", negative=(), help="also those that ended long ago")] = False,
    json: Json = False,
) -> int:
    """Show what was submitted for runs and matrices (those below runs, when no PATHS are given), and how it is."""
    from paratune.commands.jobs import jobs_command

    return jobs_command(paths, show_all=all_, as_json=json)


@app.command
def cancel(*jobs: Annotated[str, Parameter(required=True)], json: Json = False) -> int:
    """Take JOBS - numbers, or folders of runs - out of Slurm; a run that is at work saves first."""
    from paratune.commands.jobs import cancel_command

    return cancel_command(jobs, as_json=json)


@app.command
def toy_cluster(
    action: Literal["start", "stop", "status"],
    *,
    nodes: Annotated[int, Parameter(help="nodes to start")] = 3,
    folder: Annotated[
        Path | None, Parameter(help="for its keys, logs and configuration; /tmp/paratune-toy-USER when not given")
    ] = None,
    json: Json = False,
) -> int:
    """Run a Slurm cluster on this machine, to try scripts on; `start` prints the variable that leads to it.

    eval "$(paratune toy-cluster start)" makes Slurm's commands and paratune launch talk to it.
    """
    from paratune.commands.toy_cluster import toy_cluster_command

    return toy_cluster_command(action, folder=folder, num_nodes=nodes, as_json=json)


@app.command
def certify(
    config: Path,
    *,
    strategies: Annotated[str, Parameter(help="comma-separated: ddp,zero3,hsdp:2 (a value sets the first option)")],
    set_: Overrides = None,
    nproc: Annotated[int, Parameter(help="processes of each strategy")] = 2,
    steps: Annotated[int, Parameter(help="optimizer steps to compare")] = 4,
    json: Json = False,
) -> int:
    """Prove that strategies train the same thing: a few steps of CONFIG under each, beside one process.

    Dropout is off. Nothing of the run is touched; the certificate is kept in RUN.certificate.
    """
    from paratune.commands.certify import certify_command

    return certify_command(
        config, set_ or [], strategies=strategies, num_processes=nproc, num_steps=steps, as_json=json
    )


@app.command
def evaluate(
    model: str,
    *,
    data: str,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    answer_start: StartColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Print the metrics of MODEL - a run, a model folder or a hub name - on a labelled file.

    A model that paratune saved knows its columns; others need --text and --label.
    """
    from paratune.commands.infer import evaluate_command

    named = {"text": text, "text_pair": text_pair, "label": label, "answer_start": answer_start}
    return evaluate_command(model, data, named=named, batch_size=batch_size, device=device, as_json=json)


@app.command
def predict(
    model: str,
    *,
    input: str,
    output: Path,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: Annotated[bool, Parameter(negative=(), help="replace the output file if it exists")] = False,
    json: Json = False,
) -> int:
    """Write the rows of a file with the predictions of MODEL beside them, as .csv, .jsonl or .parquet."""
    from paratune.commands.infer import predict_command

    return predict_command(
        model,
        input,
        output,
        named={"text": text, "text_pair": text_pair},
        batch_size=batch_size,
        device=device,
        overwrite=overwrite,
        as_json=json,
    )


@app.command
def fill_mask(
    model: str,
    *texts: str,
    top_k: Annotated[int, Parameter(help="words to show of each mask, the most probable ones")] = 5,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Show which words MODEL, a masked language model, would put at the masks of TEXTS.

    A run, a model folder or a hub name. The mask is written as the model has it, [MASK] or <mask>.
    """
    from paratune.commands.fill_mask import fill_mask_command

    return fill_mask_command(model, _some(texts, "texts"), top_k=top_k, device=device, as_json=json)


@app.command
def pseudo_label(
    *models: str,
    input: Annotated[str, Parameter(help="file of texts without labels")],
    output: Annotated[Path, Parameter(help="file for the rows that are kept, .csv, .jsonl or .parquet")],
    threshold: Annotated[float, Parameter(help="least confidence (classes), or largest spread over models (numbers)")],
    max_per_class: Annotated[int | None, Parameter(help="keep the most confident rows of each class only")] = None,
    limit: Annotated[int | None, Parameter(help="keep the most certain rows only")] = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: Annotated[bool, Parameter(negative=(), help="replace the output file if it exists")] = False,
    json: Json = False,
) -> int:
    """Label the texts of a file that MODELS - runs, model folders or hub names - are certain of, to train on them too.

    Several models must name the same class, and the mean of their probabilities counts; numbers need several models,
    and their spread counts. What was kept and why is written beside the output, as OUTPUT.record.json.
    """
    from paratune.commands.pseudo_label import pseudo_label_command

    return pseudo_label_command(
        models,
        input,
        output,
        threshold=threshold,
        max_per_class=max_per_class,
        limit=limit,
        named={"text": text, "text_pair": text_pair, "label": label},
        batch_size=batch_size,
        device=device,
        overwrite=overwrite,
        as_json=json,
    )


@app.command
def report(
    *runs: Path,
    out: Annotated[
        Path | None, Parameter(help="folder for the page, tables (Markdown, LaTeX, CSV) and figures (SVG, PNG)")
    ] = None,
    baseline: Annotated[
        Path | None, Parameter(help="run whose figures the others are compared with, in per cent")
    ] = None,
    target: Annotated[
        list[str] | None,
        Parameter(negative=(), help="score, such as f1>=0.88: when each run, or those of a matrix, first reached it"),
    ] = None,
    price: Annotated[float | None, Parameter(help="of a device-hour, in any currency: adds what runs cost")] = None,
    json: Json = False,
) -> int:
    """Put finished runs, or those of a matrix, beside each other: a table here, a page with figures in --out."""
    from paratune.commands.report import report_command

    return report_command(runs, out=out, as_json=json, baseline=baseline, targets=target or [], price=price)


@app.command
def watch(
    *paths: Path,
    once: Annotated[bool, Parameter(negative=(), help="print one view and end, as where there is no terminal")] = False,
    interval: Annotated[float, Parameter(help="seconds between two looks")] = 2.0,
    json: Json = False,
) -> int:
    """Show what runs and matrices are at, from their records alone: progress, loss, speed, memory, time left.

    PATHS are runs, matrices or folders of them; without any, what is running below runs. Nothing of them is touched.
    """
    from paratune.commands.watch import watch_command

    return watch_command(paths, once=once, interval=interval, as_json=json)


@app.command
def compare(
    *runs: str,
    baseline: Annotated[
        str | None, Parameter(help="run, group or value that the others are held against; the first if none")
    ] = None,
    by: Annotated[list[str] | None, Parameter(negative=(), help="axes of a matrix whose values are compared")] = None,
    margin: Annotated[
        list[str] | None,
        Parameter(negative=(), help="MEASURE=AMOUNT or PERCENT% that counts as equal: f1=0.01,speed=3%"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        Parameter(
            negative=(), help="what may differ because it is compared: batch,model,train,steps,data,tokens,task,kept"
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Say how much faster runs are than a baseline, and whether they are as good, with intervals and words.

    RUNS are run folders, grouped by their configuration over seeds and repeats; or groups, each a quoted pattern
    ("runs/a_seed*") or a list with commas; or the folder of one matrix.
    """
    from paratune.commands.compare import compare_command

    return compare_command(runs, baseline=baseline, by=by or [], margins=margin or [], allow=allow or [], as_json=json)


@app.command
def data(
    config: Path,
    *,
    set_: Overrides = None,
    figures: Annotated[Path | None, Parameter(help="folder for pictures: .svg, .png and a page of all of them")] = None,
    json: Json = False,
) -> int:
    """Say what is in the data of CONFIG: rows, labels, lengths, truncation, missing values, duplicates."""
    from paratune.commands.data import data_command

    return data_command(config, set_ or [], as_json=json, figures=figures)


@app.command
def corpus(
    config: Path,
    *,
    only: Annotated[str | None, Parameter(help="stage to run anew, and no other: index")] = None,
    workers: Annotated[int | None, Parameter(help="processes, instead of those of CONFIG")] = None,
    json: Json = False,
) -> int:
    """Build what CONFIG says of a corpus from a web archive, stage by stage; start it again after a crash.

    What is done is kept, and what is dropped too, with the reason; any number of workers gives the same files.
    """
    from paratune.commands.corpus import corpus_command

    return corpus_command(config, only=only, workers=workers, as_json=json)


@app.command
def plan(
    config: Path | None = None,
    *,
    set_: Overrides = None,
    devices: Annotated[str | None, Parameter(help="numbers of devices, with commas; 1,2,4,8 if none")] = None,
    device: Annotated[
        str | None, Parameter(help="a100-40gb, h100-80gb, ... or FILE.yaml that describes one; this machine if none")
    ] = None,
    nodes: Annotated[int, Parameter(help="machines over which the devices are spread evenly")] = 1,
    strategies: Annotated[
        str | None, Parameter(help="comma-separated, as ddp,zero3,pipeline:4 (a value sets the first option); or all")
    ] = None,
    precision: Annotated[str | None, Parameter(help="comma-separated; that of CONFIG if none")] = None,
    max_length: Annotated[
        int | None, Parameter(help="plan without the data, as if every row had so many tokens")
    ] = None,
    rows: Annotated[int | None, Parameter(help="with --max-length: rows of the training set")] = None,
    micro_batch_size: Annotated[
        str | None,
        Parameter(help="comma-separated; as CONFIG says if none, the largest that fits where that is open"),
    ] = None,
    price: Annotated[float | None, Parameter(help="of a device-hour, in any currency: adds what runs cost")] = None,
    write: Annotated[Path | None, Parameter(help="YAML file for the configuration that is advised")] = None,
    goal: Annotated[str | None, Parameter(help='such as "f1>=0.88 within 2h under 24GB": which ways meet it')] = None,
    measured: Annotated[
        list[Path] | None,
        Parameter(negative=(), consume_multiple=True, help="with --goal: runs that say after how many steps it is met"),
    ] = None,
    write_probes: Annotated[
        Path | None, Parameter(help="with --goal: YAML file for a matrix of short runs that settle what is open")
    ] = None,
    calibrate: Annotated[
        bool,
        Parameter(negative=(), help="measure this machine, in about a minute; with --score refine that by runs"),
    ] = False,
    score: Annotated[
        list[Path] | None,
        Parameter(negative=(), consume_multiple=True, help="runs or matrices: what was predicted against measured"),
    ] = None,
    json: Json = False,
) -> int:
    """Say what fits, how long it takes, what binds it and which way to run CONFIG, before any device is taken.

    Needs neither a GPU nor a network nor the weights: the model is traced on the meta device, for the longest rows that
    the data really has.
    """
    from paratune.commands.plan import Wanted, plan_command, without_config

    if config is None:
        return without_config(calibrate=calibrate, score=score, example=EXAMPLES["plan"], as_json=json)
    wanted = Wanted(
        devices=devices,
        device=device,
        nodes=nodes,
        strategies=strategies,
        precision=precision,
        max_length=max_length,
        rows=rows,
        micro_batch_size=micro_batch_size,
        price=price,
        calibrate=calibrate,
        score=tuple(score or ()),
        goal=goal,
        measured=tuple(measured or ()),
        write_probes=write_probes,
    )
    return plan_command(config, set_ or [], wanted, write=write, as_json=json)


@app.command(name="glue-submit")
def glue_submit(
    *runs: str,
    out: Annotated[Path | None, Parameter(help="the zip to write")] = None,
    check: Annotated[Path | None, Parameter(help="a zip to look at; nothing is written")] = None,
    tasks: Annotated[str | None, Parameter(help="comma-separated: what has to be in it, when not all of GLUE")] = None,
    any_size: Annotated[
        bool, Parameter(negative=(), help="allow other numbers of rows than the official ones")
    ] = False,
    overwrite: Annotated[bool, Parameter(negative=(), help="replace the zip if it exists")] = False,
    json: Json = False,
) -> int:
    """Write predictions of GLUE's tests as its site takes them, or check such a zip.

    RUNS are runs of tasks of GLUE with their tests in data.predict, or TABLE=FILE of `paratune predict`, such as
    RTE=rte.parquet.
    """
    from paratune.commands.glue_submit import glue_submit_command

    return glue_submit_command(
        runs, out=out, check_only=check, tasks=tasks, any_size=any_size, overwrite=overwrite, as_json=json
    )


@app.command
def doctor(
    config: Path | None = None,
    *,
    set_: Overrides = None,
    site: Annotated[Path | None, Parameter(help="profile of the cluster that the run will be queued on")] = None,
    nodes: Annotated[int | None, Parameter(help="with --site: nodes of the run, instead of the site's")] = None,
    gpus_per_node: Annotated[int | None, Parameter(help="with --site: GPUs on each node")] = None,
    nproc: Annotated[int | None, Parameter(help="processes that the run will have on this machine")] = None,
    folder: Annotated[Path, Parameter(help="where runs would go, without CONFIG")] = Path("runs"),
    json: Json = False,
) -> int:
    """Say what would not work, why, and the line that repairs it: on this machine, and of the run in CONFIG.

    Of CONFIG: options, files, labels, model, precision, processes against GPUs, ports, room for checkpoints, versions.
    Nothing is trained, fetched or changed.
    """
    if config is None:
        if set_ or site or nodes is not None or gpus_per_node is not None or nproc is not None:
            raise ConfigError("--set, --site, --nodes, --gpus-per-node and --nproc are about a run: name its CONFIG")
        from paratune.doctor import run

        return run(json, folder)
    from paratune.commands.doctor import doctor_command

    return doctor_command(
        config,
        set_ or [],
        num_processes=nproc,
        as_json=json,
        site_path=site,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
    )


@app.command
def bundle(
    config: Path,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="the file to write, such as bundle.tar")],
    set_: Overrides = None,
    tokens: Annotated[bool, Parameter(negative=(), help="tokenize here, and take the tokens along")] = False,
    json: Json = False,
) -> int:
    """Put all that CONFIG needs into one file, for machines without a network: model, tokenizer, data, configuration.

    What is on the hub is fetched here. It is written whole or not at all, with the SHA-256 of every file.
    """
    from paratune.commands.bundle import bundle_command

    return bundle_command(config, set_ or [], out=out, with_tokens=tokens, as_json=json)


@app.command
def unbundle(
    file: Path,
    *,
    folder: Annotated[Path, Parameter(name=["--folder", "-d"], help="the folder to make")],
    json: Json = False,
) -> int:
    """Check FILE, which paratune bundle wrote, and lay it out: DIR/config.yaml can be trained as it stands."""
    from paratune.commands.bundle import unbundle_command

    return unbundle_command(file, folder=folder, as_json=json)


@config_app.command
def show(config: Path, *, set_: Overrides = None, json: Json = False) -> int:
    """Print the whole configuration as it would run, with where each value came from."""
    from paratune.commands.config import show_command

    return show_command(config, set_ or [], as_json=json)


@config_app.command
def schema(*, json: Json = True) -> int:
    """Print the JSON schema of configuration files, for editors."""
    from paratune.commands.config import schema_command

    return schema_command()


@config_app.command
def init(
    path: Path,
    *,
    task: Annotated[
        Literal["classification", "mlm", "multi_label", "ordinal", "qa", "regression"],
        Parameter(help="what is learned"),
    ],
    json: Json = False,
) -> int:
    """Write a commented configuration file with every option to PATH."""
    from paratune.commands.config import init_command

    return init_command(path, task, as_json=json)


@config_app.command(name="from-trainer")
def from_trainer(
    file: Path,
    *,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="YAML file to write; stdout if none")
    ] = None,
    task: Annotated[str | None, Parameter(help="kind of the task, or a task of GLUE by name")] = None,
    labels: Annotated[str | None, Parameter(help="comma-separated label values in the order of their ids")] = None,
    model: Annotated[str | None, Parameter(help="model.name")] = None,
    train: Annotated[str | None, Parameter(help="data.train")] = None,
    validation: Annotated[str | None, Parameter(help="data.validation")] = None,
    test: Annotated[str | None, Parameter(help="data.test")] = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    json: Json = False,
) -> int:
    """Turn a JSON file of Hugging Face TrainingArguments into a configuration, and name every key without an equal.

    What such a file never says - task, data, model - is given by options, or marked FILL IN.
    """
    from paratune.commands.from_trainer import from_trainer_command

    named = {
        "task": task,
        "task.labels": [each.strip() for each in labels.split(",")] if labels is not None else None,
        "model.name": model,
        "data.train": train,
        "data.validation": validation,
        "data.test": test,
        "data.columns.text": text,
        "data.columns.text_pair": text_pair,
        "data.columns.label": label,
    }
    return from_trainer_command(file, {key: value for key, value in named.items() if value}, output, as_json=json)


def _let_the_launcher_speak_first(error: ParatuneError) -> None:
    """Wait, when a rank was lost, until what started this process has seen which one and of what."""
    from paratune.place import LAUNCHER_POLL_S, RENDEZVOUS_VARIABLE

    if isinstance(error, LaunchError) and RENDEZVOUS_VARIABLE in os.environ:
        time.sleep(4 * LAUNCHER_POLL_S)


def _leave_trackers_behind(code: int) -> None:
    """End at once when a tracker did not end in time: what its package does at the interpreter's end may never end."""
    channel = sys.modules.get("paratune.trackers.channel")
    if channel is not None and channel.left_behind():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@tokenizer_app.command(name="train")
def tokenizer_train(
    *texts: str,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="folder for the tokenizer")],
    kind: Annotated[
        Literal["wordpiece", "bpe", "unigram"], Parameter(help="as BERT's, RoBERTa's or XLM-R's")
    ] = "wordpiece",
    vocab_size: Annotated[int, Parameter(help="entries, special tokens included")] = 20_000,
    column: Annotated[str, Parameter(help="of the texts")] = "text",
    lowercase: Annotated[bool, Parameter(negative=(), help="take no notice of upper case")] = False,
    strip_accents: Annotated[bool, Parameter(negative=(), help="take no notice of accents")] = False,
    min_frequency: Annotated[int, Parameter(help="how often two pieces meet to be joined; not for unigram")] = 2,
    limit_alphabet: Annotated[int, Parameter(help="most different characters; for wordpiece")] = 1000,
    max_length: Annotated[int, Parameter(help="tokens that models with it take at most")] = 512,
    overwrite: Annotated[bool, Parameter(negative=(), help="replace a tokenizer that stands there")] = False,
    json: Json = False,
) -> int:
    """Train a tokenizer on the files TEXTS, and write it as a plain Hugging Face folder."""
    from paratune.commands.tokenizer import train_command
    from paratune.tokenizer.train import Recipe

    recipe = Recipe(
        kind=kind,
        vocab_size=vocab_size,
        lowercase=lowercase,
        strip_accents=strip_accents,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
        max_length=max_length,
    )
    return train_command(_some(texts, "texts"), output, recipe, column=column, overwrite=overwrite, as_json=json)


@tokenizer_app.command(name="compare")
def tokenizer_compare(
    *tokenizers: str,
    texts: Annotated[list[str], Parameter(help="file of texts; may be repeated")],
    column: Annotated[str, Parameter(help="of the texts")] = "text",
    limit: Annotated[int, Parameter(help="read the first so many texts")] = 10_000,
    json: Json = False,
) -> int:
    """Compare TOKENIZERS - folders, hub names or vocab.txt files - on the same texts.

    Tokens a word (fertility), words that are cut, unknown tokens, characters that are known, bytes a token.
    """
    from paratune.commands.tokenizer import compare_command

    return compare_command(_some(tokenizers, "tokenizers"), texts, column=column, limit=limit, as_json=json)


def _some(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    if not names:
        raise ConfigError(f"name at least one of {what}")
    return names


def _note_exit_code(code: int) -> None:
    """Tell the batch script of `paratune launch` what this process ends with."""
    if "PARATUNE_EXIT_CODES" in os.environ:
        from paratune.place import note_exit_code

        note_exit_code(code)


def main() -> None:
    """Run the command line and exit with a code of `paratune.errors`."""
    try:
        code = app(result_action="return_value")
        sys.stdout.flush()
    except ParatuneError as error:
        from paratune.text import plain_lines

        _let_the_launcher_speak_first(error)
        # A header or a label of a file may be part of the message, and must not act in the terminal.
        print(plain_lines(error if isinstance(error, Stopped) else f"error: {error}"), file=sys.stderr)  # noqa: T201
        code = error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        code = 128 + signal.SIGINT
    except BrokenPipeError:
        # Who read the output has enough of it (`| head`); what Python still holds must not be written at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except Exception:
        _note_exit_code(EXIT_FAILED)  # with a traceback
        raise
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        # All is done. Python drops its handlers before it ends, and a signal then would change the exit code.
        signal.signal(number, signal.SIG_IGN)
    code = code if isinstance(code, int) else EXIT_OK
    _note_exit_code(code)
    _leave_trackers_behind(code)
    sys.exit(code)
