"""Signs the records of this user, and admits the code that records name: without a question where they are signed.

A run and its model name code: a head, a loss, metrics, data sets, Python files in the model folder. Somebody may give
the user a run; then its code must not run unless the user says so. The user's own runs need no question. So
`run.json` and `paratune.json` have a `signature`: HMAC-SHA256 with a random key, which is in the user's state folder
and leaves this machine with no record. A record of another user, of another home, or one that was edited has no valid
signature, and needs --run-code.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from paratune.config.own_code import add_to_path, named_code, own_model_options
from paratune.config.permission import REMOTE_CODE, NamedCode, admit, is_trusted
from paratune.errors import CheckpointError, coded
from paratune.records import RUN_FILE, file_sha256, finite, read_json

log = logging.getLogger(__name__)
SIGNATURE: Final = "signature"
TASK_FILE: Final = "paratune.json"  # in a model folder: task, columns, token limit and files
_SIGNED_OF_RUN = ("config", "config_file")  # which code a run names, and where Python looks for it
_KEY_BYTES = 32
_warned: set[str] = set()


def signed(record: Mapping[str, Any], model: Path | None = None) -> dict[str, Any]:
    """Return the content of a record with a signature.

    Without `model` it is run.json, of a run whose code the user's own configuration names. With a model folder it is
    `paratune.json`, after all other files of the folder are written.
    """
    return {**record, SIGNATURE: _signature(record, model, create=True)}


def is_own(record: Any, model: Path | None = None) -> bool:
    """Return whether run.json, or the `paratune.json` of a model folder, has the signature of this user.

    That of a model is for the Python files of the folder, too.
    """
    if not isinstance(record, dict) or not isinstance(record.get(SIGNATURE), str):
        return False
    own = _signature(record, model, create=False)
    return own is not None and hmac.compare_digest(own.encode(), record[SIGNATURE].encode(errors="replace"))


def read_task_file(folder: Path) -> dict[str, Any]:
    """Return the record that paratune wrote beside a model; empty for a model of another program.

    Raises:
        CheckpointError: It is damaged.
    """
    record = folder / TASK_FILE
    known = read_json(record) if record.is_file() else {}
    if not isinstance(known, dict):
        raise CheckpointError(
            f"{record} is damaged: paratune did not write its content; copy the folder again, or delete this file to "
            "use the model as one of another program",
            code="run.damaged",
            record=record,
        )
    return known


def admit_data(folder: Path) -> None:
    """Allow the data sets of own code of a run, before they are read again.

    Raises:
        ConfigError: Its run.json is not the user's, and --run-code was not given.
    """
    record = read_json(folder / RUN_FILE)
    config = record.get("config") if isinstance(record, dict) else None
    code = named_code({"data": config.get("data")} if isinstance(config, dict) else {})
    admit(code, folder / RUN_FILE, is_own=is_own(record))
    if code and isinstance(place := record.get("config_file"), str):  # None for a mapping
        add_to_path(Path(place).parent)  # where own code is, as in the training


def admit_model(name: str, known: Mapping[str, Any], run: Path | None) -> bool:
    """Allow the code of a saved model, before it is loaded.

    Args:
        name: Model folder or hub name.
        known: Content of its `paratune.json`; empty without one.
        run: Folder of its run, if known.

    Returns:
        Whether transformers may run Python files of the model.

    Raises:
        ConfigError: The record is not the user's, and --run-code was not given.
    """
    folder, record = Path(name), {} if run is None else read_json(run / RUN_FILE)
    place: Path | str = folder / TASK_FILE if folder.is_dir() else name
    own_run, is_named = is_own(record), is_trusted(place)
    code = named_code({**known, "model": own_model_options(known.get("model")), "evaluate": known})
    # A damaged record asks for nothing.
    config = record.get("config") if isinstance(record, dict) else None
    model = config.get("model") if isinstance(config, dict) else None
    asks = isinstance(model, dict) and model.get("trust_remote_code") is True and any(folder.glob("*.py"))
    if asks or is_named:
        code.append(NamedCode(REMOTE_CODE, name, shown="true"))
    if not code:
        return False
    admit(code, place, is_own=is_own(known, folder) and (run is None or own_run))
    if (own_run or is_named) and isinstance(beside := record.get("config_file"), str):
        add_to_path(Path(beside).parent)  # where own code is, as in the training
    return asks or is_named


def _signature(record: Mapping[str, Any], model: Path | None, *, create: bool) -> str | None:
    """Return the signature of a record; None, with a warning where one is to be signed, without a usable key."""
    content: list[Any] = ["run", {name: record.get(name) for name in _SIGNED_OF_RUN}]
    if model is not None:
        # With what decides which Python files of the folder run: hashes, and classes that files name.
        paths = sorted(model.rglob("*.py")) if model.is_dir() else ()
        files: dict[str, Any] = {path.relative_to(model).as_posix(): file_sha256(path) for path in paths}
        for path in sorted(model.glob("*config.json")):
            with suppress(OSError, ValueError, RecursionError):
                values = json.loads(path.read_bytes())
                known = values if isinstance(values, dict) else {}
                files[path.name] = {key: known.get(key) for key in ("auto_map", "base_model_name_or_path")}
        named = {name: value for name, value in record.items() if name != SIGNATURE}
        content = ["model", {"record": named, "files": files}]
    key, state = None, os.environ.get("XDG_STATE_HOME", "")
    with suppress(RuntimeError):  # no home directory
        key = (Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state") / "paratune" / "key"
    problem = "there is no home directory"
    if key is not None:
        try:
            if create and not key.exists():
                # All processes of a run start at once, and get the same key: a link never replaces one that another
                # process has just made.
                key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                temporary = key.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}.tmp")
                try:
                    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                        file.write(secrets.token_bytes(_KEY_BYTES))
                        file.flush()
                        os.fsync(file.fileno())
                    with suppress(FileExistsError):
                        os.link(temporary, key)
                finally:
                    temporary.unlink(missing_ok=True)
            with key.open("rb") as file:
                mode, secret = os.fstat(file.fileno()).st_mode, file.read(_KEY_BYTES + 1)
            if stat.S_IMODE(mode) & 0o077:
                raise ValueError("other users may read it; chmod 600 it, or delete it")
            if len(secret) != _KEY_BYTES:
                raise ValueError(f"it does not have {_KEY_BYTES} bytes; delete it")
            text = json.dumps(finite(content), sort_keys=True)
            return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
        except (OSError, ValueError) as error:
            problem = f"{key} cannot be used: {error}"
    if create and problem not in _warned:
        _warned.add(problem)
        log.warning(
            "the records of this run are not signed, because %s; if the run has code of your own, commands that load "
            "its model need --run-code",
            problem,
            extra=coded("code.no_key"),
        )
    return None
