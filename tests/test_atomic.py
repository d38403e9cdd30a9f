"""Files that appear whole or not at all."""

from __future__ import annotations

import errno

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


def test_a_path_without_a_name_is_a_folder():
    with pytest.raises(IsADirectoryError, match="A file is to be written, this is a folder: '.'"), replacing(""):
        pass


def test_a_full_disk_names_the_file_and_other_errors_keep_their_words(tmp_path):
    path = tmp_path / "file.txt"
    with pytest.raises(OSError) as raised, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")  # as a failing write() says it
    assert raised.value.filename == str(path)
    with pytest.raises(OSError, match=r"^ffmpeg failed$"), replacing(path):
        raise OSError("ffmpeg failed")
