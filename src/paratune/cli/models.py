"""Commands that use a model that is there."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.cli.options import BatchSize, Device, Json, LabelColumn, PairColumn, StartColumn, TextColumn, some_of


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

    return fill_mask_command(model, some_of(texts, "texts"), top_k=top_k, device=device, as_json=json)


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
