"""Lets every test import the helpers that lie in this folder (`from tiny import tiny_model`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
