"""`paratune push`: uploads the model of a finished run, with its model card, to the Hugging Face hub."""

from pathlib import Path

from paratune.base.atomic import write_text
from paratune.base.text import plain
from paratune.base.units import counted, format_bytes
from paratune.commands.options import Json
from paratune.console import print_json, set_up_logging, stdout_for_results
from paratune.errors import EXIT_OK, CheckpointError, os_error_as


def push(
    run: Path, *, to: str, private: bool = False, revision: str | None = None, dry_run: bool = False, json: Json = False
) -> int:
    """Upload the model of RUN, a finished run, with its model card, to the Hugging Face hub as OWNER/NAME.

    The repository is created if it does not exist. Its other files stay. The token is that of `hf auth login`, or
    HF_TOKEN.

    Args:
        to: repository of the hub, OWNER/NAME
        private: create a private repository; one that exists keeps its visibility
        revision: branch to upload to, created if it does not exist; default main
        dry_run: list the files and their sizes, and upload nothing; needs no network
    """
    from paratune.hub.upload import check_repository, upload_folder
    from paratune.models.files import check_files
    from paratune.training.model_card import CARD_FILE

    check_repository(to)
    set_up_logging(speaks=True)
    folder, card = _finished_model(run)
    check_files(folder)
    sizes = {path.name: path.stat().st_size for path in _saved_files(folder)}
    if card is not None:
        sizes[CARD_FILE] = len(card.encode())
    url = None
    if not dry_run:
        if card is not None:
            with os_error_as(CheckpointError, f"{folder} cannot be written", code="run.not_writable"):
                write_text(folder / CARD_FILE, card)
        with stdout_for_results():
            url = upload_folder(
                folder, to, list(sizes), is_private=private, revision=revision, message=f"Upload {plain(run.name)}"
            )
    if json:
        print_json({"repository": to, "revision": revision or "main", "num_bytes": sizes, "url": url})
        return EXIT_OK
    for name, size in sizes.items():
        print(plain(f"{format_bytes(size):>10}  {name}"))  # noqa: T201
    total = f"{counted(len(sizes), 'file')}, {format_bytes(sum(sizes.values()))}"
    print(plain(f"{total}: {'nothing uploaded (--dry-run)' if url is None else url}"))  # noqa: T201
    return EXIT_OK


def _finished_model(run: Path) -> tuple[Path, str | None]:
    """Return the model folder of a finished run, and the text of its model card where the folder has none.

    Raises:
        CheckpointError: It is no finished run with a model, its record is damaged, or its base model is local.
    """
    from paratune.models.locate import run_model_folder
    from paratune.records import RUN_FILE, SUMMARY_FILE, is_finished, read_json, read_run
    from paratune.training.model_card import CARD_FILE, card_text

    if not (run / RUN_FILE).is_file():
        raise CheckpointError(f"{run} is no run folder: it has no {RUN_FILE}", code="run.not_found", target=run)
    folder, record = run_model_folder(run), read_run(run)
    is_form = record.get("kind") == "form"
    if not is_finished(run):
        remedy = "repeat paratune compress" if is_form else "continue it with --resume"
        raise CheckpointError(f"{run} is not finished; {remedy}", code="run.not_finished", target=run)
    _refuse_local_base(folder)
    if (folder / CARD_FILE).is_file():
        return folder, None
    if is_form:
        message = (
            f"{run} is a smaller form, whose record does not describe a training; write {folder / CARD_FILE} yourself"
        )
        raise CheckpointError(message, code="push.no_card", target=run)
    try:
        return folder, card_text(run, record, read_json(run / SUMMARY_FILE))
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{run}: its record lacks what a model card needs ({error!r}); write {folder / CARD_FILE} yourself"
        raise CheckpointError(message, code="run.damaged", target=run) from error


def _saved_files(folder: Path) -> list[Path]:
    """Return the files of a model that paratune saved, with its record and its card; the folder may have others.

    Raises:
        CheckpointError: One of them is a link, which may lead to any file of the user.
    """
    from paratune.models.files import TASK_FILE
    from paratune.records import read_json
    from paratune.training.model_card import CARD_FILE

    recorded = read_json(folder / TASK_FILE).get("files") or {}
    paths = [folder / name for name in sorted({*recorded, TASK_FILE, CARD_FILE}) if (folder / name).is_file()]
    for path in paths:
        if path.is_symlink() or path.resolve().parent != folder.resolve():
            message = f"{path} is a link, and its content may be another file; copy the file, and push again"
            raise CheckpointError(message, code="push.link", path=path)
    return paths


def _refuse_local_base(folder: Path) -> None:
    """Raise an error for an adapter whose base model nobody else can load: its path would be published, too."""
    from paratune.records import read_json

    path = folder / "adapter_config.json"
    base = str(read_json(path).get("base_model_name_or_path")) if path.is_file() else ""
    if base.startswith(("/", "~", ".")):
        message = (
            f"{folder} is an adapter of {base}, a folder of this machine, which others do not have; train with "
            "model.adapter.save: merged, or from a model of the hub"
        )
        raise CheckpointError(message, code="push.local_base", base=base)
