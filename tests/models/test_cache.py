import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace.core.errors import MachineError
from headrace.models.cache import cache_folder, locked, temporary_folder, write_whole


def test_the_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("HEADRACE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "headrace"


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_what_stays_in_a_temporary_folder_goes_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), temporary_folder(tmp_path / "b" / "file") as folder:
        (folder / "half").write_bytes(b"x")
        raise ZeroDivisionError
    assert list((tmp_path / "b").iterdir()) == []


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        with locked(tmp_path / "thing"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = "import sys, os\nfrom pathlib import Path\nfrom headrace.models.cache import locked\n"
    code += "with locked(Path(sys.argv[1])):\n    os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "thing")], check=True, timeout=60)
    with locked(tmp_path / "thing"):
        assert (tmp_path / "thing.lock").exists()


def test_a_folder_that_cannot_be_written_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MachineError, match="HEADRACE_CACHE"), locked(tmp_path / "file" / "thing"):
        pass
    with pytest.raises(MachineError, match="HEADRACE_CACHE"):
        write_whole(tmp_path / "file" / "thing", b"x")
