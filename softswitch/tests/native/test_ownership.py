# SPDX-License-Identifier: Apache-2.0
"""What another user could have written is not trusted; what this user or root alone could is."""

import os
import socket
import stat
from pathlib import Path
from typing import Final

import pytest

from softp4.native.ownership import OwnershipError, peer, read_trusted, trusted_folder

OTHER: Final = 65534


def folder_of(path: Path, mode: int = 0o755, owner: int | None = None) -> Path:
    path.mkdir()
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def file_of(path: Path, mode: int = 0o644, owner: int | None = None) -> Path:
    path.write_bytes(b"content")
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2750, 0o500])
def test_a_folder_and_a_file_of_ones_own_are_trusted(tmp_path: Path, mode: int) -> None:
    with trusted_folder(folder_of(tmp_path / "folder", mode)) as folder:
        assert folder == tmp_path / "folder"
    assert read_trusted(file_of(tmp_path / "file", mode & 0o666)) == b"content"


@pytest.mark.parametrize("mode", [0o770, 0o775, 0o777, 0o1777, 0o702])
def test_where_others_may_write_nothing_is_trusted(tmp_path: Path, mode: int) -> None:
    """Nor in a sticky folder: others may put files there, though not remove ours."""
    with (
        pytest.raises(OwnershipError, match=rf"may write to it \(mode 0?{mode:o}\): chmod go-w"),
        trusted_folder(folder_of(tmp_path / "folder", mode)),
    ):
        pass
    with pytest.raises(OwnershipError, match="others than its owner may write to it"):
        read_trusted(file_of(tmp_path / "file", mode & 0o666))


@pytest.mark.root
def test_what_another_user_owns_is_refused_and_he_is_named(tmp_path: Path) -> None:
    words = rf"it belongs to user (\w+ \({OTHER}\)|{OTHER})"
    with (
        pytest.raises(OwnershipError, match=words),
        trusted_folder(folder_of(tmp_path / "folder", 0o700, OTHER)),
    ):
        pass
    with pytest.raises(OwnershipError, match=words):
        read_trusted(file_of(tmp_path / "file", 0o600, OTHER))


@pytest.mark.root
@pytest.mark.parametrize("owner", [1234, OTHER])
def test_what_root_owns_is_trusted_by_all_and_what_others_own_by_none(tmp_path: Path, owner: int) -> None:
    tmp_path.chmod(0o755)
    for name, user in (("roots", 0), ("own", 1234), ("others", OTHER)):
        file_of(tmp_path / name, 0o644, user)
    here = os.open(tmp_path, os.O_RDONLY)  # the folders above are root's alone
    os.seteuid(owner)
    try:
        os.chdir(here)
        trusted = []
        for name in ("roots", "own", "others"):
            try:
                read_trusted(Path(name))
                trusted.append(name)
            except OwnershipError:
                pass
    finally:
        os.seteuid(0)
        os.close(here)
        os.chdir("/")
    assert trusted == ["roots", "own" if owner == 1234 else "others"]


@pytest.mark.root
def test_a_link_is_followed_unless_another_user_made_it(tmp_path: Path) -> None:
    folder_of(tmp_path / "folder")
    (tmp_path / "link").symlink_to("folder")
    with trusted_folder(tmp_path / "link") as folder:
        assert folder == tmp_path / "folder"
    os.chown(tmp_path / "link", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(OwnershipError, match="it belongs to"), trusted_folder(tmp_path / "link"):
        pass


def test_only_files_are_read(tmp_path: Path) -> None:
    file_of(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic link"):
        read_trusted(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(OwnershipError, match="not a regular file"):
        read_trusted(tmp_path / "fifo")


@pytest.mark.root
@pytest.mark.parametrize(("mode", "owner"), [(0o755, OTHER), (0o777, 0)])
def test_a_path_leads_to_the_folder_that_was_looked_at(tmp_path: Path, mode: int, owner: int) -> None:
    """Who may rename what is in the folder above puts another one in its place."""
    above = folder_of(tmp_path / "above", mode, owner)
    file_of(folder_of(above / "cache") / "library")
    with trusted_folder(above / "cache") as folder:
        (above / "cache").rename(above / "away")
        folder_of(above / "cache", 0o777, OTHER)
        (above / "cache" / "library").write_bytes(b"foreign")
        assert read_trusted(folder / "library") == b"content"
        (folder / "more").write_bytes(b"")
    assert (above / "away" / "more").exists()
    assert not (above / "cache" / "more").exists()


def test_the_user_at_the_other_end_of_a_socket_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert peer(one) == os.geteuid()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = list(Path("/proc/self/fd").iterdir())
    for mode in (0o700, 0o777):
        folder_of(tmp_path / f"{mode:o}", mode)
        try:
            with trusted_folder(tmp_path / f"{mode:o}"):
                read_trusted(file_of(tmp_path / "file", mode & 0o666))
        except OwnershipError:
            assert mode & stat.S_IWOTH
    assert len(list(Path("/proc/self/fd").iterdir())) == len(before)
