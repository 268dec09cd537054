"""Resources as `isoloss watch` sees them: in a cluster through kubectl, and as the status beside the page in the store."""

import json
from pathlib import Path
from typing import Any

import pytest

from isoloss_contract import layout
from isoloss_contract.ledger import Ledger
from isoloss_contract.store import Store
from tests.support.ledgers import write_ledger


def resource(*conditions: tuple[str, str, str], **status: Any) -> dict[str, Any]:
    """One as the API server shows it: conditions of type, status and reason, and what else its status has."""
    return {
        "metadata": {"generation": 1},
        "spec": {"sweepRef": {"name": "dense"}},
        "status": {
            "conditions": [
                {"type": kind, "status": is_true, "reason": reason, "message": "why",
                 "observedGeneration": 1}
                for kind, is_true, reason in conditions
            ],
            **status,
        },
    }  # fmt: skip


def write_watched(
    store: Store, of: Ledger, *conditions: tuple[str, str, str], **status: Any
) -> None:
    """A sweep's ledger and the status beside its page, as the operator leaves them."""
    write_ledger(store, of)
    metadata = {"name": of.sweep, "namespace": of.namespace, "uid": of.uid, "generation": 1}
    document = {**resource(*conditions, **status), "metadata": metadata}
    path = layout.page_status_in(layout.sweep_folder(of.sweep, of.uid))
    store.write(path, json.dumps(document).encode())


def put_kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    """A kubectl that knows these resources, KIND__NAME, and records how it was called."""
    for name, answer in answers.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(answer))
    program = folder / "kubectl"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{folder}/calls"\n'
        f'file="{folder}/${{2%%.*}}.$3"\n'
        '[ -e "$file" ] && exec cat "$file"\n'
        'case "$*" in *--ignore-not-found*) exit 0;; esac\n'
        'echo "Error from server (NotFound): $3 not found" >&2; exit 1\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
