"""The facts of a site file about a run, for the doctor."""

from pathlib import Path

from raised import raises_code

from paratune.cluster.site import Site, read_site
from paratune.commands.doctor import doctor
from paratune.commands.doctor_run import site_environment, start_on

SITES = Path(__file__).parents[3] / "configs" / "sites"


def test_the_site_file_gives_the_start_of_the_run():
    start = start_on(read_site(SITES / "no_internet.yaml"), SITES / "no_internet.yaml")
    assert (start.num_nodes, start.processes_per_node, start.gpus_per_node, start.world_size) == (2, 4, 4, 8)
    assert start.no_network
    assert start.is_elsewhere
    assert start.cores_per_node == 32


def test_missing_folders_of_a_site_are_found(tmp_path):
    (tmp_path / "venv").mkdir()
    assert start_on(Site(venv=str(tmp_path / "venv")), Path("s")).missing_folders == ()
    assert start_on(Site(venv="$SCRATCH_OF_THE_NODE/venv"), Path("s")).missing_folders == ()
    (folder,) = start_on(Site(venv=str(tmp_path / "venvv")), Path("s")).missing_folders
    assert folder == ("venv", tmp_path / "venvv", f"venv: {tmp_path / 'venv'}")


def test_variables_of_a_site_are_expanded(monkeypatch):
    monkeypatch.setenv("WORK_OF_ME", "/work/me")
    assert site_environment(Site(environment={"HF_HOME": "$WORK_OF_ME/hf", "N": 3})) == {
        "HF_HOME": "/work/me/hf",
        "N": "3",
    }


def test_conflicting_options_are_refused():
    with raises_code("cli.conflict", "--nproc", "--site"):
        doctor(Path("c.yaml"), site=Path("s"), nproc=2)
    with raises_code("cli.invalid_value", "--nproc", "0", "1"):
        doctor(Path("c.yaml"), nproc=0)
    with raises_code("cli.no_effect", "--site"):
        doctor(site=Path("s"))


def test_a_missing_configuration_is_an_error(tmp_path):
    with raises_code("config.file_unreadable"):
        doctor(tmp_path / "none.yaml", json=True)
