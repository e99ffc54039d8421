"""`paratune publish` and `verify` with real runs: what was changed is caught and named."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Cli
from world import CONFIG

from paratune.errors import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_DIFFERS, EXIT_FAILED, EXIT_OK
from paratune.records import read_json, write_json

pytestmark = pytest.mark.slow  # each test starts several processes

MATRIX = """\
name: m
base: c.yaml
axes:
  train.learning_rate: [3e-3, 1e-5]
  run.seed: [1, 2]
"""
SHORT = CONFIG.replace("epochs: 3", "max_steps: 12") + "device: cpu\n"


def changed(folder: Path, name: str, change: Callable[[Any], None], *, hides: bool = True) -> None:
    """Change a JSON file of a publication; with `hides` its new SHA-256 is in publication.json."""
    value = read_json(folder / name)
    change(value)
    write_json(folder / name, value)
    if hides and name != "publication.json":
        publication = read_json(folder / "publication.json")
        for file in publication["files"]:
            if file["name"] == name:
                content = (folder / name).read_bytes()
                file |= {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        write_json(folder / "publication.json", publication)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A folder with data and model, a matrix of four runs, and its publication `p`."""
    folder = tmp_path_factory.mktemp("published")
    shutil.copytree(tiny_folder / "model", folder / "model")
    shutil.copy(tiny_folder / "data.csv", folder)
    (folder / "c.yaml").write_text(SHORT)
    (folder / "m.yaml").write_text(MATRIX)
    command = Cli(folder, {"PARATUNE_CACHE": str(folder / "cache")})
    assert command("sweep", "m.yaml").code == EXIT_OK
    done = command("publish", "runs/m", "--out", "p", "--author", "Ana", "--max-size", "1000")
    assert done.code == EXIT_OK, done.stderr
    return folder


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> tuple[Path, Cli]:
    """A copy of the folder, in which a test may change what it likes."""
    folder = tmp_path / "copy"
    shutil.copytree(published, folder, symlinks=True)
    return folder, Cli(folder, {"PARATUNE_CACHE": str(tmp_path / "cache")})


def test_a_publication_has_claims_tables_records_and_starting_points(published: Path):
    folder = published / "p"
    publication = read_json(folder / "publication.json")
    assert (publication["author"], len(publication["runs"])) == ("Ana", 4)
    initial = [start for start in publication["starts"] if start["step"] == 0]
    later = [start for start in publication["starts"] if start["step"] > 0]
    assert [start["repeated"] for start in publication["starts"]] == ["equal"] * len(publication["starts"])
    assert len(initial) == 2
    assert {start["step"] for start in later} == {
        8
    }  # of steps 4, 8 and 12 the newest two are kept; 12 is the last step
    for start in publication["starts"]:
        assert len(start["losses"]) == len(start["weights"]) == 3
        hashes = [tuple(sorted(one.items())) for one in start["weights"]]
        assert len(set(hashes)) == 3  # each step changes the weights
        assert start["weights"][0].keys() == initial[0]["reference"]["weights"].keys()
    assert initial[0]["reference"]["precision"] == "fp64"
    assert {claim["result"] for claim in publication["claims"]} <= {"holds", "does not hold", "cannot tell"}
    assert publication["claims"]
    listed = {file["name"] for file in publication["files"]}
    assert {"index.html", "sweep.json", "report/index.html"} <= listed
    assert any(name.startswith("tables/") and name.endswith(".tex") for name in listed)
    assert listed == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {
        "publication.json"
    }
    assert not [name for name in listed if "data.csv" in name or name.startswith("inputs")]
    run = read_json(folder / "runs" / initial[0]["run"] / "run.json")
    assert publication["runs"][0]["initial_weights"] == run["model"]["init_fingerprint"]


def test_the_same_machine_gives_the_same_bits(copy: tuple[Path, Cli]):
    folder, cli = copy
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_OK, done.stderr
    result = done.json
    assert result["verdict"] == "equal"
    assert {start["status"] for start in result["starts"]} == {"equal"}
    assert (folder / "verified" / "p" / "index.html").is_file()


@pytest.mark.thorough
def test_a_zip_is_checked_as_its_folder(copy: tuple[Path, Cli]):
    folder, cli = copy
    shutil.make_archive(str(folder / "z"), "zip", folder, "p")
    assert cli("verify", "z.zip", "--json").json["verdict"] == "equal"


@pytest.mark.parametrize("options", [("--strategy", "ddp", "--nproc", "2"), ("--set", "precision=bf16")])
def test_another_way_is_equal_within_the_bound(copy: tuple[Path, Cli], options: tuple[str, ...]):
    _, cli = copy
    result = cli("verify", "p", *options, "--json").json
    assert result["verdict"] == "within the bound"
    initial = [start for start in result["starts"] if start["step"] == 0]
    assert {start["status"] for start in initial} == {"within the bound"}
    assert all(start["bound"] for start in initial)


