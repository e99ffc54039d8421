"""Collects the files of a run for `paratune bundle`, and writes the configuration of an unpacked bundle."""

import re
import shlex
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from paratune.config.load import LoadedConfig, load_config
from paratune.config.optional_sections import teacher_names
from paratune.config.permission import is_allowed
from paratune.config.plain import set_at
from paratune.config.sections import named_columns, named_sources
from paratune.config.sources import CODE, absence, local_path, path_and_split
from paratune.errors import ConfigError, DataError
from paratune.hub.bundle import Manifest, name_problem

MODEL_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".jinja", ".spm", ".vocab", ".codes")
"""Files of a model that are packed; also .py with model.trust_remote_code."""
CONFIG_FILE = "config.yaml"
HEAD = "# Written by paratune unbundle: the configuration of the bundle with the paths of this folder.\n"


@dataclass
class BundleContents:
    """The contents of a bundle before it is written."""

    files: dict[str, Path] = field(default_factory=dict)
    """Name in the bundle -> file."""
    paths: dict[str, str | list[str]] = field(default_factory=dict)
    """Configuration key -> names in the bundle."""
    sources: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, name: str, path: Path, *, folder: Path | None = None) -> None:
        """Add a file; one that was found in a folder must be in it, and no link to any other file of the user."""
        if folder is not None:
            target, top = path.resolve(), folder.resolve()
            # A folder in the cache of the hub links to its files.
            cache = top.parents[1] / "blobs" if top.parent.name == "snapshots" else top
            if not (target.is_relative_to(top) or target.is_relative_to(cache)):
                message = f"{path} is a link to a file outside {folder}; copy the file there, or remove the link"
                raise DataError(message, code="bundle.unsafe", path=path)
        if reason := name_problem(name):
            message = f"{path} cannot be in a bundle: {name!r} {reason}; rename it"
            raise DataError(message, code="bundle.unsafe", path=path, name=name)
        self.files[name] = path


def add_model(contents: BundleContents, loaded: LoadedConfig) -> None:
    """Add the model and the tokenizer of a configuration, and the models of its teachers.

    Raises:
        ConfigError: A model is missing or incomplete, or has no weights in safetensors.
    """
    from paratune.models.locate import teacher_folder

    model, distil = loaded.config.model, loaded.config.distil
    folder, download = _model_folder("model.name", model.name, model.revision)
    needs = {"config", *(["weights"] * (not model.from_scratch)), *(["tokenizer"] * (model.tokenizer is None))}
    _require(needs, folder, "model.name", download)
    suffixes = {*MODEL_SUFFIXES, *([".py"] if model.trust_remote_code else [])}
    weights = {".safetensors"} if model.from_scratch else set()
    _add_folder(contents, "model", folder, suffixes - weights)
    contents.paths["model.name"], contents.sources["model.name"] = "model", f"{model.name} ({folder})"
    if model.tokenizer is not None:
        folder, download = _model_folder("model.tokenizer", model.tokenizer, model.tokenizer_revision)
        _require({"tokenizer"}, folder, "model.tokenizer", download)
        _add_folder(contents, "tokenizer", folder, suffixes - {".safetensors"})
        contents.paths["model.tokenizer"] = "tokenizer"
        contents.sources["model.tokenizer"] = f"{model.tokenizer} ({folder})"
    if distil is not None:
        names = teacher_names(distil)
        tops = [f"teacher_{number}" for number in range(len(names))]
        for name, top in zip(names, tops, strict=True):
            folder = teacher_folder(name)
            _require({"weights"}, folder, "distil.teacher", None)
            _add_folder(contents, top, folder, {*MODEL_SUFFIXES, ".md"})  # all files with hashes, which are checked
        contents.paths["distil.teacher"] = tops if isinstance(distil.teacher, list) else tops[0]
        contents.sources["distil.teacher"] = ", ".join(names)


def _add_folder(contents: BundleContents, top: str, folder: Path, suffixes: Collection[str]) -> None:
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in suffixes:
            contents.add(f"{top}/{path.name}", path, folder=folder)
        elif not path.name.startswith("."):
            contents.left_out.append(f"{top}/{path.name}")


