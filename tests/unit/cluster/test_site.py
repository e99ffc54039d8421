"""Site files: the examples are valid, all problems of a file are listed with their lines, and values are quoted."""

import subprocess
from pathlib import Path

import pytest
from raised import raises_code

from paratune.cluster.site import (
    Site,
    directive,
    path_problem,
    processes_per_node,
    quoted,
    read_site,
    sbatch_path_problem,
    seconds_of,
    shell_problem,
    with_size,
    word_problem,
)
from paratune.errors import ConfigError

SITES = sorted((Path(__file__).parents[3] / "configs" / "sites").glob("*.yaml"))


@pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)
def test_every_site_in_configs_is_one(path: Path):
    assert read_site(path).gpus_per_node > 0


def test_an_empty_site_is_a_site(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("# nothing to say\n")
    site = read_site(tmp_path / "s.yaml")
    assert (site.nodes, site.gpus_per_node, processes_per_node(site)) == (1, 0, 1)


def test_all_problems_are_listed_with_their_lines(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(
        "partitoin: gpu\nnodes: 0\ntime: 4h\naccount: a b\nmodules: ['gcc; reboot']\nvenv: $(reboot)\n"
        'sbatch: [--gres=gpu:1, --output=x, nice]\nenvironment: {RANK: 1, A: "b\\nc", HF_TOKEN: x}\n'
        "setup: ['if']\ncontainer: {image: a.sif}\nscratch: \"/a\\n#SBATCH --uid=0\"\n"
    )
    with pytest.raises(ConfigError) as caught:
        read_site(tmp_path / "s.yaml")
    text = str(caught.value)
    assert "line 1: partitoin is not an option of a site; did you mean partition?" in text
    assert 'line 3: time is "4h" (text)' in text
    assert 'line 4: account is "a b" (text)' in text
    assert "line 2: nodes is 0" in text
    assert "line 5: modules[0] is 'gcc; reboot'" in text
    assert "line 6: venv is '$(reboot)'" in text
    assert "line 7: sbatch[0] gives --gres" in text


def test_a_value_that_is_missing_is_one_problem(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("gpu_type: a100\nnodes: x\ncontainer: {binds: [/data]}\n")
    with pytest.raises(ConfigError) as caught:
        read_site(tmp_path / "s.yaml")
    assert [line.split(" is ")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "line 2: nodes",
        "line 3: container.image",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("time: 30", 'allowed: a time in quotes: "30" minutes, "08:00:00" or "2-12"'),
        ("memory_per_node: 64 GB", 'allowed: memory in quotes: "64G"'),
        ("account: a b", "allowed: a name (letters, digits"),
        ("modules: ['gcc; reboot']", "line 1: modules[0] is 'gcc; reboot'; allowed: letters"),
        ("venv: $(reboot)", "line 1: venv is '$(reboot)'; after $"),
        ("sbatch: [--gres=gpu:1]", "line 1: sbatch[0] gives --gres; set it with gres: of the site"),
        ("sbatch: [--mem=1G]", "set it with memory_per_node: of the site"),
        ("sbatch: [--output=x]", "sbatch[0] gives --output"),
        ("sbatch: [nice]", "allowed: --name or --name=value"),
        ("sbatch: [--exclusive]", "set it with exclusive: of the site"),
        ("srun: [cpu-bind]", "srun[0] is"),
        ("srun: [--nodes=3]", "srun[0] gives --nodes"),
        ("exclusive: everybody", "exclusive is"),
        ("network_interface: [ib0, 'a b']", "network_interface"),
        ('host_suffix: "$(x)"', "host_suffix is"),
        ('sbatch: ["--comment=a\\n#SBATCH --uid=0"]', "allowed: --name or --name=value"),
        ("environment: {RANK: 1}", "environment.RANK is set by paratune and torchrun"),
        ('environment: {A: "b\\nc"}', "environment.A is 'b\\nc'"),
        ("environment: {HF_TOKEN: x}", "environment.HF_TOKEN looks like a secret"),
        ("environment: {'A;reboot': x}", "is not the name of a variable"),
        ("setup: ['if']", "setup[0] is 'if'"),
        ("container: {image: a.sif}\nvenv: x", "line 2: venv "),
        ('container: {image: "a\\nb"}', "container.image is"),
        ("container: {image: a.sif, options: [--cleanenv]}", "container.options[0] is --cleanenv"),
        ("container: {}", "container.image is required"),
        ("gpus_per_node: 4\nprocesses_per_node: 2", "a GPU has one process"),
        ("gpu_type: a100", "line 1: gpu_type "),
        ("network_interface: ib0\nenvironment: {NCCL_SOCKET_IFNAME: ib1}", "environment.NCCL_SOCKET_IFNAME "),
        ("- a", "a site is a mapping of options"),
        ("fp16: true", "fp16 is not an option of a site; it has: partition"),
    ],
)
def test_invalid_values_are_refused(line: str, expected: str, tmp_path: Path):
    (tmp_path / "s.yaml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        read_site(tmp_path / "s.yaml")
    assert expected in str(caught.value)


def test_a_site_of_a_cluster_has_no_number_of_nodes(tmp_path: Path):
    # `paratune launch --nodes 2` has it, or the processes of a run.
    (tmp_path / "s.yaml").write_text("host_suffix: -ib\nnetwork_interface: ib0\n")
    site = with_size(read_site(tmp_path / "s.yaml"), nodes=2, gpus_per_node=None)
    assert (site.nodes, site.host_suffix) == (2, "-ib")


def test_the_command_line_sets_the_size():
    site = Site(gpus_per_node=4, gpu_type="a100")
    assert processes_per_node(site) == 4
    small = with_size(site, nodes=2, gpus_per_node=0)
    assert (small.nodes, small.gpu_type, processes_per_node(small)) == (2, None, 1)
    assert with_size(site, nodes=None, gpus_per_node=None) == site


@pytest.mark.parametrize(
    ("time", "seconds"),
    [  # sbatch(1), --time
        ("5", 300),
        ("5:30", 330),
        ("01:00:00", 3600),
        ("2-12", 216_000),
        ("1-00:30", 88_200),
        ("1-00:00:10", 86_410),
        ("0-0", 0),
        ("0", 0),
    ],
)
def test_time_limits_are_those_of_slurm(time: str, seconds: int):
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ('time: "5"', True),
        ('time: "6"', True),
        ('time: "5:59"', True),
        ('time: "00:06:00"', True),
        ('time: "0-00:06"', True),
        ('time: "6:01"', False),
        ('time: "7"', False),
        ('time: "0"', False),  # no limit
        ('time: "0-1"', False),
        ('time: "5"\nsave_before_s: 0', False),
        ('time: "5"\nsave_before_s: 120', False),
        ('time: "1-00:00:00"\nsave_before_s: 65535', False),
        ('time: "18:00:00"\nsave_before_s: 64800', True),
    ],
)
def test_a_time_that_is_over_when_the_run_saves_is_refused(text: str, is_refused: bool, tmp_path: Path):
    (tmp_path / "s.yaml").write_text(text)
    if not is_refused:
        read_site(tmp_path / "s.yaml")
        return
    with raises_code("site.invalid_value", "time"):
        read_site(tmp_path / "s.yaml")


HOSTILE = [
    "a b",
    "$(touch hacked)",
    "`touch hacked`",
    "a; touch hacked",
    "a && touch hacked",
    "a | touch hacked",
    "it's",
    'say "hi"',
    "back\\slash",
    "*",
    "~",
    "#no comment",
    "$5",
    "a'$(touch hacked)'b",
    "",
    "é ü",
]


@pytest.mark.parametrize("text", [text for text in HOSTILE if path_problem(text) is None])
def test_quoted_text_is_one_equal_word(text: str, tmp_path):
    done = subprocess.run(
        ["bash", "-c", f'set -- {quoted(text)}; printf "%s|" "$#" "$1"'], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == f"1|{text}|"
    assert list(tmp_path.iterdir()) == []


def test_only_variables_are_expanded():
    words = quoted("/a/$WHO/${WHO}x"), quoted('/a $WHO"`')
    script = f'set -- {words[0]} {words[1]}; printf "%s|" "$@"'
    done = subprocess.run(["bash", "-c", script], env={"WHO": "me; you"}, capture_output=True, text=True)
    assert done.stdout == '/a/me; you/me; youx|/a me; you"`|'


@pytest.mark.parametrize("text", ["$(reboot)", "a$((1+1))", "a\nb", "a\x1b[31m", "$", "$!", "${A:-$(x)}", "a\u2028b"])
def test_values_that_cannot_be_quoted_are_refused(text: str):
    assert path_problem(text) is not None


@pytest.mark.parametrize("text", ["a b", "a;b", "$A", "a\n", "a'", ""])
def test_words_are_plain(text: str):
    assert "allowed: letters, digits" in (word_problem(text) or "")


def test_words_of_modules_and_resources_are_fine():
    assert [word_problem(item) for item in ("GCC/12.3.0", "gpu:a100:4", "a-b_c+d@e%f=g,h")] == [None] * 3


def test_a_line_of_shell_is_one_that_bash_reads():
    assert shell_problem("ulimit -n 65536; export A=$(date)") is None
    assert "if true; then" in (shell_problem("if true; then") or "")
    assert shell_problem("a\nb") is not None


def test_directives_are_quoted_where_sbatch_needs_it():
    assert directive("exclusive") == "#SBATCH --exclusive"
    assert directive("output", "/w/%j.txt") == "#SBATCH --output=/w/%j.txt"
    assert directive("chdir", "/my runs") == '#SBATCH --chdir="/my runs"'
    assert sbatch_path_problem("/my runs") is None
    assert "sbatch cannot read" in (sbatch_path_problem('/a"b') or "")
