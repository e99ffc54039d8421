"""The page of the Python interface: functions, classes, errors and protocols, from signatures and docstrings."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import paratune
from paratune import errors

RESULTS = (
    "paratune.planning.table:Plan",
    "paratune.reports.comparison:Comparison",
    "paratune.reports.run:Report",
    "paratune.reports.outcomes:SweepReport",
)
PROTOCOLS = (
    "paratune.training.callbacks:TrainingState",
    "paratune.tasks.own:OwnRecipe",
    "paratune.batch:Batch",
    "paratune.strategies.protocol:Strategy",
    "paratune.strategies.protocol:State",
    "paratune.strategies.protocol:ShardedState",
    "paratune.strategies.protocol:ScalesLoss",
    "paratune.strategies.protocol:WatchesGradients",
    "paratune.strategies.protocol:Watch",
)
FILES = {
    "my.yaml": """\
task: {kind: classification, labels: [negative, positive]}
data:
  train: demo:sentences
  columns: {text: sentence, label: label}
  split: {validation: 0.1}
  max_rows: {train: 64, validation: 16}
model: {name: demo:minilm}
train: {max_steps: 2}
batch: {global: 8}
""",
    "matrix.yaml": """\
name: rates
base: my.yaml
axes:
  rate: {low: {train.learning_rate: 1e-5}, high: {train.learning_rate: 1e-4}}
""",
    "reviews.csv": """\
sentence,label
"The food was cold.",negative
"A wonderful film.",positive
""",
}
"""The files that the examples of docstrings read."""
HEAD = """\
# Python

What `import paratune` has, generated from signatures and docstrings; the [guide](../howto/python.md) shows how to use
it. The examples need the extra `demo`, run in this order from `train` on, and read these files:
"""
UNITS = """\
## Units

The end of a name is its unit: `_s` seconds, `_ms` milliseconds, `_bytes` bytes, `_gib` 2^30 bytes, `_per_s` per second,
`_w` watt, `_j` joule; `num_` is a count. Shares and scores are numbers from 0 to 1, not percent. An unknown value is
`None`.
"""


def python_page() -> str:
    """Return the page."""
    lines = [HEAD]
    lines += [f"`{name}`:\n\n```{name.rpartition('.')[2]}\n{text}```\n" for name, text in FILES.items()]
    public = {name: getattr(paratune, name) for name in paratune.__all__}
    functions = [name for name in public if inspect.isfunction(public[name])]
    for name in sorted(functions, key=lambda name: name != "train"):
        lines += [f"## {name}\n", *_entry(f"paratune.{name}", public[name])]
    for name in (name for name in public if name not in functions):
        lines += _class(public[name], f"paratune.{name}")
    lines += _class(_named("paratune.hf:PhaseCallback"), "paratune.hf.PhaseCallback", members=False)
    lines += ["## Results\n", "What `plan`, `compare` and `report` return.\n"]
    for place in RESULTS:
        lines += _class(_named(place), place.replace(":", "."), level=3)
    lines += [*_errors(), UNITS, "## Protocols for own code\n"]
    lines += ["[Your own code](../howto/extend.md) has an example of each, and the functions without a class.\n"]
    for place in PROTOCOLS:
        lines += _class(_named(place), place.replace(":", "."), level=3)
    return "\n".join(lines).rstrip() + "\n"


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _class(kind: type, title: str, *, level: int = 2, members: bool = True) -> list[str]:
    """Return a class: its signature, its values as a table, and its methods. Only level 2 is constructed by users."""
    head = "#" * level
    lines = [f"{head} {kind.__name__}\n", *_entry(f"class {title}", kind, has_signature=level == 2)]
    rows = list(_values(kind)) if members else []
    if rows:
        lines += ["| value | type | meaning |\n|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows] + [""]
    for name, member in vars(kind).items():
        if members and inspect.isfunction(member) and not name.startswith("_"):
            lines += [f"{head}# {kind.__name__}.{name}\n", *_entry(name, member)]
    return lines


def _values(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of the fields, attributes and properties of a class, in the order of the source."""
    source = textwrap.dedent(inspect.getsource(kind))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.ClassDef)
    comments = [line.partition("  # ")[2] for line in source.splitlines()]
    makers = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    body = [*(statement for maker in makers for statement in maker.body), None, *node.body, None]
    for statement, following in pairwise(body):
        text = "" if statement is None else comments[statement.lineno - 1]
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = str(following.value.value)
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                annotation = ast.unparse(statement.annotation)
            case ast.Assign(targets=[ast.Attribute(attr=name)]) if text:
                annotation = ""
            case ast.FunctionDef(name=name, decorator_list=[ast.Name(id="property" | "cached_property")]):
                annotation = "" if statement.returns is None else ast.unparse(statement.returns)
                text = ast.get_docstring(statement) or ""
            case _:
                continue
        if not name.startswith("_"):
            yield f"`{name}`", f"`{_short(annotation)}`" if annotation else "", " ".join(text.split())


def _short(annotation: str) -> str:
    """Return a type without modules, and without the quotes of a forward reference."""
    return re.sub(r"(^|: |-> )'([^']+)'", r"\1\2", re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", annotation))


def _entry(title: str, value: Any, *, has_signature: bool = True) -> list[str]:
    """Return the signature, the docstring and the example of a function or a class."""
    signature = inspect.signature(value)
    returned = "" if inspect.isclass(value) else f" -> {inspect.formatannotation(signature.return_annotation)}"
    shown = re.sub(r"\(self(, )?", "(", str(signature.replace(return_annotation=inspect.Signature.empty)))
    if len(shown) > 80:
        shown = "(\n    " + re.sub(r", (?=\w+:|\*|/)", ",\n    ", shown[1:-1]) + ",\n)"
    text = f"{title}{_short(shown + returned)}" if has_signature else title
    parts = re.match(
        r"(.*?)(?:\n\n((?:Args|Returns|Raises):.*?))?(?:\n\n(>>> .*))?$", inspect.getdoc(value) or "", re.S
    )
    assert parts is not None
    about, details, example = parts.groups()
    lines = [f"```python\n{text}\n```\n", f"{about}\n"]
    lines += [f"```text\n{details}\n```\n"] * bool(details) + [f"```python\n{example}\n```\n"] * bool(example)
    return lines


def _errors() -> list[str]:
    """Return the classes of `paratune.errors` with their exit codes."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.ParatuneError)]
    lines = ["## Errors\n", "`paratune.errors` has a class for each exit code. [Codes](../errors.md).\n"]
    lines += ["| class | also a | exit code | meaning |\n|---|---|---:|---|"]
    for kind in kinds:
        also = next((f"`{base.__name__}`" for base in kind.__bases__[1:]), "")
        lines += [f"| `{kind.__name__}` | {also} | {kind.exit_code} | {(kind.__doc__ or '').splitlines()[0]} |"]
    return [*lines, "", *_class(errors.ParatuneError, "paratune.errors.ParatuneError", level=3)]
