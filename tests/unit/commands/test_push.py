"""`paratune push`: uploaded files and refused runs; the hub is a stand-in on loopback or in this process."""

import hashlib
import json
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import huggingface_hub
import pytest
from finished_run import write_finished_run
from huggingface_hub import HfApi
from raised import raises_code

from paratune import hub
from paratune.commands.push import push
from paratune.errors import EXIT_OK
from paratune.records import SUMMARY_FILE, write_run

TO = "my-team/reviews"


class FakeApi:
    """Stands for `HfApi`: notes its calls, and the files that an upload would read."""

    calls: ClassVar[list[tuple[str, Any]]] = []
    problem: ClassVar[Exception | None] = None

    def create_repo(self, name: str, **options: Any) -> None:
        signature(HfApi.create_repo).bind(self, name, **options)
        if self.problem is not None:
            raise self.problem
        self.calls.append(("create_repo", (name, options["private"], options["exist_ok"])))

    def create_branch(self, name: str, *, branch: str, exist_ok: bool) -> None:
        signature(HfApi.create_branch).bind(self, name, branch=branch, exist_ok=exist_ok)
        self.calls.append(("create_branch", (name, branch, exist_ok)))

    def upload_folder(self, *, folder_path: Path, allow_patterns: list[str], **options: Any) -> Any:
        signature(HfApi.upload_folder).bind(self, folder_path=folder_path, allow_patterns=allow_patterns, **options)
        assert all((folder_path / name).is_file() for name in allow_patterns)
        self.calls.append(("upload_folder", (options["repo_id"], options["revision"], allow_patterns)))
        return SimpleNamespace(commit_url="https://example.org/commit/1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("paratune.commands.push.set_up_logging", lambda **_: None)
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "token")
    monkeypatch.setattr(FakeApi, "calls", [])
    monkeypatch.setattr(hub, "unreachable_reason", lambda: None)
    write_finished_run(tmp_path / "run")
    (tmp_path / "run" / "model" / ".hidden").write_text("x")
    return tmp_path / "run"


def test_the_model_and_its_card_are_uploaded(run: Path, capsys: pytest.CaptureFixture[str]):
    assert push(run, to=TO, private=True, revision="v2", json=True) == EXIT_OK
    assert FakeApi.calls == [
        ("create_repo", (TO, True, True)),
        ("create_branch", (TO, "v2", True)),
        ("upload_folder", (TO, "v2", ["paratune.json", "README.md"])),
    ]
    shown = json.loads(capsys.readouterr().out)
    assert shown["url"] == "https://example.org/commit/1"
    assert shown["num_bytes"]["README.md"] == (run / "model" / "README.md").stat().st_size


def test_only_files_that_paratune_saved_are_uploaded(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    private = tmp_path / "private.txt"
    private.write_text("secret")
    model = run / "model"
    (model / "notes.txt").symlink_to(private)
    (model / "draft.txt").write_text("not saved")
    assert push(run, to=TO, dry_run=True, json=True) == EXIT_OK
    assert sorted(json.loads(capsys.readouterr().out)["num_bytes"]) == ["README.md", "paratune.json"]
    record = json.loads((model / "paratune.json").read_text())
    about = {"num_bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    for name in ("notes.txt", "../../private.txt"):  # a record of somebody else may list anything
        (model / "paratune.json").write_text(json.dumps({**record, "files": {name: about}}))
        with raises_code("push.link", path=model / name):
            push(run, to=TO, dry_run=True)
    (model / "paratune.json").write_text(json.dumps(record))
    (model / "README.md").symlink_to(private)
    with raises_code("push.link"):
        push(run, to=TO, dry_run=True)


def test_a_card_that_a_user_wrote_stays(run: Path):
    (run / "model" / "README.md").write_text("mine")
    push(run, to=TO)
    assert (run / "model" / "README.md").read_text() == "mine"
    assert FakeApi.calls[0] == ("create_repo", (TO, None, True))


def test_a_dry_run_changes_and_sends_nothing(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub, "unreachable_reason", lambda: pytest.fail("it asked for the hub"))
    assert push(run, to=TO, dry_run=True) == EXIT_OK
    assert FakeApi.calls == []
    assert not (run / "model" / "README.md").exists()


def test_without_a_network_or_a_token_nothing_is_sent(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with raises_code("hub.no_token", TO):
        push(run, to=TO)
    monkeypatch.setattr(hub, "unreachable_reason", lambda: "HF_HUB_OFFLINE is set")
    with raises_code("hub.unreachable", TO, "HF_HUB_OFFLINE"):
        push(run, to=TO)
    assert FakeApi.calls == []


def test_what_the_hub_refuses_is_an_error(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FakeApi, "problem", RuntimeError("403 Forbidden\nmore"))
    with raises_code("hub.refused", TO, "403 Forbidden"):
        push(run, to=TO)


@pytest.mark.parametrize("name", ["reviews", "a/b/c", "../x", "a/..", "a b/c", "a/b--c", ""])
def test_other_names_of_repositories_are_refused(run: Path, name: str):
    with raises_code("cli.invalid_value", name=name):
        push(run, to=name)


def test_runs_that_are_not_finished_are_refused(run: Path, tmp_path: Path):
    with raises_code("run.not_found", tmp_path):
        push(tmp_path, to=TO)
    (run / SUMMARY_FILE).unlink()
    with raises_code("run.not_finished", run):
        push(run, to=TO)
    write_run(run, {"kind": "baseline"})
    (run / "model").rename(run / "baseline")
    with raises_code("baseline.no_model", run):
        push(run, to=TO)


def test_a_smaller_form_needs_a_card_of_its_user(run: Path):
    write_run(run, {"kind": "form"})
    with raises_code("push.no_card", run / "model" / "README.md", target=run):
        push(run, to=TO)
    (run / "model" / "README.md").write_text("mine")
    assert push(run, to=TO, dry_run=True) == EXIT_OK
    (run / SUMMARY_FILE).unlink()
    with raises_code("run.not_finished", "paratune compress"):
        push(run, to=TO)


def test_an_adapter_of_a_local_folder_is_refused(run: Path):
    (run / "model" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home/me/base"}))
    with raises_code("push.local_base", "/home/me/base"):
        push(run, to=TO)
    (run / "model" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "owner/base"}))
    assert push(run, to=TO) == EXIT_OK


def test_a_record_without_what_a_card_needs_is_refused(run: Path):
    write_run(run, {"kind": "full"})
    with raises_code("run.damaged", run):
        push(run, to=TO)
