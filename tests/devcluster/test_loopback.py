"""Behind a proxy for everything, the cluster's own servers are reached directly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import main as demo
from devcluster.ports import pass_proxies_by

NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not answer."""
START_AND_STOP = """
import sys
from pathlib import Path

from devcluster.ports import pass_proxies_by

pass_proxies_by()
from devcluster.cluster import DevCluster

cluster = DevCluster(Path(sys.argv[1]))
try:
    cluster.start()
finally:
    cluster.stop()
"""
"""As the demo does."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "", "NO_PROXY": " "}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "example.com"}, "example.com,127.0.0.1,localhost"),
        ({"no_proxy": "a, localhost"}, "a,localhost,127.0.0.1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_this_machine_is_added_to_what_needs_no_proxy(before: dict[str, str], after: str) -> None:
    environment = {**before, "http_proxy": NOWHERE}
    for _ in range(2):
        pass_proxies_by(environment)
        assert environment == {"no_proxy": after, "NO_PROXY": after, "http_proxy": NOWHERE}


def test_each_of_both_variables_keeps_its_own() -> None:
    environment = {"no_proxy": "a", "NO_PROXY": "b"}
    pass_proxies_by(environment)
    assert environment == {
        "no_proxy": "a,127.0.0.1,localhost",
        "NO_PROXY": "b,127.0.0.1,localhost",
    }


def test_the_demo_reaches_its_own_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it does anything, of which its command line is the first."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "example.com")
    monkeypatch.setattr(sys, "argv", ["demo", "--help"])
    with pytest.raises(SystemExit):
        demo()
    assert "127.0.0.1" in os.environ["no_proxy"]
    assert "127.0.0.1" in os.environ["NO_PROXY"]


@pytest.mark.whole
@pytest.mark.cluster
@pytest.mark.s3
def test_a_cluster_starts_behind_a_proxy_that_knows_nothing_of_it(tmp_path: Path) -> None:
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    environment = {
        name: value for name, value in os.environ.items() if "proxy" not in name.lower()
    }
    environment |= dict.fromkeys(names, NOWHERE)
    command = [sys.executable, "-c", START_AND_STOP, str(tmp_path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
