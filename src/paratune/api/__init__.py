"""The Python interface: the functions behind `paratune.train`, `paratune.evaluate` and the others.

The commands call these functions; `paratune/__init__.py` names them, and imports one when it is used.
"""
