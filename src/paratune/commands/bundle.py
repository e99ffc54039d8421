"""`paratune bundle` and `paratune unbundle`: a run's model, tokenizer, data and configuration for machines offline."""

import logging
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from paratune import hardware, hub
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import format_bytes
from paratune.bundle.archive import hash_file, read_manifest, unpack, write_bundle
from paratune.bundle.manifest import Manifest, why_no_name
from paratune.config.load import LoadedConfig, load_config
from paratune.config.own_code import own_code
from paratune.config.sources import local_path, split_of
from paratune.console import Display, print_json, set_up_logging, stdout_for_results
from paratune.data.sources import sources_of
from paratune.doctor.model_files import safetensors_line
from paratune.errors import EXIT_OK, ConfigError, DataError

log = logging.getLogger(__name__)

KEPT = (".json", ".txt", ".model", ".safetensors", ".jinja", ".spm", ".vocab", ".codes")
"""Files of a model that are taken along; .py as well with model.trust_remote_code."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
CONFIG_FILE = "config.yaml"


@dataclass
class _Contents:
    """What is going to be in a bundle."""

    files: dict[str, Path] = field(default_factory=dict)
    """By name in the bundle."""
    paths: dict[str, str | list[str]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, name: str, path: Path) -> None:
        if reason := why_no_name(name):
            raise DataError(
                f"{path} cannot be in a bundle: {name!r} {reason}; rename it",
                code="bundle.unsafe",
                path=path,
                name=name,
            )
        self.files[name] = path


def bundle_command(path: Path, overrides: Sequence[str], *, out: Path, with_tokens: bool, as_json: bool) -> int:
    """Gather and write; return the exit code.

    Raises:
        ConfigError, DataError: Something that the configuration names is not here, or is of a kind that is not taken.
    """
    loaded = load_config(path, overrides)
    if out.is_dir():
        raise ConfigError(
            f"-o {out} is a folder; name the file to write, such as {out / 'bundle.tar'}",
            code="output.not_a_file",
            path=out,
        )
    if not out.parent.is_dir():
        raise ConfigError(
            f"-o {out}: the folder {out.parent} does not exist; make it: mkdir -p {shlex.quote(str(out.parent))}",
            code="output.no_folder",
            path=out,
        )
    set_up_logging(speaks=True)
    display = Display(speaks=True)
    with stdout_for_results(), scratch_folder() as scratch:
        contents = _Contents()
        _add_model(contents, loaded)
        _add_data(contents, loaded, scratch)
        if with_tokens:
            _add_tokens(contents, loaded, scratch, display)
        packed = tuple(hash_file(contents.files[name], name) for name in sorted(contents.files))
        manifest = Manifest(loaded.values, contents.paths, packed, contents.sources, hardware.package_versions())
        with display.bar("write", 1) as bar:
            write_bundle(out, manifest, contents.files, lambda done, total: bar.update(done, total=total))
    _say_packed(manifest, contents, out, as_json=as_json)
    return EXIT_OK


def _say_packed(manifest: Manifest, contents: _Contents, out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(out), "left_out": contents.left_out, **manifest.as_dict()})
        return
    for key, source in manifest.sources.items():
        print(plain(f"{key}: {source}"))  # noqa: T201
    if contents.left_out:
        print(plain(f"left out: {', '.join(contents.left_out)}"))  # noqa: T201
    size = format_bytes(out.stat().st_size)
    unpacked = f"paratune unbundle {shlex.quote(out.name)} -d DIR"
    print(plain(f"{out}: {len(manifest.files)} files, {size}   unpack: {unpacked}"))  # noqa: T201


def _add_model(contents: _Contents, loaded: LoadedConfig) -> None:
    model = loaded.config.model
    folder = _model_folder("model.name", model.name, model.revision)
    _require_safe_weights(folder, from_scratch=model.from_scratch)
    with_code = model.trust_remote_code
    _add_folder(contents, "model.name", "model", folder, with_code=with_code, with_weights=not model.from_scratch)
    contents.sources["model.name"] = f"{model.name} ({folder})"
    if model.tokenizer is not None:
        beside = _model_folder("model.tokenizer", model.tokenizer, model.tokenizer_revision)
        _add_folder(contents, "model.tokenizer", "tokenizer", beside, with_code=with_code, with_weights=False)
        contents.sources["model.tokenizer"] = f"{model.tokenizer} ({beside})"


def _model_folder(key: str, name: str, revision: str | None) -> Path:
    """Return the folder of a model: the one that is named, or one that is fetched into the hub's cache."""
    from paratune.models.load import locate

    found = Path(locate(name))
    if found.is_dir():
        return found
    from huggingface_hub import snapshot_download

    reason = hub.why_not()
    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=[f"*{suffix}" for suffix in (*KEPT, ".py")],
                local_files_only=reason is not None,
            )
        )
    except Exception as error:  # of whichever client this version uses
        why = f"its files are not in the cache, and {reason}" if reason else str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{key}: {name} cannot be taken from the hub: {why}; make the bundle where it can",
            code="model.not_found",
            key=key,
            name=name,
        ) from error


