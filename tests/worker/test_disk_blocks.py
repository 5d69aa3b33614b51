"""Blocks in files: what comes back is what was written, or nothing."""

import os

import numpy as np
import pytest

from headrace.core.disk import DiskDelete, DiskRead, DiskWrite, StoredBlock
from headrace.core.errors import ConfigError
from headrace.worker.disk_blocks import HEAD_BYTES, DiskBlocks

NAME, OTHER = bytes(range(16)), bytes(range(1, 17))
SIZE = 96


def host(blocks=4):
    return [np.random.default_rng(0).integers(0, 256, (blocks, SIZE), np.uint8)]


def done(disk, *transfers):
    """Results of these by number, after all were carried out."""
    disk.begin(transfers)
    results = {}
    wanted = sum(not isinstance(one, DiskDelete) for one in transfers)
    while len(results) < wanted:
        results |= {result.number: result.ok for result in disk.results(5.0)}
    return results


@pytest.fixture
def disks(tmp_path):
    opened = []

    def open_disk(blocks):
        opened.append(DiskBlocks(tmp_path / "blocks", blocks))
        return opened[-1]

    yield open_disk
    for disk in opened:
        disk.close()


def test_a_block_comes_back_also_after_a_restart(disks):
    blocks = host()
    disk = disks(blocks)
    assert disk.stored() == [] and disk.results(0.0) == []
    assert done(disk, DiskWrite(1, NAME, 0, 2)) == {1: True}
    again = disks(fresh := [np.zeros((4, SIZE), np.uint8)])
    assert again.stored() == [StoredBlock(NAME, 0, HEAD_BYTES + SIZE)]
    assert done(again, DiskRead(7, NAME, 0, 1)) == {7: True}
    assert (fresh[0][1] == blocks[0][2]).all() and not fresh[0][0].any()


def test_what_is_not_there_is_not_read(disks):
    disk = disks(host())
    assert done(disk, DiskRead(1, NAME, 0, 0)) == {1: False}
    done(disk, DiskWrite(2, NAME, 0, 0))
    assert done(disk, DiskDelete(NAME, 0), DiskDelete(OTHER, 0), DiskRead(3, NAME, 0, 0)) == {3: False}


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "head", "another's"])
def test_a_damaged_file_is_removed_and_not_believed(disks, tmp_path, damage):
    disk = disks(host())
    done(disk, DiskWrite(1, NAME, 0, 2))
    (path,) = (tmp_path / "blocks").iterdir()
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    elif damage == "cut":
        del data[-1]
    elif damage == "longer":
        data += b"x"
    elif damage == "head":
        data[0] ^= 1
    else:
        path = path.rename(path.with_name(f"{OTHER.hex()}-0.kv"))
    path.write_bytes(data)
    name = OTHER if damage == "another's" else NAME
    assert done(disk, DiskRead(2, name, 0, 0)) == {2: False}
    assert not path.exists()


def test_files_are_listed_by_use_and_unfinished_ones_removed(disks, tmp_path):
    disk = disks(host())
    done(disk, DiskWrite(1, NAME, 0, 0), DiskWrite(2, OTHER, 0, 1))
    folder = tmp_path / "blocks"
    for suffix in (".tmp", ".0123abcd.tmp"):
        abandoned = folder / f"{NAME.hex()}-1{suffix}"
        abandoned.write_bytes(b"half")
        os.utime(abandoned, (1000, 1000))
    another_engines = folder / f"{NAME.hex()}-2.0123abcd.tmp"
    another_engines.write_bytes(b"half")
    (folder / "notes.txt").write_text("kept")
    for age, name in ((5, OTHER), (9, NAME)):
        path = folder / f"{name.hex()}-0.kv"
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    assert [one.name for one in disks(host()).stored()] == [NAME, OTHER]
    assert done(disk, DiskRead(3, NAME, 0, 0)) == {3: True}
    assert [one.name for one in disks(host()).stored()] == [OTHER, NAME]
    another_engines.rename(folder / f"{NAME.hex()}-2.kv")
    assert sorted(path.suffix for path in folder.iterdir()) == [".kv", ".kv", ".kv", ".txt"]


def test_what_is_no_plain_file_is_passed_over(disks, tmp_path):
    disk = disks(host())
    assert done(disk, DiskWrite(1, NAME, 0, 0)) == {1: True}
    folder = tmp_path / "blocks"
    (folder / f"{OTHER.hex()}-0.kv").symlink_to(tmp_path / "nowhere")
    (folder / f"{OTHER.hex()}-1.kv").mkdir()
    os.mkfifo(folder / f"{OTHER.hex()}-2.kv")
    assert disks(host()).stored() == [StoredBlock(NAME, 0, HEAD_BYTES + SIZE)]


def test_a_file_that_another_engine_removes_meanwhile_is_passed_over(disks, tmp_path, monkeypatch):
    disk = disks(host())
    assert done(disk, DiskWrite(1, NAME, 0, 0), DiskWrite(2, OTHER, 0, 1)) == {1: True, 2: True}
    listed = list(os.scandir(tmp_path / "blocks"))
    done(disk, DiskDelete(OTHER, 0), DiskRead(3, NAME, 0, 2))
    monkeypatch.setattr(os, "scandir", lambda folder: listed)
    assert disks(host()).stored() == [StoredBlock(NAME, 0, HEAD_BYTES + SIZE)]


def test_a_write_that_fails_is_said_and_harms_nothing(disks, tmp_path):
    disk = disks(host())
    folder = tmp_path / "blocks"
    # A folder stands where the file would be.
    (folder / f"{NAME.hex()}-0.kv").mkdir()
    assert done(disk, DiskWrite(1, NAME, 0, 0), DiskWrite(2, OTHER, 0, 1)) == {1: False, 2: True}


def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="kv_offloading_dir"):
        DiskBlocks(tmp_path / "file", host())
