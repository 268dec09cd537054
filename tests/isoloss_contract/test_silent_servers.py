"""How often a server that takes connections and says nothing is asked: libraries' own retries multiply."""

import gcsfs
import pytest

from isoloss_contract.store import Patience, Store, StoreUnavailable
from tests.faults.injection import hang
from tests.isoloss_contract.conftest import BUCKET
from tests.support.gcs_server import needs_gcs_server
from tests.support.proxy import Proxy

BRIEF = {"connect_seconds": 0.5, "silence_seconds": 0.5, "longest_pause_seconds": 0.1}


def assert_asked_once_per_attempt(uri: str, relay: Proxy) -> None:
    relay.handler = hang
    for attempts in (1, 3):
        for retry_timeouts in (True, False):
            relay.requests = 0
            store = Store(uri, Patience(attempts, retry_timeouts=retry_timeouts, **BRIEF))
            with pytest.raises(StoreUnavailable, match="a/b"):
                store.read("a/b")
            assert relay.requests == (attempts if retry_timeouts else 1)
            with pytest.raises(StoreUnavailable, match="a/b"):
                store.write_if("a/b", b"1", None)


@pytest.mark.s3
def test_a_silent_s3_server_is_asked_once_per_attempt(relay: Proxy) -> None:
    assert_asked_once_per_attempt(f"s3://{BUCKET}", relay)


@needs_gcs_server
def test_a_silent_gcs_server_is_asked_once_per_attempt(
    gcs_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcsfs.GCSFileSystem.clear_instance_cache()
    relay = Proxy(gcs_address).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", relay.url)
    assert_asked_once_per_attempt(f"gs://{BUCKET}", relay)
    gcsfs.GCSFileSystem.clear_instance_cache()
