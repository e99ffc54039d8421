"""Commands that use a model that is there."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.cli.options import BatchSize, Device, Json, LabelColumn, PairColumn, StartColumn, TextColumn, some_of


def evaluate(
    model: str,
    *,
    data: Annotated[
        str | None, Parameter(help="labelled file; without it, --by shows the scores of a finished run")
    ] = None,
    by: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="column by whose values scores are also shown, label, or length (quartiles of the number of tokens); "
            "may be repeated",
        ),
    ] = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    answer_start: StartColumn = None,
    batch_size: Annotated[int | None, Parameter(help="samples of a forward pass, with --data; default 32")] = None,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Print the metrics of MODEL (a run, a model folder or a hub name) on a labelled file.

    A model that paratune saved has the names of its columns; other models need --text and --label. With --by,
    the scores of each slice are shown with its number of rows and 95% intervals.
    """
    from paratune.commands.infer import evaluate_command

    named = {"text": text, "text_pair": text_pair, "label": label, "answer_start": answer_start}
    return evaluate_command(model, data, named=named, batch_size=batch_size, device=device, as_json=json, by=by or ())


def predict(
    model: str,
    *,
    input: str,
    output: Path,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: Annotated[bool, Parameter(negative=(), help="replace an existing output file")] = False,
    json: Json = False,
) -> int:
    """Write the rows of a file and the predictions of MODEL for them, as .csv, .jsonl or .parquet."""
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
    top_k: Annotated[int, Parameter(help="number of words to show for each mask, most probable first")] = 5,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Show the words that MODEL, a masked language model, predicts for the masks in TEXTS.

    MODEL is a run, a model folder or a hub name. Write the mask as the model does: [MASK] or <mask>.
    """
    from paratune.commands.fill_mask import fill_mask_command

    return fill_mask_command(model, some_of(texts, "texts"), top_k=top_k, device=device, as_json=json)


def pseudo_label(
    *models: str,
    input: Annotated[str, Parameter(help="file with texts without labels")],
    output: Annotated[Path, Parameter(help="file for the kept rows, .csv, .jsonl or .parquet")],
    threshold: Annotated[
        float, Parameter(help="smallest confidence (classes), or largest spread over models (numbers)")
    ],
    max_per_class: Annotated[
        int | None, Parameter(help="maximum number of rows of each class, most confident first")
    ] = None,
    limit: Annotated[int | None, Parameter(help="maximum number of rows, most confident first")] = None,
    text: TextColumn = None,
    text_pair: PairColumn = None,
    label: LabelColumn = None,
    batch_size: BatchSize = 32,
    device: Device = "auto",
    overwrite: Annotated[bool, Parameter(negative=(), help="replace an existing output file")] = False,
    json: Json = False,
) -> int:
    """Label the texts of a file for which MODELS (runs, model folders or hub names) are confident.

    Several models must predict the same class, and their mean probability is the confidence. For numbers several models
    are required, and the confidence is their spread. OUTPUT.record.json lists what was kept and why.
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
    out: Annotated[Path | None, Parameter(help="zip file to write")] = None,
    check: Annotated[Path | None, Parameter(help="zip file to check; nothing is written")] = None,
    tasks: Annotated[
        str | None, Parameter(help="tables that the zip must hold, comma-separated; default: all of GLUE")
    ] = None,
    any_size: Annotated[
        bool, Parameter(negative=(), help="allow numbers of rows that differ from the official ones")
    ] = False,
    overwrite: Annotated[bool, Parameter(negative=(), help="replace an existing zip file")] = False,
    json: Json = False,
) -> int:
    """Write predictions of GLUE's test sets in the format of its site, or check such a zip file.

    RUNS are runs of GLUE tasks with the test sets in data.predict, or TABLE=FILE with a file of `paratune predict`,
    such as RTE=rte.parquet.
    """
    from paratune.commands.glue_submit import glue_submit_command

    return glue_submit_command(
        runs, out=out, check_only=check, tasks=tasks, any_size=any_size, overwrite=overwrite, as_json=json
    )
