"""One folder with everything for the GPU checks on a machine without a network: source, wheels, tokenizer, run.sh.

The machine has Python 3.12 on x86-64 Linux with torch, transformers, accelerate, numpy, scipy, scikit-learn, pyyaml,
rich, psutil, filelock and safetensors; the wheels are paratune's other dependencies. pyarrow's is 55 MB: the
folder has an archive of its imported parts, which run.sh uses if the machine has no pyarrow. packed-encoders is not
packed: its compiler alone is 185 MB (nvidia-cutlass-dsl).
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MOST_BYTES = 40 * 2**20
PACKAGES = (
    "annotated-types",
    "attrs",
    "cyclopts",
    "docstring-parser",
    "pydantic",
    "pydantic-core",
    "rich-rst",
    "typing-extensions",
    "typing-inspection",
)
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
PYTHON = "3.12"
NOT_IMPORTED = re.compile(
    r"/(include|tests|src|vendored)/|libarrow_(python_)?(flight|s3)|/_(flight|substrait|s3fs|gcsfs|azurefs|hdfs|orc)\.|"
    r"/(_pyarrow_cpp_tests|_cuda)|libarrow_python\w*\.so(\.\d+\.\d+\.\d+)?$|\.(pyx|pxd|pxi|h|hpp|cc|pyi)$"
)
"""Files of pyarrow that reading tables does not need. Libraries are loaded by their name with one version number."""
TOKENIZER = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
TREES = ("src/paratune", "benchmarks/gpu_parts", "tests/gpu")
FILES = (
    "pyproject.toml",
    "benchmarks/gpu.py",
    "benchmarks/peers/packed_encoders_speed.py",
    "benchmarks/peers/padding_free.py",
    "tests/__init__.py",
    "tests/architectures.py",
    "tests/conftest.py",
    "tests/tiny.py",
)
RUN = """#!/bin/sh
# sh run.sh OUT [options of benchmarks/gpu.py, such as --minutes 9]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
site=${PARATUNE_SITE:-/tmp/paratune-site}
for wheel in "$here"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
export PYTHONPATH="$here/paratune/src:$site${PYTHONPATH:+:$PYTHONPATH}"
python3 -c 'import pyarrow.parquet' 2>/dev/null || python3 -m tarfile --filter data -e "$here/pyarrow.tar.xz" "$site"
exec python3 "$here/paratune/benchmarks/gpu.py" --tokenizer "$here/tokenizer" --out "$out" "$@"
"""


def pack(folder: Path) -> int:
    """Make the folder; return 1 if it is larger than `MOST_BYTES`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in TREES:
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, folder / "paratune" / name, ignore=skip, dirs_exist_ok=True)
    for name in FILES:
        target = folder / "paratune" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, target)
    _copy_tokenizer(folder / "tokenizer")
    _download([*PACKAGES, "pyarrow"], folder / "wheels")
    (wheel,) = (folder / "wheels").glob("pyarrow-*.whl")
    shrink(wheel, folder / "pyarrow.tar.xz")
    wheel.unlink()
    (folder / "run.sh").write_text(RUN, encoding="utf-8")
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {num_bytes / 2**20:.1f} MiB; there: sh {folder.name}/run.sh OUT --minutes 9")
    if num_bytes > MOST_BYTES:
        print(f"that is more than {MOST_BYTES / 2**20:.0f} MiB", file=sys.stderr)
    return int(num_bytes > MOST_BYTES)


def _copy_tokenizer(target: Path) -> None:
    from paratune.models.locate import locate

    source = Path(locate("demo:minilm"))
    target.mkdir(parents=True)
    for name in TOKENIZER:
        shutil.copy(source / name, target / name)


def _download(packages: list[str], target: Path) -> None:
    """Download wheels for the other machine in the versions of constraints.txt."""
    pinned = dict(_pinned())
    words = [f"{name}=={pinned[name.replace('_', '-').lower()]}" for name in packages]
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(target), *words]
    subprocess.run(command, check=True)


def _pinned() -> Iterator[tuple[str, str]]:
    for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, separator, version = line.partition("==")
        if separator and not line.startswith("#"):
            yield name.strip().replace("_", "-").lower(), version.strip()


def shrink(wheel: Path, target: Path) -> None:
    """Write a wheel of pyarrow as an archive with only the imported parts; `python -m tarfile -e` unpacks it.

    The lowest preset takes 8 s of a slow core and gives 27 MiB; the default one takes a minute for 24 MiB.
    """
    with zipfile.ZipFile(wheel) as source, tarfile.open(target, "w:xz", preset=0) as out:
        for entry in source.infolist():
            if not entry.is_dir() and not NOT_IMPORTED.search(entry.filename):
                member = tarfile.TarInfo(entry.filename)
                member.size = entry.file_size
                out.addfile(member, source.open(entry))