def test_a_changed_weight_is_named(copy: tuple[Path, Cli]):
    from safetensors.torch import load_file, save_file

    folder, cli = copy
    path = folder / "model" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("layer.0.output.dense.weight"))
    tensors[name][0, 0] += 0.5
    save_file(tensors, path, metadata={"format": "pt"})
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    initial = [start for start in done.json["starts"] if start["step"] == 0]
    for start in initial:
        assert start["status"] == "different"
        assert any(tensor.endswith("layer.0.output.dense.weight") for tensor in start["tensors"])


def test_a_changed_row_is_named(copy: tuple[Path, Cli]):
    folder, cli = copy
    text = (folder / "data.csv").read_text()
    (folder / "data.csv").write_text(text.replace("good", "fine", 1))
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    assert any(f"data.{part}" in done.json["starts"][0]["reason"] for part in ("train", "validation"))


def test_a_changed_seed_is_named(copy: tuple[Path, Cli]):
    folder, cli = copy
    name = read_json(folder / "p" / "publication.json")["starts"][0]["run"]

    def change(run: Any) -> None:
        run["seed"] = 77
        for part in (run, *run["sessions"]):
            part["config"]["run"]["seed"] = 77

    changed(folder / "p", f"runs/{name}/run.json", change)
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    assert any("seed" in fact and "77" in fact for fact in done.json["facts"])
    assert done.json["starts"][0]["status"] == "different"


@pytest.mark.thorough
def test_a_changed_version_is_named(copy: tuple[Path, Cli]):
    folder, cli = copy
    changed(folder / "p", "publication.json", lambda value: value["versions"].update(torch="1.0"))
    result = cli("verify", "p", "--json").json
    assert any(line.startswith("torch 1.0, here ") for line in result["machine"])


@pytest.mark.thorough
def test_a_changed_claim_is_named(copy: tuple[Path, Cli]):
    folder, cli = copy

    def change(value: Any) -> None:
        value["claims"][0] |= {"claim": "mine is 10 times faster", "result": "holds", "outcome": "better"}

    changed(folder / "p", "publication.json", change)
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    assert any("mine is 10 times faster" in line for line in done.json["claims"]["problems"])


@pytest.mark.thorough
def test_a_changed_loss_in_a_record_is_a_changed_file(copy: tuple[Path, Cli]):
    folder, cli = copy
    path = next((folder / "p" / "runs").glob("*/summary.json"))
    changed(
        folder / "p", path.relative_to(folder / "p").as_posix(), lambda value: value.update(num_steps=5), hides=False
    )
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    assert any("summary.json was changed" in line for line in done.json["files"]["problems"])


def test_one_changed_hash_of_a_weight_is_named(copy: tuple[Path, Cli]):
    folder, cli = copy
    name = sorted(read_json(folder / "p" / "publication.json")["starts"][0]["weights"][2])[1]
    changed(folder / "p", "publication.json", lambda value: value["starts"][0]["weights"][2].update({name: "0" * 64}))
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    start = done.json["starts"][0]
    assert (start["status"], start["first_step"], start["tensors"]) == ("different", 3, [name])


def test_an_unreadable_record_is_unknown_and_not_different(copy: tuple[Path, Cli]):
    folder, cli = copy
    changed(folder / "p", "publication.json", lambda value: value.update(starts=[]))
    name = read_json(folder / "p" / "publication.json")["runs"][0]["run"]
    changed(folder / "p", f"runs/{name}/run.json", lambda run: run.update(schema_version=9))
    done = cli("verify", "p", "--json")
    assert (done.code, done.json["verdict"], done.json["facts"]) == (EXIT_FAILED, "not checked", [])
    assert any(name in line for line in done.json["not_checked"])


def test_changed_losses_and_configurations_are_named(copy: tuple[Path, Cli]):
    folder, cli = copy

    def change(value: Any) -> None:
        value["starts"][0]["losses"][0] += 0.5
        value["runs"][0]["configuration"] = value["runs"][-1]["configuration"]

    changed(folder / "p", "publication.json", change)
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_DIFFERS
    assert any("losses" in fact for fact in done.json["facts"])
    assert any("configuration" in fact for fact in done.json["facts"])
    assert done.json["starts"][0]["status"] == "different"


