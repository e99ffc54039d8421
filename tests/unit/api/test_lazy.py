"""`import paratune` imports nothing else."""

import subprocess
import sys

import paratune

_CODE = """
import sys, importlib, typing
before = set(sys.modules)
import paratune
assert set(sys.modules) - before == {"paratune"}, set(sys.modules) - before
for name in paratune.__all__:
    assert callable(getattr(paratune, name)), name
assert not {"torch", "transformers", "pandas", "matplotlib"} & set(sys.modules)
"""


def test_importing_it_and_its_names_needs_no_torch():
    subprocess.run([sys.executable, "-P", "-c", _CODE], check=True)


def test_names_are_listed_and_others_are_refused():
    assert set(paratune.__all__) <= set(dir(paratune))
    assert not hasattr(paratune, "trian")
