"""A bundle is copied to a machine without a network and trained there without changes."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Cli
from hooks import RefuseNetwork
from outcome import outcome
from raised import check_shown

from paratune.errors import EXIT_CONFIG, EXIT_DATA, EXIT_OK
from paratune.hub.bundle import read_manifest, write_bundle
from paratune.records import is_finished, read_json

pytestmark = pytest.mark.slow  # each test starts several processes


def test_a_bundle_can_be_trained_without_a_network(cli: Cli, world: Path, tmp_path: Path):
    (world / "model" / "notes.pdf").unlink(missing_ok=True)
    bundled = cli("bundle", "c.yaml", "-o", "b.tar")
    assert bundled.code == EXIT_OK, bundled.stderr
    assert "b.tar: " in bundled.stdout
    assert cli("train", "c.yaml").code == EXIT_OK
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(world / "b.tar", elsewhere)
    for path in (world / "model", world / "data.csv", world / "c.yaml", world / "cache"):
        path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
    remote_cli = Cli(elsewhere, {"HF_HUB_OFFLINE": "0", "PARATUNE_CACHE": str(elsewhere / "cache")})

    unbundled = remote_cli("unbundle", "b.tar", "-d", "exp")
    assert unbundled.code == EXIT_OK, unbundled.stderr
    assert "paratune train exp/config.yaml" in unbundled.stdout
    log = tmp_path / "attempts.txt"
    trained = remote_cli("train", "exp/config.yaml", hook=RefuseNetwork(str(log)))

    assert trained.code == EXIT_OK, trained.stderr
    assert not log.exists()
    run = elsewhere / "runs" / "c"  # it keeps its name
    assert is_finished(run)
    assert outcome(run) == outcome(world / "runs" / "c")
    assert read_json(run / "run.json")["config"]["model"]["name"] == str((elsewhere / "exp" / "model").resolve())


def test_pickled_weights_are_refused(cli: Cli, world: Path):
    target = (world / "model").resolve()
    (world / "model").unlink()
    shutil.copytree(target, world / "model")
    (world / "model" / "model.safetensors").rename(world / "model" / "pytorch_model.bin")
    refused = cli("bundle", "c.yaml", "-o", "b.tar")
    assert refused.code == EXIT_CONFIG
    check_shown(refused.stderr, "bundle.unsafe", "pytorch_model.bin")
    assert "save_file" in refused.stderr
    assert not (world / "b.tar").exists()
    (world / "model" / "pytorch_model.bin").unlink()
    without = cli("bundle", "c.yaml", "-o", "b.tar")
    assert without.code == EXIT_CONFIG
    check_shown(without.stderr, "model.files_missing", "model.safetensors")


def test_a_pickle_next_to_safetensors_is_left_out(cli: Cli, world: Path):
    target = (world / "model").resolve()
    (world / "model").unlink()
    shutil.copytree(target, world / "model")
    (world / "model" / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    bundled = cli("bundle", "c.yaml", "-o", "b.tar")
    assert bundled.code == EXIT_OK, bundled.stderr
    assert "left out: model/pytorch_model.bin" in bundled.stdout
    names = {packed.name for packed in read_manifest(world / "b.tar").files}
    assert "model/model.safetensors" in names
    assert not [name for name in names if name.endswith((".bin", ".pkl", ".pt"))]


def test_several_files_and_paths_of_another_machine(cli: Cli, world: Path):
    config = yaml.safe_load((world / "c.yaml").read_text())
    shutil.copy(world / "data.csv", world / "mehr Daten.csv")
    config["data"]["train"] = [str(world / "data.csv"), "mehr Daten.csv"]
    config["run"] = {"folder": "/scratch/of/another/machine", "name": "named"}
    (world / "c.yaml").write_text(yaml.safe_dump(config))
    assert cli("bundle", "c.yaml", "-o", "b.tar").code == EXIT_OK
    assert cli("unbundle", "b.tar", "-d", "exp", "--json").code == EXIT_OK
    written = yaml.safe_load((world / "exp" / "config.yaml").read_text())
    folder = (world / "exp").resolve()
    assert written["data"]["train"] == [str(folder / "data/0000/data.csv"), str(folder / "data/0001/mehr-Daten.csv")]
    assert written["run"]["folder"] == str(folder / "runs")
    assert (folder / "data" / "0001" / "mehr-Daten.csv").read_bytes() == (world / "data.csv").read_bytes()
    assert cli("train", "exp/config.yaml", "--set", "train.epochs=1").code == EXIT_OK


def test_names_with_spaces_are_quoted(cli: Cli, world: Path):
    config = yaml.safe_load((world / "c.yaml").read_text())
    shutil.copy(world / "data.csv", world / "数据.csv")
    config["data"]["train"] = "数据.csv"
    (world / "c.yaml").write_text(yaml.safe_dump(config))
    assert "paratune unbundle 'it'\"'\"'s a.tar' -d DIR" in cli("bundle", "c.yaml", "-o", "it's a.tar").stdout
    unbundled = cli("unbundle", "it's a.tar", "-d", "my exp")
    assert "paratune train 'my exp/config.yaml'" in unbundled.stdout
    written = yaml.safe_load((world / "my exp" / "config.yaml").read_text())
    assert written["data"]["train"].endswith("/data/0000/data.csv")  # a name without a letter keeps its suffix


def test_a_configuration_of_another_version_leaves_no_files(cli: Cli, world: Path):
    assert cli("bundle", "c.yaml", "-o", "b.tar").code == EXIT_OK
    manifest = read_manifest(world / "b.tar")
    for values, output in (({**manifest.config, "no_section": 1}, "no_section"), ({}, "it lacks 'model'")):
        files = {packed.name: world / "all" / packed.name for packed in manifest.files}
        if not (world / "all").exists():
            assert cli("unbundle", "b.tar", "-d", "all").code == EXIT_OK
        write_bundle(world / "other.tar", replace(manifest, config=values), files)
        refused = cli("unbundle", "other.tar", "-d", "new")
        assert refused.code == EXIT_DATA
        assert output in refused.stderr
        assert not list(world.glob("*new*"))


OWN_CODE = [
    ({"strategy": {"kind": "evil:S"}}, "strategy.kind: evil:S"),
    ({"model": {"trust_remote_code": True}}, "model.trust_remote_code: true"),
]


@pytest.mark.parametrize(("change", "line"), OWN_CODE, ids=["strategy", "model"])
def test_a_bundle_runs_no_code_unless_it_is_allowed(cli: Cli, world: Path, change: dict[str, Any], line: str):
    assert cli("bundle", "c.yaml", "-o", "b.tar").code == EXIT_OK
    assert cli("unbundle", "b.tar", "-d", "all").code == EXIT_OK
    manifest = read_manifest(world / "b.tar")
    config = {**manifest.config, **{key: manifest.config[key] | value for key, value in change.items()}}
    if "strategy" in change:
        config["strategy"] = {"kind": "evil:S", "options": {}}
    files = {packed.name: world / "all" / packed.name for packed in manifest.files}
    write_bundle(world / "evil.tar", replace(manifest, config=config), files)
    refused = cli("unbundle", "evil.tar", "-d", "new")
    assert refused.code == EXIT_DATA
    assert line in refused.stderr
    assert not list(world.glob("*new*"))
    allowed = cli("unbundle", "evil.tar", "-d", "new", "--run-code")
    assert allowed.code == EXIT_OK, allowed.stderr
    assert line in allowed.stdout
    assert line in cli("config", "show", "new/config.yaml").stdout.splitlines()[-1]


def test_a_run_folder_outside_the_bundle_is_refused(cli: Cli, world: Path):
    assert cli("bundle", "c.yaml", "-o", "b.tar", "--set", "run.folder=../elsewhere").code == EXIT_OK
    refused = cli("unbundle", "b.tar", "-d", "new")
    assert refused.code == EXIT_DATA
    check_shown(refused.stderr, "bundle.unsafe", "run.folder: ../elsewhere")
    assert not list(world.glob("*new*"))


def test_missing_files_of_a_bundle_are_reported(cli: Cli, world: Path):
    (world / "data.csv").unlink()
    missing = cli("bundle", "c.yaml", "-o", "b.tar")
    assert missing.code == EXIT_DATA
    check_shown(missing.stderr, "data.not_found", "data.csv")
    assert not (world / "b.tar").exists()
    assert cli("unbundle", "b.tar", "-d", "exp").code == EXIT_DATA
