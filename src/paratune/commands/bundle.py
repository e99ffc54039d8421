"""`paratune bundle` and `unbundle`: all files of a run in one file, for machines without a network."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paratune import hardware
from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import format_bytes
from paratune.commands.options import Json, Overrides, check_output
from paratune.config.own_code import imported_code
from paratune.console import print_json, set_up_logging, stdout_for_results
from paratune.errors import DataError

if TYPE_CHECKING:
    from paratune.hub.bundle import Manifest


def bundle(
    config: Path,
    /,
    *,
    out: Annotated[Path, Parameter(alias="-o")],
    set_: Overrides = (),
    run_code: bool = False,
    json: Json = False,
) -> None:
    """Write one file with everything that CONFIG needs, for machines without a network.

    It contains model, tokenizer, data and configuration, with the SHA-256 of every file. A model of the hub is taken
    from the cache (hf download), a data set of the hub is downloaded. The file is written completely, or not at all.

    Args:
        out: file to write, such as bundle.tar
        run_code: also read data sets of Python code that CONFIG names (code:...), and add their rows
    """
    from paratune.commands.bundle_contents import BundleContents, add_data, add_model
    from paratune.config.load import allow_code, load_config
    from paratune.hub.bundle import Manifest, hash_file, write_bundle

    loaded = load_config(config, set_)
    check_output(out, option="--out", overwrite=True)
    if run_code:
        allow_code(loaded)
    set_up_logging(speaks=True)
    with stdout_for_results(), scratch_folder() as scratch:
        contents = BundleContents()
        add_model(contents, loaded)
        add_data(contents, loaded, scratch)
        packed = tuple(hash_file(contents.files[name], name) for name in sorted(contents.files))
        manifest = Manifest(loaded.values, contents.paths, packed, contents.sources, hardware.package_versions())
        write_bundle(out, manifest, contents.files)
    if json:
        print_json({"bundle": str(out), "left_out": contents.left_out, **asdict(manifest)})
        return
    for key, source in manifest.sources.items():
        print(plain(f"{key}: {source}"))  # noqa: T201
    if contents.left_out:
        print(plain(f"left out: {', '.join(contents.left_out)}"))  # noqa: T201
    size, command = format_bytes(out.stat().st_size), f"paratune unbundle {shlex.quote(out.name)} -d DIR"
    print(plain(f"{out}: {len(manifest.files)} files, {size}   unpack: {command}"))  # noqa: T201


def unbundle(
    file: Path, /, *, folder: Annotated[Path, Parameter(alias="-d")], run_code: bool = False, json: Json = False
) -> None:
    """Check and unpack FILE, written by paratune bundle; DIR/config.yaml can be trained without changes.

    Args:
        folder: folder to create
        run_code: unpack a configuration that imports Python code which does not come with paratune
    """
    from paratune.commands.bundle_contents import CONFIG_FILE, write_configuration
    from paratune.hub.bundle import read_manifest, unpack

    set_up_logging(speaks=True)
    _refuse_code(read_manifest(file).config, file, run_code=run_code)  # before a file is unpacked
    code: list[str] = []

    def complete(manifest: "Manifest", unpacked: Path) -> None:
        # Again as training reads it: with the paths of the manifest, and with files that it extends.
        written = write_configuration(manifest, unpacked, folder.resolve(), file)
        code.extend(_refuse_code(written.values, file, run_code=run_code))

    manifest = unpack(file, folder, complete)
    config_file = folder / CONFIG_FILE
    if json:
        print_json({"config": str(config_file), "num_files": len(manifest.files), "sources": dict(manifest.sources)})
        return
    if code:
        print(plain(f"training imports Python code that does not come with paratune: {', '.join(code)}"))  # noqa: T201
    command = f"paratune train {shlex.quote(str(config_file))}"
    print(plain(f"{folder}: {len(manifest.files)} files, hashes checked   train: {command}"))  # noqa: T201


def _refuse_code(values: Mapping[str, Any], file: Path, *, run_code: bool) -> list[str]:
    """Return the options that name Python code, which training would import; refuse them without --run-code."""
    code = imported_code(values)
    if code and not run_code:
        message = f"{file}: its configuration imports Python code that does not come with paratune: {', '.join(code)}. "
        message += "Such code can do everything that you can do; if you trust it, add --run-code. Nothing was unpacked"
        raise DataError(message, code="bundle.own_code", bundle=file, modules=code)
    return code
