"""`paratune data`: what is in the files of a configuration, before anything is trained on them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.commands.data_figures import check_kind, data_view
from paratune.config.load import LoadedConfig, load_config
from paratune.config.sections import Config
from paratune.console import Display, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_DATA, EXIT_OK, require_installed
from paratune.report.data_figures import pictures
from paratune.report.data_page import PAGE, check_figures_folder, write_pictures


def data_command(path: Path, overrides: Sequence[str], *, as_json: bool, figures: Path | None = None) -> int:
    """Print the description, draw pictures where `figures` says; return the exit code.

    It is that of a `DataError` where training would refuse rows that are counted here.
    """
    loaded = load_config(path, overrides)
    if figures is not None:
        require_installed("matplotlib", extra="plots")
        check_kind(loaded.config.task)
        check_figures_folder(figures)
    set_up_logging(speaks=True)
    config = loaded.config
    with stdout_for_results():
        from paratune.data.columns import num_lacking
        from paratune.data.describe import describe, render

        recipe, splits, max_length = read_splits(config)
    description = describe(splits, config.task, config.data.columns, max_length=max_length)
    labelled = {name: split for name, split in splits.items() if name not in config.data.predict}
    description["warnings"] += [text for text in recipe.warnings(labelled) if text not in description["warnings"]]
    num_refused = sum(num_lacking(split.num_dropped) for split in splits.values())
    num_refused *= config.data.missing == "refuse"
    if num_refused:
        description["warnings"].append(
            f"training will refuse this data: {num_refused} rows lack something or cannot be used, and data.missing is "
            "refuse; mend the files, or set data.missing: drop"
        )
    if figures is not None:
        with Display(speaks=True).bar("draw", 1):
            description["figures"] = _draw(loaded, labelled, max_length, figures)
    if as_json:
        print_json(description)
    else:
        print_result(render(description))
        for line in _drawn(description, figures) if figures is not None else ():
            print(plain(line))  # noqa: T201
    return EXIT_DATA if num_refused else EXIT_OK


def read_splits(config: Config) -> tuple[Any, dict[str, Any], int]:
    """Return the recipe of the task, all sets with their tokens, and the tokens of a sample at most.

    Rows that lack something are left out and counted, whatever a training would do about them.

    Raises:
        ConfigError, DataError: The tokenizer or the data cannot be read.
    """
    from paratune.data.tokens import Tokenizing
    from paratune.models.limits import token_limit
    from paratune.models.load import load_tokenizer
    from paratune.models.task_model import takes_token_types
    from paratune.tasks import recipe_of
    from paratune.tasks.further import load_further

    tokenizer = load_tokenizer(config.model, config.data.truncation_side)
    max_length = token_limit(config, tokenizer)
    with Display(speaks=True).bar("tokenize", 1) as bar:
        how = Tokenizing(
            tokenizer,
            max_length,
            truncation=config.data.truncation,
            need_token_type_ids=takes_token_types(tokenizer),
            cache_dir=config.data.cache_dir,
            progress=lambda done, total: bar.update(done, total=total),
        )
        recipe, data = recipe_of(config.task), config.data.model_copy(update={"missing": "drop"})
        return recipe, recipe.load_splits(data, how) | load_further(recipe, data, how), max_length


def _draw(loaded: LoadedConfig, splits: Mapping[str, Any], max_length: int, folder: Path) -> list[dict[str, Any]]:
    """Write the pictures; return what the description says of them."""
    view = data_view(loaded.config, splits, max_length)
    rows = ", ".join(f"{count:,} {name}" for name, count in view.splits.items())
    sources = " + ".join(dict.fromkeys(split.source for split in splits.values()))
    title = f"Data of {loaded.config.run.name}"
    return write_pictures(folder, list(pictures(view)), title=title, about=f"{sources}; rows: {rows}.")


def _drawn(description: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield a line for each picture, and for what stands in the place of one."""
    for each in description["figures"]:
        yield f"{folder / each['files'][0]} and .png"
        if each["note"]:
            yield f"  {each['note']}"
    yield str(folder / PAGE)