def _model_folder(key: str, name: str, revision: str | None) -> tuple[Path, str | None]:
    """Return the folder of a model, and for one in the cache of the hub the command that completes it."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from paratune.commands.doctor_model import cached_folder
    from paratune.models.locate import locate

    folder = Path(locate(name))
    if folder.is_dir():
        return folder, None
    at = "" if revision is None else f" --revision {shlex.quote(revision)}"
    download = f"hf download {shlex.quote(name)}{at}"
    cached = cached_folder(Path(HF_HUB_CACHE), name, revision)
    if cached is None:
        message = f"{key}: {name} is not in the cache of the hub; download it first: {download}"
        raise ConfigError(message, code="model.not_found", key=key, name=name)
    return cached, download


def _require(needs: Collection[str], folder: Path, key: str, download: str | None) -> None:
    """Raise a ConfigError for a folder that lacks its `config`, `weights` or `tokenizer`."""
    from paratune.commands.doctor_model import weight_files
    from paratune.models.locate import pickles, safetensors_line
    from paratune.models.tokenizer import TOKENIZER_FILES

    missing = []
    # A local folder without it may be that of an adapter.
    if "config" in needs and download is not None and not (folder / "config.json").is_file():
        missing.append("config.json")
    if "weights" in needs:
        missing += (lacking := weight_files(folder)[1])
        if not lacking and not any(folder.glob("*.safetensors")):
            if files := pickles(folder):
                names = [path.name for path in files]
                message = f"{key}: {folder} has its weights in {', '.join(names)}, and a bundle contains no pickles. "
                message += f"If you trust them, also save them as safetensors: {safetensors_line(files)}"
                raise ConfigError(message, code="bundle.unsafe", key=key, value=folder, files=names)
            missing.append("model.safetensors")
    if "tokenizer" in needs and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        missing.append("the files of a tokenizer")
    if missing:
        remedy = "copy them" if download is None else f"download them first: {download}"
        message = f"{key}: {folder} lacks {', '.join(missing)}; {remedy}"
        raise ConfigError(message, code="model.files_missing", key=key, files=missing)


def add_data(contents: BundleContents, loaded: LoadedConfig, scratch: Path) -> None:
    data = loaded.config.data
    for name in ("train", "validation", "test"):
        value = getattr(data, name)
        names = [_add_source(contents, loaded, source, scratch) for source in named_sources(value)]
        if any(names):
            paths = [new or old for new, old in zip(names, named_sources(value), strict=True)]
            if name != "train" and len(paths) > 1:
                message = f"data.{name}: {value} matches {len(paths)} files, and a bundle can have one; join them first"
                raise ConfigError(message, code="config.invalid_value", key=f"data.{name}")
            contents.paths[f"data.{name}"] = paths if isinstance(value, list) or len(paths) > 1 else paths[0]
            contents.sources[f"data.{name}"] = " + ".join(named_columns(value))
    for section in ("extra", "predict"):
        for name, source in getattr(data, section).items():
            if (new := _add_source(contents, loaded, source, scratch)) is not None:
                contents.paths[f"data.{section}.{name}"] = new
                contents.sources[f"data.{section}.{name}"] = source


def _add_source(contents: BundleContents, loaded: LoadedConfig, source: str, scratch: Path) -> str | None:
    """Add a file or a folder of data; return its path in the bundle, None for data that comes with paratune."""
    if source.startswith("demo:"):
        return None
    if source.startswith(CODE) and not is_allowed(source.removeprefix(CODE).partition("?")[0]):
        contents.left_out.append(f"{source} (not imported without --run-code)")
        return None
    number = len({name.split("/")[1] for name in contents.files if name.startswith("data/")})
    if source.startswith(("hub:", CODE)):
        import pyarrow.parquet as pq

        from paratune.data.read import read_table

        path = scratch / f"{number}.parquet"
        pq.write_table(read_table(source, loaded.config.data.reading), path)
        name = f"data/{number:04d}/{_plain_name(source)}.parquet"
        contents.add(name, path)
        return name
    named_path = local_path(source)
    assert named_path is not None
    path, split = path_and_split(named_path)
    if not path.exists():
        raise DataError(f"{path}{absence(path)}", code="data.not_found", path=path)
    name = f"data/{number:04d}/{_plain_name(path.name)}"
    mark = "" if split is None else f"#{split}"
    if path.is_file():
        contents.add(name, path)
        return name + mark
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and inner.suffix in (".json", ".arrow"):
            contents.add(f"{name}/{inner.relative_to(path).as_posix()}", inner, folder=path)
    return name + mark


def _plain_name(name: str) -> str:
    """Return a name of at most 60 letters, digits, dots, `_` and `-`, with its suffixes."""
    stem, dot, suffixes = name.partition(".")
    text = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).lstrip("-") or "data"
    return (text + dot + re.sub(r"[^A-Za-z0-9._-]+", "-", suffixes))[-60:].lstrip(".-")


def write_configuration(manifest: Manifest, unpacked: Path, folder: Path, bundle: Path) -> LoadedConfig:
    """Write the configuration with the paths of `folder`, which `unpacked` becomes, and return it as it loads.

    An absolute `run.folder` becomes `runs` in the folder. Revisions are dropped: the bundle has the files.

    Raises:
        DataError: This version cannot read the configuration, or its run folder is outside.
    """
    values: dict[str, Any] = deepcopy(dict(manifest.config))
    try:
        for key, value in manifest.paths.items():
            names = value if isinstance(value, list) else [value]
            paths = [name if name.startswith("demo:") else str(folder / name) for name in names]
            set_at(values, key, paths if isinstance(value, list) else paths[0])
        values["model"] |= {"revision": None, "tokenizer_revision": None}
        values["data"] |= {"hub_revision": None, "cache_dir": None}
        runs = Path(values["run"]["folder"])
        if ".." in runs.parts:
            message = f"run.folder: {runs} is outside the folder of the bundle; nothing was unpacked"
            raise DataError(message, code="bundle.unsafe", key="run.folder", value=runs)
        if runs.is_absolute():
            values["run"]["folder"] = str(folder / "runs")
        config = unpacked / CONFIG_FILE
        config.write_text(HEAD + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
        return load_config(config)
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        version = manifest.versions.get("paratune") or "n/a"
        why = error if isinstance(error, ConfigError) else f"it lacks {error}"
        message = (
            f"{bundle}: this version cannot read its configuration, of paratune {version}; nothing was unpacked: {why}"
        )
        raise DataError(message, code="run.other_version", bundle=bundle, version=version) from error
