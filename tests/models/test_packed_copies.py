"""Which packed copies are kept: the newest that fit, whole ones only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headrace.core.errors import MachineError
from headrace.models import packed_copies
from headrace.models.packed_copies import find_packed, forget_packed, keep_packed, new_packed, packed_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keep(key: str, size: int, *, limit: int = 1000, used: int | None = None) -> None:
    """used: seconds after the epoch at which it was used last."""
    with new_packed(limit) as (file, _):
        file.write_bytes(b"x" * size)
        keep_packed(file, key, origin=f"/models/{key}", limit=limit)
    if used is not None:
        os.utime(packed_folder() / key, (used, used))


def kept() -> list[str]:
    return [copy.key for copy in packed_copies.packed_copies()]


def test_a_copy_is_found_by_its_key_and_listed_with_its_model() -> None:
    assert find_packed("a") is None
    assert kept() == []
    keep("a", 10)
    found = find_packed("a")
    assert found is not None
    assert found.read_bytes() == b"x" * 10
    (copy,) = packed_copies.packed_copies()
    assert (copy.key, copy.origin, copy.size, copy.path) == ("a", "/models/a", 10, packed_folder() / "a")
    forget_packed("a")
    assert find_packed("a") is None
    forget_packed("a")


def test_what_was_longest_not_used_goes_first() -> None:
    for used, key in enumerate("abc"):
        keep(key, 300, used=used)
    assert find_packed("a") is not None, "used now"
    keep("d", 300)
    assert kept() == ["c", "a", "d"], "c after b, which went"
    keep("e", 900)
    assert kept() == ["e"]


def test_what_is_not_kept_leaves_nothing() -> None:
    with new_packed(1000) as (file, _):
        file.write_bytes(b"half")
    with pytest.raises(ZeroDivisionError), new_packed(1000) as (file, _):
        file.write_bytes(b"half")
        raise ZeroDivisionError
    assert list(packed_folder().iterdir()) == []


def test_of_two_that_keep_the_same_one_is_kept() -> None:
    with new_packed(1000) as (late, _):
        late.write_bytes(b"late")
        keep("a", 5)
        keep_packed(late, "a", origin="/models/a", limit=1000)
    assert kept() == ["a"]
    found = find_packed("a")
    assert found is not None
    assert found.read_bytes() == b"xxxxx"


def test_the_disk_is_never_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, room in ((2**30 + 100, 100), (2**29, 0), (2**40, 1000)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: shutil._ntuple_diskusage(2**41, 0, free))
        with new_packed(1000) as (_, given):
            assert given == room


def test_what_a_killed_process_left_is_swept_after_a_while() -> None:
    old, new = (packed_folder() / f".incomplete-{age}" for age in ("old", "new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(b"half")
    os.utime(old, (0, 0))
    assert kept() == []
    keep("a", 10)
    assert not old.exists()
    assert new.exists()


def test_a_cache_that_cannot_be_written_is_the_machines_fault(cache: Path) -> None:
    cache.write_bytes(b"a file")
    with pytest.raises(MachineError, match="HEADRACE_CACHE"), new_packed(1000):
        pass
    assert find_packed("a") is None
    assert kept() == []