def _require_safe_weights(folder: Path, *, from_scratch: bool) -> None:
    if from_scratch or any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if not pickles:
        raise ConfigError(
            f"model.name: {folder} has no weights in safetensors, and a bundle takes no others; name a model that has "
            "them, or set model.from_scratch: true",
            code="bundle.unsafe_weights",
            key="model.name",
            value=folder,
        )
    raise ConfigError(
        f"model.name: {folder} has its weights in {', '.join(pickles)}, which are pickles and in no bundle; where you "
        f"trust them, save them as safetensors beside: {safetensors_line(folder / pickles[0])}",
        code="bundle.unsafe_weights",
        key="model.name",
        value=folder,
        files=pickles,
    )


def _add_folder(contents: _Contents, key: str, top: str, folder: Path, *, with_code: bool, with_weights: bool) -> None:
    kept = (*KEPT, ".py") if with_code else KEPT
    for path in sorted(folder.iterdir()):
        is_wanted = path.suffix in kept and (with_weights or path.suffix != ".safetensors")
        if path.is_file() and is_wanted:
            contents.add(f"{top}/{path.name}", path)
        elif not path.name.startswith("."):
            contents.left_out.append(f"{top}/{path.name}")
    contents.paths[key] = top


def _add_data(contents: _Contents, loaded: LoadedConfig, scratch: Path) -> None:
    data = loaded.config.data
    for name in ("train", "validation", "test"):
        value = getattr(data, name)
        taken = [_add_source(contents, loaded, source, scratch) for source in sources_of(value)]
        if taken and any(taken):
            kept = [new or old for new, old in zip(taken, sources_of(value), strict=True)]
            contents.paths[f"data.{name}"] = kept if isinstance(value, list) else kept[0]
            contents.sources[f"data.{name}"] = " + ".join(sources_of(value))
    for section in ("extra", "predict"):
        for name, source in getattr(data, section).items():
            if (new := _add_source(contents, loaded, source, scratch)) is not None:
                contents.paths[f"data.{section}.{name}"] = new
                contents.sources[f"data.{section}.{name}"] = source


def _add_source(contents: _Contents, loaded: LoadedConfig, source: str, scratch: Path) -> str | None:
    """Add a file or a folder of data; return its path in the bundle, None of what comes with paratune."""
    if source.startswith("demo:"):
        return None
    number = len({name.split("/")[1] for name in contents.files if name.startswith("data/")})
    if source.startswith("hub:"):
        import pyarrow.parquet as pq

        from paratune.data.read import read_table

        path = scratch / f"{number}.parquet"
        pq.write_table(read_table(source, revision=loaded.config.data.hub_revision), path)
        return _add_file(contents, f"data/{number:04d}/{_plain_name(source)}.parquet", path)
    whole = local_path(source)
    assert whole is not None
    path, split = split_of(whole)
    if not path.exists():
        raise DataError(f"{path} does not exist (working directory: {Path.cwd()})", code="data.not_found", path=path)
    name = f"data/{number:04d}/{_plain_name(path.name)}"
    mark = "" if split is None else f"#{split}"
    if path.is_file():
        return _add_file(contents, name, path) + mark
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and inner.suffix in (".json", ".arrow"):
            contents.add(f"{name}/{inner.relative_to(path).as_posix()}", inner)
    return name + mark


def _add_file(contents: _Contents, name: str, path: Path) -> str:
    contents.add(name, path)
    return name


def _plain_name(name: str) -> str:
    """Return a name in letters, digits, dots and lines, short enough, with its suffixes."""
    stem, dot, suffixes = name.partition(".")
    text = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).lstrip("-") or "data"
    return (text + dot + re.sub(r"[^A-Za-z0-9._-]+", "-", suffixes))[-60:].lstrip(".-")


