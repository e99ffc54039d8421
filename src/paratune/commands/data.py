"""`paratune data`: describes the data of a configuration before training."""

import sys
from pathlib import Path

from paratune.base.text import plain
from paratune.commands.options import All, Json, Overrides
from paratune.console import Display, print_json, print_screen, set_up_logging, stdout_for_results
from paratune.errors import EXIT_DATA, EXIT_OK, require_installed


def data(
    config: Path,
    /,
    *,
    set_: Overrides = (),
    figures: Path | None = None,
    run_code: bool = False,
    all_: All = False,
    json: Json = False,
) -> int:
    """Show the data of CONFIG: example rows, labels, lengths, truncation, missing values, duplicates.

    Args:
        figures: folder for figures: .svg, and one page with all of them
        run_code: also read data sets of Python code that CONFIG names (code:...), and import the code of its model
    """
    from paratune.commands.data_figures import check_kind, data_view, read_splits, readable
    from paratune.config.load import load_config
    from paratune.reports.output import MARKER, PAGE, check_folder

    loaded = load_config(config, set_)
    if figures is not None:
        require_installed("matplotlib", extra="plots")
        check_kind(loaded.config.task, loaded.config.data.columns.label)
        check_folder(figures, [PAGE, MARKER], option="--figures")
    set_up_logging(speaks=True)
    options, not_imported = readable(loaded, run_code=run_code)
    # transformers loads tokenizers without torch (2 of 3 s) where the process ends with this command.
    is_process = getattr(getattr(sys.modules["__main__"], "main", None), "__module__", None) == "paratune.cli"
    if is_process and not run_code and "torch" not in sys.modules:
        import transformers.utils

        transformers.utils.is_torch_available = lambda: False
    with stdout_for_results():
        from paratune.data.columns import ALWAYS_DROPPED
        from paratune.data.describe import describe, render
        from paratune.reports.data import write_figures

        recipe, splits, tokenizer, max_length = read_splits(options)
    description = describe(splits, options.task, options.data, tokenizer, max_length=max_length)
    labelled = {name: split for name, split in splits.items() if name not in options.data.predict}
    description["not_imported"] = not_imported
    description["warnings"] += [text for text, _ in recipe.warnings(labelled) if text not in description["warnings"]]
    dropped = [item for split in splits.values() for item in split.num_dropped.items()]
    num_unusable = sum(count for key, count in dropped if key not in ALWAYS_DROPPED)
    num_unusable *= options.data.missing == "refuse"
    description["ok"] = not num_unusable
    if num_unusable:
        message = f"training fails with this data: {num_unusable} rows have missing or unusable values, and "
        message += "data.missing is refuse; correct the files, or set data.missing: drop"
        description["warnings"].insert(0, message)
    if figures is not None:
        with Display(speaks=True).bar("draw", 1):
            sources = " + ".join(dict.fromkeys(split.source for split in labelled.values()))
            rows = ", ".join(f"{split.num_rows:,} {name}" for name, split in labelled.items())
            view, title = data_view(options, labelled, max_length), f"Data of {loaded.config.run.name}"
            about = f"{sources}; rows: {rows}."
            description["figures"] = write_figures(figures, view, title=title, about=about)
    if json:
        print_json(description)
    else:
        notes = (f"not imported without --run-code: {line}" for line in not_imported)
        print_screen(*render(description, all_=all_), *notes, all_=all_)
        if figures is not None:
            drawn = [figure["note"] or figures / figure["file"] for figure in description["figures"]]
            for line in (*drawn, figures / PAGE):
                print(plain(line))  # noqa: T201
    return EXIT_DATA if num_unusable else EXIT_OK
