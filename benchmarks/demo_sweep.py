"""The demo's inputs and question, with a folder in the place of its object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demo.places import PREDICTION_FILE, STORE, SWEEP_FILE
from isoloss.yaml_text import read_documents
from isoloss_contract.records import PrepareTask
from isoloss_contract.store import Store
from isoloss_operator.api import ScalingSweepSpec
from isoloss_operator.planning.specs import prepare_config


class DemoInFolder:
    """The demo's store as the folder `store` below `folder`."""

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet."""
        self._uri = f"file://{folder.resolve()}/store"

    @property
    def inputs(self) -> Store:
        """Of corpus, tokenizer and checkpoint."""
        return Store(self._uri)

    def sweep(self) -> dict[str, Any]:
        """The demo's own spec."""
        return self._spec(SWEEP_FILE)

    def prediction(self) -> dict[str, Any]:
        """The prediction's."""
        return self._spec(PREDICTION_FILE)

    def _spec(self, file: Path) -> dict[str, Any]:
        (manifest,) = read_documents(file.read_text().replace(STORE, self._uri))
        spec: dict[str, Any] = manifest["spec"]
        return spec

    def corpus(self, spec: ScalingSweepSpec) -> PrepareTask:
        """Prepares the sweep's corpus."""
        return PrepareTask(config=prepare_config(spec), store_uri=spec.storage.uri)