def _add_tokens(contents: _Contents, loaded: LoadedConfig, scratch: Path, display: Display) -> None:
    """Tokenize all data as training would, so that the machines offline need not."""
    from paratune.data.tokens import Tokenizing
    from paratune.models.limits import token_limit
    from paratune.models.load import load_tokenizer
    from paratune.models.task_model import takes_token_types
    from paratune.tasks import recipe_of
    from paratune.tasks.further import load_further

    config = loaded.config
    tokenizer = load_tokenizer(config.model, config.data.truncation_side)
    with display.bar("tokenize", 1) as bar:
        how = Tokenizing(
            tokenizer,
            token_limit(config, tokenizer),
            truncation=config.data.truncation,
            need_token_type_ids=takes_token_types(tokenizer),
            cache_dir=scratch / "cache",
            progress=lambda done, total: bar.update(done, total=total),
        )
        recipe = recipe_of(config.task)
        recipe.load_splits(config.data, how)
        load_further(recipe, config.data, how)
    for path in sorted((scratch / "cache").rglob("*")):
        if path.is_file() and path.suffix != ".lock":
            contents.add(f"cache/{path.relative_to(scratch / 'cache').as_posix()}", path)
    contents.paths["data.cache_dir"] = "cache"
    contents.sources["data.cache_dir"] = "tokens made for this configuration"


def unbundle_command(bundle: Path, *, folder: Path, allows_code: bool, as_json: bool) -> int:
    """Unpack, and write the configuration with the paths of this machine; return the exit code.

    Raises:
        DataError: The bundle is damaged, holds what none should, or names Python code and `allows_code` is false.
    """
    set_up_logging(speaks=True)
    code = own_code(read_manifest(bundle).config)
    if code and not allows_code:
        raise DataError(
            f"{bundle}: its configuration imports Python code that does not come with paratune: {', '.join(code)}. "
            "Such code can do anything that you can; where you trust it, add --allow-code. Nothing was unpacked",
            code="bundle.own_code",
            bundle=bundle,
            modules=code,
        )
    with Display(speaks=True).bar("unpack", 1) as bar:

        def complete(manifest: Manifest, aside: Path) -> None:
            _write_configuration(manifest, aside, folder.resolve(), bundle)

        manifest = unpack(bundle, folder, lambda done, total: bar.update(done, total=total), complete)
    config = folder / CONFIG_FILE
    if as_json:
        print_json({"config": str(config), "num_files": len(manifest.files), "sources": dict(manifest.sources)})
        return EXIT_OK
    if code:
        print(plain(f"training imports Python code that does not come with paratune: {', '.join(code)}"))  # noqa: T201
    trained = f"paratune train {shlex.quote(str(config))}"
    print(plain(f"{folder}: {len(manifest.files)} files, hashes checked   train: {trained}"))  # noqa: T201
    return EXIT_OK


def _write_configuration(manifest: Manifest, aside: Path, folder: Path, bundle: Path) -> None:
    """Write the configuration with the paths of a folder to where its files still lie.

    Raises:
        DataError: It is none that this version knows.
    """
    config = aside / CONFIG_FILE
    try:
        values = configuration(manifest, folder)
        config.write_text(_HEAD + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8")
        load_config(config)
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        made = manifest.versions.get("paratune") or "n/a"
        why = error if isinstance(error, ConfigError) else f"it lacks {error}"
        raise DataError(
            f"{bundle}: its configuration, of paratune {made}, is none of this version; nothing was unpacked: {why}",
            code="run.other_version",
            bundle=bundle,
            made=made,
        ) from error


_HEAD = "# Written by paratune unbundle: the configuration of the bundle with the paths of this folder.\n"


def configuration(manifest: Manifest, folder: Path) -> dict[str, Any]:
    """Return the configuration of a bundle that was unpacked into a folder.

    Runs go to the folder's own `runs` where the configuration named an absolute path of another machine. Revisions are
    left out: what they named is in the folder.
    """
    values: dict[str, Any] = _copied(manifest.config)
    for key, value in manifest.paths.items():
        paths = [_absolute(each, folder) for each in (value if isinstance(value, list) else [value])]
        _put(values, key, paths if isinstance(value, list) else paths[0])
    values["model"] |= {"revision": None, "tokenizer_revision": None}
    values["data"]["hub_revision"] = None
    runs = Path(values["run"]["folder"])
    if ".." in runs.parts:
        raise DataError(
            f"run.folder: {runs} leads out of the folder of the bundle; nothing was unpacked",
            code="bundle.unsafe",
            key="run.folder",
            value=runs,
        )
    if runs.is_absolute():
        values["run"]["folder"] = str(folder / "runs")
    if "data.cache_dir" not in manifest.paths:
        values["data"]["cache_dir"] = None
    return values


def _absolute(path: str, folder: Path) -> str:
    return path if path.startswith("demo:") else str(folder / path)


def _copied(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _copied(value) for key, value in values.items()}
    return [_copied(value) for value in values] if isinstance(values, list) else values


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".", 2)
    for name in above:
        values = values[name]
    values[last] = value
