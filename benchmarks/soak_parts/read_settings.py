"""Readers of settings: a configuration, a matrix, a cluster's profile and a corpus are read or rejected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from paratune.cluster.site import read_site
from paratune.config.load import load_config, show_text
from paratune.config.yaml_tree import read_tree
from paratune.corpus.settings import read_settings
from paratune.errors import ConfigError
from paratune.sweeps.matrix import read_matrix

from .fuzz import Difference, Reader, differ
from .worlds import COMMON, SENTENCES

CONFIGS = Path(__file__).parents[2] / "configs"
_WORD = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\ufeff"), max_size=6)
_SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _WORD)
TREE = st.recursive(
    _SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORD, inner, max_size=3), max_leaves=8
)


def tree_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def whole_tree(value: Any, raw: bytes, place: Path) -> None:
    """JSON is YAML 1.2 (its section 1.3)."""
    tree = read_tree(raw.decode(), "x.yaml")
    differ("problems", [], [problem.message for problem in tree.problems])
    differ("value", value, tree.value)


def damaged_tree(value: Any, raw: bytes, place: Path) -> None:
    """The result has the same structure as PyYAML's, apart from scalars."""
    text = raw.decode("utf-8", "replace")
    tree = read_tree(text, "x.yaml")
    if tree.problems or "<<" in text:
        return
    try:
        other = yaml.load(text, yaml.BaseLoader)
    except yaml.YAMLError as error:
        raise Difference(f"read as {tree.value}, though {error}") from error
    differ("shape", _shape(other), _shape(tree.value))


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [_shape(item) for item in value.values()]
    return [[_shape(item) for item in value]] if isinstance(value, list) else "scalar"


def _settings(read: Callable[[Path], object], name: str) -> Callable[[Any, bytes, Path], None]:
    def check(document: Any, raw: bytes, place: Path) -> None:
        (place / name).write_bytes(raw)
        (place / "c.yaml").write_text(SENTENCES + COMMON)
        try:
            read(place / name)
        except ConfigError:
            return

    return check


def config_again(document: Any, raw: bytes, place: Path) -> None:
    """A configuration that was read is written as text that gives the same configuration."""
    path = place / "c.yaml"
    path.write_bytes(raw)
    try:
        loaded = load_config(path)
    except ConfigError:
        return
    path.write_text(show_text(loaded), encoding="utf-8")
    differ("shown", json.dumps(loaded.values), json.dumps(load_config(path).values))


def whole_config(document: Any, raw: bytes, place: Path) -> None:
    (place / "c.yaml").write_bytes(raw)
    load_config(place / "c.yaml")
    config_again(document, raw, place)


def _examples(folder: str) -> st.SearchStrategy[bytes]:
    paths = sorted((CONFIGS / folder).glob("*.yaml"))
    whole = [path.read_bytes() for path in paths if b"extends" not in path.read_bytes()]
    return st.sampled_from(whole)


_OPTIONS = ["train.epochs", "train.learning_rate", "batch.global", "evaluate.every", "run.name", "data.max_length"]
_OPTIONS += ["model.name", "strategy.kind", "precision", "run.seed", "data.split", "task.labels", "checkpoint"]


@st.composite
def configs(draw: Callable[..., Any]) -> bytes:
    """Draw an example of this repository, or a configuration with random values of options."""
    if draw(st.booleans()):
        whole: bytes = draw(_examples("finetune"))
        return whole
    values = yaml.safe_load(SENTENCES + COMMON)
    for key in draw(st.lists(st.sampled_from(_OPTIONS), max_size=2, unique=True)):
        *above, last = key.split(".")
        inside = values
        for part in above:
            inside = inside.setdefault(part, {})
        if isinstance(inside, dict):
            inside[last] = draw(TREE)
    return yaml.safe_dump(values, allow_unicode=True).encode()


def _as_is(raw: bytes) -> bytes:
    return raw


_read_matrix, _read_site, _read_corpus = (
    _settings(read, name)
    for read, name in ((read_matrix, "m.yaml"), (read_site, "site.yaml"), (read_settings, "corpus.yaml"))
)
_MATRIX = st.just(
    b"name: m\nbase: {extends: c.yaml, train: {epochs: 1}}\naxes:\n"
    b"  train.learning_rate: [3e-3, 1e-4]\n  run.seed: [1, 2]\nexclude: [{run.seed: 2}]\n"
)

READERS = (
    Reader("yaml", TREE, tree_bytes, whole_tree, damaged_tree),
    Reader("config", configs(), _as_is, config_again, config_again),
    Reader("matrix", _MATRIX, _as_is, _read_matrix, _read_matrix),
    Reader("site", _examples("sites"), _as_is, _read_site, _read_site),
    Reader("corpus-settings", _examples("corpus"), _as_is, _read_corpus, _read_corpus),
)
