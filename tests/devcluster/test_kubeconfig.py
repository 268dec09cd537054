"""A kubeconfig is read by operators that run while it is written again, with another token, for the next one."""

import json
import threading
from pathlib import Path

from devcluster.access import write_kubeconfig


def test_whoever_reads_one_that_is_written_again_finds_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfigs" / "someone.json"

    def write(token: str) -> None:
        write_kubeconfig(path, server="https://localhost:1", ca=tmp_path / "ca.crt", token=token)

    write("0")
    done = threading.Event()

    def write_again() -> None:
        for number in range(300):
            write(str(number))
        done.set()

    writer = threading.Thread(target=write_again)
    writer.start()
    while not done.is_set():
        (user,) = json.loads(path.read_text())["users"]
        assert user["user"]["token"].isdigit()
    writer.join()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]
