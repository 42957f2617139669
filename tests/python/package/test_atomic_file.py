"""Files of the package's commands appear complete or not at all, whatever else is in the folder."""

import os
import re

import pytest

from cuflash._atomic_file import write_atomically


def test_an_existing_file_is_replaced_and_no_temporary_file_is_left(tmp_path):
    for data in (b"first", b"second"):
        write_atomically(tmp_path / "o.json", data)
        assert (tmp_path / "o.json").read_bytes() == data
    assert os.listdir(tmp_path) == ["o.json"]


def test_a_name_that_a_killed_process_had_is_no_obstacle_and_no_way_elsewhere(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f".o.json.{os.getpid()}.part").symlink_to(victim)
    (tmp_path / f".o.svg.{os.getpid()}.part").mkdir()
    for name in ("o.json", "o.svg"):
        write_atomically(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"
    assert victim.read_text() == "mine"


def test_temporary_names_are_random_and_those_that_the_tool_removes(tmp_path, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda part, path: (seen.append(part.name), replace(part, path)))
    for _ in range(10):
        write_atomically(tmp_path / "o.json", b"x")
    assert len(set(seen)) == 10
    assert all(re.fullmatch(r"\.cuflash-[0-9a-f]{16}\.tmp", name) for name in seen)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "o.json")
    for data in (b"first", b"second"):
        write_atomically(tmp_path / "link", data)
        assert (tmp_path / "o.json").read_bytes() == data and (tmp_path / "link").is_symlink()


def test_what_is_not_a_regular_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, reason in [("pipe", "not a regular file"), ("link", "not a regular file"), (".", "is a directory"),
                         ("circle", "links")]:
        with pytest.raises(OSError, match=reason):
            write_atomically(tmp_path / name, b"x")
    assert (tmp_path / "pipe").is_fifo() and sorted(os.listdir(tmp_path)) == ["circle", "link", "pipe"]


def test_a_failure_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "folder", b"x")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "o.json", b"x")
