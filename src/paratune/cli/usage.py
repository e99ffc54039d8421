"""What is said of a command line that cannot be read."""

from cyclopts import CycloptsError, MissingArgumentError

from paratune.errors import Fault

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
    "corpus stats": "paratune corpus stats corpus.yaml",
    "corpus sample": "paratune corpus sample corpus.yaml -n 5",
    "corpus search": "paratune corpus search corpus.yaml votação",
    "tokenizer train": "paratune tokenizer train texts.parquet --output tokenizer",
    "tokenizer compare": "paratune tokenizer compare tokenizer bert-base-uncased --texts texts.parquet",
    "config show": "paratune config show my.yaml",
    "config from-trainer": "paratune config from-trainer training_args.json -o my.yaml",
    "config init": "paratune config init my.yaml --task classification",
}
"""How each command that needs something is typed."""


def usage_error(error: CycloptsError) -> str:
    """Return what is wrong with a command line as paratune says all else, with an example when something is missing."""
    name = " ".join(error.command_chain or ())
    if not isinstance(error, MissingArgumentError) or name not in EXAMPLES:
        return f"error: {Fault(code='cli.usage', message=str(error)).text()}"
    assert error.argument is not None
    if error.keyword or error.argument.tokens:
        what = f"{error}".rstrip(".")
    else:
        is_positional = error.argument.index is not None
        what = f"{error.argument.name.removeprefix('--').upper() if is_positional else error.argument.name} is missing"
    message = f"{what}; for example: {EXAMPLES[name]} (paratune {name} --help shows all options)"
    return f"error: {Fault(code='cli.argument_missing', message=message).text()}"
