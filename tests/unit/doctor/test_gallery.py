"""The gallery of broken set-ups (tests/broken_setups), each from a complaint of real users.

It is caught with its own code, and the line that the finding gives repairs it."""

import shutil

import pytest
from broken_setups import data, machine, model, options, start
from error_codes import TEXTS

CASES = [*options.CASES, *data.CASES, *model.CASES, *start.CASES, *machine.CASES]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.code}: {case.source}" for case in CASES])
def test_each_broken_set_up_is_caught_and_its_line_repairs_it(set_up, case):
    case.break_it(set_up)
    result = [finding for finding in set_up.alarms() if finding.code == case.code]
    assert result, [(finding.code, finding.fact) for finding in set_up.alarms()]
    finding = result[0]
    assert finding.fact
    assert finding.where
    assert finding.why
    assert finding.line or finding.remedy
    if case.level:
        assert finding.level == case.level
    if case.line is not None:
        assert finding.line == case.line
    if case.after is None:
        set_up.apply(finding.line)
    else:
        case.after(set_up)
    left = set_up.alarms()
    assert case.code not in [finding.code for finding in left]
    assert not [finding for finding in left if finding.code == "check"]


def test_every_alarm_of_the_page_is_in_the_gallery():
    texts = TEXTS["findings"]["run"]
    levels = {code: level for code, (_, level) in texts.items() if "." not in code}  # the others are feasibility's
    alarms = [code for code, level in levels.items() if level.startswith(("problem", "warning"))]
    assert len(alarms) > 40
    assert set(alarms) - {case.code for case in CASES} == {"cache_incomplete"}  # below


def test_an_incomplete_download_in_the_cache_is_found(set_up, tmp_path):
    snapshot = tmp_path / "hub" / "models--someone--model" / "snapshots" / "abc"
    shutil.copytree(set_up.model, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    set_up.set("model.name", "someone/model")
    set_up.environ["HF_HUB_OFFLINE"] = "1"
    assert set_up.alarms() == []
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    (finding,) = set_up.alarms()
    assert (finding.code, finding.level) == ("cache_incomplete", "problem")
    assert "model.safetensors" in finding.fact
    assert finding.line == "hf download someone/model"
