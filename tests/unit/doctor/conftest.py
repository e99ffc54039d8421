"""A sound set-up for each test of the gallery to break."""

import shutil

import pytest
from set_ups import sound


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sound set-up with its files, to be copied; making a model takes longer than copying it."""
    return sound(tmp_path_factory.mktemp("whole") / "it").folder


@pytest.fixture
def set_up(whole, tmp_path):
    shutil.copytree(whole / "model", tmp_path / "whole_model")
    return sound(tmp_path / "it", copy_of=whole)