def test_own_code_is_named_first_and_the_rest_is_verified(copy: tuple[Path, Cli]):
    folder, cli = copy
    (folder / "evil.py").write_text("open('ran', 'w').close()\ndef loss(outputs, labels): return outputs.sum()\n")
    name = read_json(folder / "p" / "publication.json")["starts"][0]["run"]

    def change(run: Any) -> None:
        for part in (run, *run["sessions"]):
            part["config"]["task"]["loss"] = {"function": "evil:loss", "options": {}}

    changed(folder / "p", f"runs/{name}/run.json", change)
    done = cli("verify", "p", "--json")
    assert not (folder / "ran").exists()
    assert "evil:loss" in done.json["own_code"][0]
    statuses = {start["run"]: start["status"] for start in done.json["starts"] if start["step"] == 0}
    assert statuses.pop(name) == "not checked"
    assert set(statuses.values()) == {"equal"}


def test_a_run_with_own_code_is_published_by_its_maker_and_checked_with_the_flag(copy: tuple[Path, Cli]):
    folder, cli = copy
    code = "from torch.nn.functional import cross_entropy\n"
    code += "def loss(outputs, labels): return cross_entropy(outputs, labels, reduction='none')\n"
    (folder / "mine.py").write_text(code)
    assert cli("train", "c.yaml", "--set", "task.loss={function: 'mine:loss'}").code == EXIT_OK
    published = cli("publish", "runs/c", "--out", "q", "--json")
    assert published.code == EXIT_OK, published.stderr
    assert [start["repeated"] for start in published.json["starts"]] == ["equal"]
    assert cli("verify", "q", "--json").json["verdict"] == "not checked"
    assert cli("verify", "q", "--run-code", "--json").json["verdict"] == "equal"


def test_missing_data_is_named(copy: tuple[Path, Cli]):
    folder, cli = copy
    (folder / "data.csv").rename(folder / "elsewhere.csv")
    done = cli("verify", "p", "--json")
    assert done.code == EXIT_FAILED
    assert done.json["verdict"] == "not checked"
    assert "data.csv" in done.json["starts"][0]["reason"]
    assert cli("verify", "p", "--set", "data.train=elsewhere.csv", "--json").json["verdict"] == "equal"


def _with(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def _link(folder: Path) -> None:
    (folder / "runs" / "link").symlink_to("/etc")


def _listed(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        changed(folder, "publication.json", lambda value: value["files"][0].update(values))

    return change


def _start(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        changed(folder, "publication.json", lambda value: value["starts"][0].update(values))

    return change


def _nan(folder: Path) -> None:
    text = (folder / "publication.json").read_text()
    value = json.loads(text)
    value["starts"][0]["losses"][0] = float("nan")
    (folder / "publication.json").write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_with("publication.json", b"not json"), "run.damaged"),
        (_with("publication.json", b"[]"), "run.damaged"),
        (_with("publication.json", b'{"schema_version": 9}'), "run.other_version"),
        (_with("publication.json", b'{"schema_version": 1}'), "publication.damaged"),
        (_nan, "publication.damaged"),
        (_link, "publication.unsafe"),
        (_listed(name="../../etc/passwd"), "publication.unsafe"),
        (_listed(name="/etc/passwd"), "publication.unsafe"),
        (_start(inputs={"data.train": "../../x"}), "publication.unsafe"),
        (_start(inputs={"strategy.kind": "demo:Evil"}), "publication.unsafe"),
        (_start(inputs={"data.train": "demo:/../../x"}), "publication.unsafe"),
        (_start(run="../m"), "publication.damaged"),
        (_start(losses=[0.1] * 2000), "publication.damaged"),
        (_start(weights=[]), "publication.damaged"),
        (_start(run="nobody"), "publication.damaged"),
        (
            lambda folder: changed(folder, "publication.json", lambda value: value["runs"].append(value["runs"][0])),
            "publication.damaged",
        ),
        (lambda folder: (folder / "publication.json").unlink(), "publication.damaged"),
    ],
)
def test_hostile_folders_are_refused(copy: tuple[Path, Cli], change: Callable[[Path], None], code: str):
    folder, cli = copy
    change(folder / "p")
    done = cli("verify", "p", "--json")
    assert done.code in (EXIT_CHECKPOINT, EXIT_CONFIG)
    assert done.json["errors"][0]["code"] == code
    assert "Traceback" not in done.stderr


def test_files_that_a_zip_has_besides_are_named_and_not_unpacked(copy: tuple[Path, Cli]):
    folder, cli = copy
    shutil.make_archive(str(folder / "z"), "zip", folder, "p")
    with zipfile.ZipFile(folder / "z.zip", "a") as archive:
        for name in ("p/evil.py", "../evil.py", "p/.DS_Store", "__MACOSX/p/._x"):
            archive.writestr(name, b"x")
    done = cli("verify", "z.zip", "--json")
    assert done.code == EXIT_DIFFERS
    assert sorted(line.partition(" ")[0] for line in done.json["files"]["problems"]) == ["../evil.py", "p/evil.py"]
    assert not (folder.parent / "evil.py").exists()


