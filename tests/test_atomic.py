"""Files that appear whole or not at all."""

from __future__ import annotations

import pytest

from rlbotics_jax.atomic import replacing


def test_the_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "model.v1.json"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists() and temporary.parent == path.parent and temporary.suffix == ".json"
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), replacing(path):
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(IsADirectoryError) as raised, replacing(tmp_path) as temporary:
        temporary.write_text("a folder stands there")
    assert raised.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "file.txt"):
        pass
    assert raised.value.filename == str(tmp_path / "file.txt")


def test_nothing_written_is_an_error_and_leaves_what_was_there(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"
