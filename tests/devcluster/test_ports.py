"""Ports are kept clear of outgoing connections, and a port lost at the last moment is replaced."""

import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import ports
from devcluster.access import write_kubeconfig
from devcluster.daemon import Daemon
from devcluster.object_storage import ObjectStorage


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another process listens."""
    with socket.create_server(("127.0.0.1", ports.free_ports(1)[0])) as server:
        yield server.getsockname()[1]


def ephemeral(folder: Path, text: str) -> Path:
    file = folder / "range"
    file.write_text(text)
    return file


def test_a_port_of_outgoing_connections_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "EPHEMERAL", ephemeral(tmp_path, "20100\t65535\n"))
    assert all(20000 <= port < 20100 for _ in range(20) for port in ports.free_ports(3))


def test_where_every_port_may_be_of_an_outgoing_connection_any_free_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "EPHEMERAL", ephemeral(tmp_path, "1024\t65535\n"))
    assert len(set(ports.free_ports(3))) == 3


def test_a_stopped_servers_port_is_nobody_elses_until_its_folder_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "RESERVATIONS", tmp_path / "reservations")
    monkeypatch.setattr(ports, "RANGE", range(20000, 20400))
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "none")
    owner = tmp_path / "server"
    (port,) = ports.reserved_ports(1, owner)
    monkeypatch.setattr(ports, "RANGE", range(port, port + 1))
    with pytest.raises(RuntimeError, match="no 1 free ports"):
        ports.free_ports(1)
    with pytest.raises(RuntimeError, match="no 1 free ports"):
        ports.reserved_ports(1, tmp_path / "another")
    owner.rmdir()
    assert ports.free_ports(1) == [port]


def test_reservations_of_folders_that_are_gone_are_removed_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservations = tmp_path / "reservations"
    monkeypatch.setattr(ports, "RESERVATIONS", reservations)
    gone, there = tmp_path / "gone", tmp_path / "there"
    ports.reserved_ports(5, gone)
    kept = ports.reserved_ports(2, there)
    gone.rmdir()
    kept += ports.reserved_ports(1, there)
    left = {path.name for path in reservations.iterdir()}
    assert left == {"lock", *map(str, kept)}


def test_what_an_earlier_start_logged_is_no_reason_of_a_later_one(tmp_path: Path) -> None:
    """A server that once lost its port would be started on others for ever, whatever is wrong with it now."""
    daemon = Daemon("server", tmp_path)
    complains = "print('bind: address already in use'); raise SystemExit(1)"
    daemon.start([sys.executable, "-c", complains], {})
    with pytest.raises(ports.PortTakenError):
        daemon.wait_until(lambda: False, 30)
    daemon.start([sys.executable, "-c", "print('bad certificate'); raise SystemExit(1)"], {})
    with pytest.raises(RuntimeError, match="ended while starting:\nbad certificate") as caught:
        daemon.wait_until(lambda: False, 30)
    assert not isinstance(caught.value, ports.PortTakenError)


def test_a_start_that_loses_its_port_each_time_is_given_up() -> None:
    starts = []

    def start() -> None:
        starts.append(1)
        raise ports.PortTakenError("bind: address already in use")

    with pytest.raises(ports.PortTakenError):
        ports.start_on_free_ports(start)
    assert len(starts) == ports.ATTEMPTS


@pytest.mark.s3
def test_object_storage_that_loses_its_port_while_starting_takes_another(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = iter([[taken], *[ports.free_ports(1) for _ in range(5)]])
    monkeypatch.setattr(ports, "reserved_ports", lambda *_: next(chosen))
    storage = ObjectStorage(tmp_path / "s3")
    storage.start()
    try:
        storage.create_bucket("there")
        assert not storage.url.endswith(f":{taken}")
    finally:
        storage.stop()


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
