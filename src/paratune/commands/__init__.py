"""The commands of paratune, one function per command: its signature is the command line, its docstring the help.

A command returns its exit code; None is success. `cli/` imports a module when its command is called, or when its
`--help` is printed.
"""

import time

BEGAN = time.perf_counter()
"""When the command began, as `time.perf_counter` counts."""

COMMANDS = {
    "train": "Train the run in CONFIG, evaluate and save its model, and print the result.",
    "sweep": "Train every combination of MATRIX, select the best by validation, and write a report.",
    "certify": "Check that strategies and layouts train the same: compare a few steps of CONFIG with one process.",
    "launch": "Submit CONFIG to Slurm, on one node or several; the job saves, is queued again and resumes by itself.",
    "jobs": "Show the submitted jobs of runs and matrices, and their state; without PATHS, of all runs below runs/.",
    "toy-cluster": "Start or stop a Slurm cluster on this machine, to try jobs on.",
    "evaluate": "Score MODEL (a run, a model folder or a hub name) on a labelled file.",
    "predict": "Show the predictions of MODEL for texts, or write the rows of a file with them.",
    "explain": "Show which words and sentences of rows drive the output of MODEL, and whether that holds.",
    "feedback": "Write feedback on the essays of a file: an interval for each score, and what the score rests on.",
    "quantize": "Write a smaller form of MODEL as a folder, and compare its outputs and decisions with those of MODEL.",
    "compress": "Make smaller forms of RUN, and measure each beside its model: size, speed, memory and scores.",
    "serve": "Answer HTTP requests with the predictions of RUN (a run, a model folder or a hub name) until a signal.",
    "fill-mask": "Show the words that MODEL, a masked language model, predicts for the masks in TEXTS.",
    "pseudo-label": "Label the texts of a file for which MODELS (runs, model folders or hub names) are confident.",
    "glue-submit": "Write predictions of GLUE's test sets in the format of its site.",
    "report": "Compare finished runs, or the runs of a matrix: the conclusions, and all tables and figures in files.",
    "published": "Print the figures in TABLE, a file such as .csv or .xlsx, as a file of published figures.",
    "publish": "Write a folder with claims, tables and records of RUNS, with which others can check them.",
    "verify": "Check a publication: its files, its claims, and the first steps of its runs, which are trained here.",
    "watch": "Show the progress, loss, speed, memory and remaining time of runs and matrices.",
    "compare": "Compare the speed and the quality of runs with a baseline, with intervals and a verdict in words.",
    "data": "Show the data of CONFIG: example rows, labels, lengths, truncation, missing values, duplicates.",
    "plan": "Estimate memory and time of CONFIG, and recommend a strategy, devices, precision and micro-batch.",
    "doctor": "Find problems of this machine and of the run in CONFIG, with reasons and lines that repair them.",
    "bundle": "Write one file with everything that CONFIG needs, for machines without a network.",
    "unbundle": "Check and unpack FILE, written by paratune bundle; DIR/config.yaml can be trained without changes.",
    "config": "Show, describe or create a configuration file.",
    "corpus": "Build the corpus in CONFIG from a web archive, stage by stage.",
    "tokenizer": "Train a tokenizer on texts.",
}
"""Command -> the first line of its docstring, with which `paratune --help` imports no command."""

GROUPS = {
    "Start": ("config", "data", "doctor", "plan", "train", "watch"),
    "Compare": ("sweep", "report", "compare", "certify", "publish", "verify", "published"),
    "Cluster": ("launch", "jobs", "toy-cluster", "bundle", "unbundle"),
    "After training": (
        *("evaluate", "predict", "explain", "feedback", "serve", "quantize", "compress", "fill-mask", "pseudo-label"),
        "glue-submit",
    ),
    "Corpus": ("corpus", "tokenizer"),
}
"""The commands under each heading of `paratune --help`."""

PLACES = {
    "feedback": "explain:feedback",
    "quantize": "compress:quantize",
    "toy-cluster": "jobs:toy_cluster",
    "compare": "report:compare",
    "evaluate": "infer:evaluate",
    "predict": "infer:predict",
    "unbundle": "bundle:unbundle",
    "config": "config:config_app",
    "corpus": "corpus:corpus_app",
    "tokenizer": "tokenizer:tokenizer_app",
}
"""Command -> module and function, if they do not have its name."""


EXAMPLES = {
    "train": "paratune train my.yaml",
    "data": "paratune data my.yaml",
    "bundle": "paratune bundle my.yaml -o bundle.tar",
    "unbundle": "paratune unbundle bundle.tar -d DIR",
    "plan": "paratune plan my.yaml --devices 1,2,4,8 --device a100-40gb",
    "sweep": "paratune sweep matrix.yaml --dry-run",
    "published": "paratune published table1.csv --as columns.yaml --matrix NAME",
    "certify": "paratune certify my.yaml --strategies ddp,zero3",
    "jobs": "paratune jobs runs/NAME",
    "compress": "paratune compress runs/NAME --to bf16,int8",
    "glue-submit": "paratune glue-submit runs/cola runs/sst2 --out submission.zip",
    "report": "paratune report runs/a runs/b --out report",
    "compare": "paratune compare runs/a runs/b",
    "watch": "paratune watch runs/NAME",
    "doctor": "paratune doctor my.yaml",
    "publish": "paratune publish runs/NAME --out published",
    "verify": "paratune verify published",
    "launch": "paratune launch my.yaml --site site.yaml --dry-run",
    "toy-cluster": "paratune toy-cluster start",
    "evaluate": "paratune evaluate runs/NAME --data reviews.csv",
    "predict": "paratune predict runs/NAME --input reviews.csv --out predictions.csv",
    "explain": "paratune explain runs/NAME --input reviews.csv --rows 0-2 --out explain/NAME",
    "feedback": "paratune feedback runs/NAME --input essays.csv --out feedback/NAME",
    "serve": "paratune serve runs/NAME",
    "quantize": "paratune quantize runs/NAME --to int8 --out small/NAME",
    "fill-mask": "paratune fill-mask runs/NAME 'What a [MASK] film.'",
    "pseudo-label": "paratune pseudo-label runs/NAME --input more.csv --out labelled.csv --threshold 0.95",
    "corpus": "paratune corpus corpus.yaml",
    "corpus stats": "paratune corpus stats corpus.yaml",
    "corpus sample": "paratune corpus sample corpus.yaml -n 5",
    "tokenizer train": "paratune tokenizer train texts.parquet --out tokenizer",
    "config show": "paratune config show my.yaml",
    "config schema": "paratune config schema > paratune.json",
    "config from-trainer": "paratune config from-trainer training_args.json -o my.yaml",
    "config init": "paratune config init my.yaml --train reviews.csv",
    "completion": "paratune completion zsh > _paratune",
}
