"""Checkpoints and tokenizers by their name on the Hugging Face hub: `hf://owner/name`, with a
revision as `hf://owner/name@revision`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isoloss_contract.store import Patience, Store, StoreUnavailable
from isoloss_trainer.shards import PATIENT
from isoloss_trainer.termination import BadData

SCHEME = "hf://"


def is_hub_name(uri: str) -> bool:
    """Whether `uri` names a model repository on the hub."""
    return uri.startswith(SCHEME) and not uri.startswith(f"{SCHEME}datasets/")


def directory(uri: str, patterns: Sequence[str], patience: Patience = PATIENT) -> Store:
    """The folder at `uri`, or of a repository on the hub a local one. Raises as `hub_snapshot`."""
    folder = f"file://{hub_snapshot(uri, patterns)}" if is_hub_name(uri) else uri
    return Store(folder, patience, follow_links=True)  # a snapshot of the hub consists of links


def hub_snapshot(uri: str, patterns: Sequence[str]) -> Path:
    """A local folder with the files of a repository that match `patterns`.

    HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are the hub's own variables. Raises
    BadData(NotOnHub) if the repository does not exist or is not readable, StoreUnavailable if
    the hub cannot be reached and the files are not cached.
    """
    from huggingface_hub import constants, errors, snapshot_download

    limit_silence()
    name, _, revision = uri.removeprefix(SCHEME).partition("@")
    absent = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=list(patterns))
    except (*absent, errors.HFValidationError) as error:
        reason = str(error).strip().splitlines()[0][:300]
        message = f"{uri}: no such repository or revision on the hub, or no permission (check the name and HF_TOKEN): {reason}"
        raise BadData("NotOnHub", message) from error
    except Exception as error:
        # The hub's own errors, its HTTP library's and the disk's share no base class.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        message = (
            f"{uri}: the hub at {constants.ENDPOINT} cannot be reached ({reason}), and this machine has no copy: check the "
            "network and HF_ENDPOINT, or give a folder with the files"
        )
        raise StoreUnavailable(message) from error
    return Path(folder)


def limit_silence() -> None:
    """Give up requests to the hub that bring no byte for HF_HUB_ETAG_TIMEOUT seconds (10).

    Note: snapshot_download asks for the commit without any limit, so a server that accepts a connection and never
    answers would be waited for without end.
    """
    from huggingface_hub import get_session

    session = get_session()
    hooks = session.event_hooks
    if _limit_request not in hooks["request"]:
        session.event_hooks = {**hooks, "request": [*hooks["request"], _limit_request]}


def _limit_request(request: Any) -> None:
    from huggingface_hub import constants

    given = request.extensions.get("timeout", {})
    limits = {
        part: constants.HF_HUB_ETAG_TIMEOUT if given.get(part) is None else given[part]
        for part in ("connect", "read", "write", "pool")
    }
    request.extensions["timeout"] = limits
