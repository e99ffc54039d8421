"""Python code that a configuration imports and that does not come with paratune.

Floor 1.
"""

from collections.abc import Mapping
from typing import Any


def own_code(values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a configuration that name Python code, such as "strategy.kind: my_module:MyStrategy".

    Args:
        values: Resolved, or as somebody else's file has them: nothing is taken for granted.
    """
    strategy, model = values.get("strategy"), values.get("model")
    lines = []
    kind = strategy.get("kind") if isinstance(strategy, Mapping) else strategy
    if isinstance(kind, str) and ":" in kind:
        lines.append(f"strategy.kind: {kind}")
    if isinstance(model, Mapping) and model.get("trust_remote_code"):
        lines.append("model.trust_remote_code: true")
    return lines