def test_hostile_zips_are_refused(copy: tuple[Path, Cli], tmp_path: Path):
    folder, cli = copy
    whole = read_json(folder / "p" / "publication.json")
    huge = whole["files"][0] | {"num_bytes": 10}
    link = zipfile.ZipInfo("p/runs/x")
    link.external_attr = 0o120777 << 16
    entries: dict[str, list[tuple[Any, bytes]]] = {
        "path": [("../evil", b""), ("publication.json", b"{}")],
        "absolute": [("/evil", b""), ("publication.json", b"{}")],
        "link": [(link, b"/etc/passwd"), ("p/publication.json", b"{}")],
        "none": [("a", b"")],
        "size": [("publication.json", json.dumps(whole | {"files": [huge]}).encode()), (huge["name"], b"0" * 10**7)],
    }
    for name, files in entries.items():
        with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, content in files:
                archive.writestr(entry, content)
        done = cli("verify", f"{name}.zip", "--json")
        assert done.code != EXIT_OK
        assert "Traceback" not in done.stderr
    assert not (folder.parent / "evil").exists()
    (folder / "text.zip").write_text("no zip")
    assert cli("verify", "text.zip", "--json").json["errors"][0]["code"] == "publication.damaged"


def test_a_record_writes_no_other_file(copy: tuple[Path, Cli]):
    folder, cli = copy
    name = read_json(folder / "p" / "publication.json")["starts"][0]["run"]
    target = folder / "elsewhere"

    def change(run: Any) -> None:
        for part in (run, *run["sessions"]):
            part["config"]["data"]["cache_dir"] = str(target)
            part["config"]["run"] |= {"folder": str(target), "name": "../x"}
            part["config"]["trackers"] = {"tensorboard": {"folder": str(target)}}

    changed(folder / "p", f"runs/{name}/run.json", change)
    before = {path.name for path in folder.iterdir()}
    cli("verify", "p", "--json")
    assert {path.name for path in folder.iterdir()} - before <= {"verified"}
    assert not target.exists()


def test_claims_are_decided_again_by_few_runs(copy: tuple[Path, Cli]):
    folder, cli = copy
    result = cli("verify", "p", "--claims", "--hours", "1", "--json").json
    rerun = result["rerun"]
    assert rerun["failed"] == []
    assert {line["agrees"] for line in rerun["claims"]} <= {"yes", "no", "cannot tell"}
    made = folder / "verified" / "p" / "again" / "runs"
    assert all((made / name / "summary.json").is_file() for name in rerun["runs"])
    published = [
        claim for claim in read_json(folder / "p" / "publication.json")["claims"] if claim["result"] == "holds"
    ]
    assert len(rerun["claims"]) + len(rerun["left_out"]) == len(published)


def test_a_table_shows_copies_and_equal_trainings(copy: tuple[Path, Cli]):
    folder, cli = copy
    shutil.copytree(folder / "p", folder / "copied")
    assert cli("train", "c.yaml", "--set", "run.seed=1").code == EXIT_OK
    assert cli("publish", "runs/c", "--out", "own", "--author", "Rui").code == EXIT_OK
    lines = {line["name"]: line for line in cli("verify", "p", "copied", "own", "--table", "--json").json}
    assert lines["p"]["copy_of"] == ["copied"]
    assert (lines["own"]["copy_of"], lines["own"]["author"]) == ([], "Rui")
    assert sorted(lines["own"]["equal_to"]) == ["copied", "p"]


def test_a_run_that_cannot_be_repeated_is_not_published(copy: tuple[Path, Cli]):
    folder, cli = copy
    name = read_json(folder / "p" / "publication.json")["starts"][0]["run"]
    path = folder / "runs" / "m" / "runs" / name / "events.rank0000.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["event"] == "step" and line["step"] == 2:
            line["loss"] += 0.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = cli("publish", "runs/m", "--out", "q", "--json")
    assert done.code == EXIT_CHECKPOINT
    assert done.json["errors"][0]["code"] == "publication.not_repeated"
    assert not (folder / "q").exists()


def test_data_and_model_join_only_when_asked_for(copy: tuple[Path, Cli]):
    folder, cli = copy
    assert cli("publish", "runs/m", "--out", "q", "--include", "data", "model").code == EXIT_OK
    assert list((folder / "q" / "inputs").rglob("*.csv"))
    (folder / "data.csv").unlink()
    shutil.rmtree(folder / "model")
    result = cli("verify", "q", "--json").json
    assert result["verdict"] == "equal", result
