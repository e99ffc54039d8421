"""The smallest records that have all parts which every run has, for tests that add their own values."""

from typing import Any

WHOLE_RUN: dict[str, Any] = {
    "schema_version": 1,
    "run_id": "r",
    "config": {},
    "hardware": [],
    "versions": {},
    "world_size": 1,
    "strategy": {"kind": "single"},
    "batch": {},
    "seed": 42,
    "task": {"kind": "classification"},
    "data": {"train": {}},
    "model": {},
    "plan": {},
    "sessions": [],
}
WHOLE_SUMMARY: dict[str, Any] = {"schema_version": 1, "run_id": "r", "ranks": [], "memory": {}, "scores": {}}
