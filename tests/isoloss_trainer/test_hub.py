"""Corpora, tokenizers and checkpoints by their names on the Hugging Face hub, against a hub of our own:
the client reads its address when it is imported, so each test asks in a process of its own."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoloss_contract import layout
from isoloss_contract.records import DataManifest, DomainSource, EvaluationResult
from isoloss_contract.store import Store
from isoloss_trainer.evaluate import evaluate
from isoloss_trainer.termination import Interruption
from tests.isoloss_trainer.builders import LLAMA, MIXTURE, prepare_task, quiet, uri
from tests.isoloss_trainer.conftest import Prepared
from tests.isoloss_trainer.hub_server import COMMIT, serve_hub
from tests.isoloss_trainer.test_evaluate import save
from tests.support.warm_python import WarmPython

PRELUDE = """
import sys
import torch._dynamo, torch.distributed, torch.utils.flop_counter
import isoloss_trainer.evaluate, isoloss_trainer.prepare
assert not {"huggingface_hub", "transformers"} & set(sys.modules)
"""
PROGRAM = """
import sys
from pathlib import Path
from isoloss_contract.records import Task
from isoloss_trainer.termination import Interruption
from isoloss_trainer.termination import explain
from pydantic import TypeAdapter
from tests.isoloss_trainer.builders import quiet
scratch, *tasks = sys.argv[1:]
for text in tasks:
    task = TypeAdapter(Task).validate_json(text)
    try:
        if task.kind == "prepare":
            from isoloss_trainer.prepare import prepare as run
        else:
            from isoloss_trainer.evaluate import evaluate as run
        print("0 Succeeded", run(task, Path(scratch), Interruption(), quiet()))
    except Exception as error:
        code, words = explain(error)
        print(int(code), words.code, words.message.replace("\\n", " "))
"""


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    """Starts Python with torch, and without the hub's client."""
    warm = WarmPython(PRELUDE)
    yield warm
    warm.end()


def on_hub(
    python: WarmPython, endpoint: str, folder: Path, *tasks: object, **variables: str
) -> list[str]:
    """Run the tasks in order; a line for each: exit code, code, message."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "cache")}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **variables}
    texts = [task.model_dump_json() for task in tasks]  # type: ignore[attr-defined]
    done = python.run(["-c", PROGRAM, str(folder), *texts], environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture
def root(corpus: Path, tmp_path: Path) -> Path:
    """The hub's content: the corpus as a data set, its tokenizer and a sharded model."""
    folder = tmp_path / "hub"
    shutil.copytree(corpus, folder / "datasets" / "lab" / "corpus")
    shutil.copytree(corpus / "tokenizer", folder / "models" / "lab" / "tokenizer")
    save(folder / "models" / "lab" / "model", LLAMA, corpus / "tokenizer", max_shard_size="20KB")
    return folder


@pytest.mark.slow
def test_the_hub_gives_the_same_as_a_folder(
    prepared: Prepared, root: Path, tmp_path: Path, python: WarmPython
) -> None:
    """At the newest revision, at a given one, and without the hub once it was fetched."""
    store = uri(tmp_path / "store-of-hub")
    domains = tuple(
        DomainSource(name=name, uri=f"hf://datasets/lab/corpus/{name}*.jsonl", text_field="text")
        for name in MIXTURE
    )
    preparation = prepare_task("", store, tokenizer="hf://lab/tokenizer", domains=domains)
    names = ("hf://lab/model", f"hf://lab/model@{COMMIT}")
    local = uri(root / "models" / "lab" / "model")
    measured = [prepared.evaluate_task(name) for name in (*names, local)]
    with serve_hub(root) as endpoint:
        lines = on_hub(python, endpoint, tmp_path, preparation, *measured[:2])
    again = measured[0].model_copy(
        update={"config": measured[0].config.model_copy(update={"generation": 1})}
    )
    lines += on_hub(python, endpoint, tmp_path, again, HF_HUB_OFFLINE="1")
    assert [line.split()[1] for line in lines] == ["Succeeded"] * 4, lines
    path = layout.data_manifest(preparation.config.key)
    assert Store(store).read_record(path, DataManifest).digest == prepared.manifest.digest
    evaluate(measured[2], tmp_path, Interruption(), quiet())
    results = [
        prepared.store.read_record(layout.evaluation_result(m.config.key), EvaluationResult)
        for m in (*measured, again)
    ]
    assert len({result.loss for result in results}) == 1
    assert results[0].same_tokenizer


@pytest.mark.slow
def test_an_unknown_name_on_the_hub_is_bad_data_and_an_unreachable_hub_a_storage_failure(
    prepared: Prepared, root: Path, tmp_path: Path, python: WarmPython
) -> None:
    names = ("hf://lab/no-such", "hf://lab/model@v9", "hf://lab", "hf://lab/tokenizer")
    measured = [prepared.evaluate_task(name) for name in names]
    corpora = [
        prepare_task(uri(root / "datasets" / "lab" / "corpus"), uri(tmp_path), domains=(domain,))
        for domain in (
            DomainSource(name="a", uri="hf://datasets/lab/no-such/*.jsonl", text_field="text"),
            DomainSource(name="a", uri="hf://datasets/lab/corpus/*.jsonl", text_field="text"),
        )
    ]
    with serve_hub(root) as endpoint:
        lines = on_hub(python, endpoint, tmp_path, *measured, corpora[0])
    codes = [line.split()[:2] for line in lines]
    assert codes[:3] == [["45", "NotOnHub"]] * 3, lines
    assert codes[3:] == [["45", "NotACheckpoint"], ["45", "NoFiles"]], lines
    assert all(name in line for name, line in zip(names, lines, strict=False))
    away = on_hub(python, endpoint, tmp_path / "away", *measured[:1], corpora[1])
    assert [line.split()[1] for line in away] == ["StoreUnavailable"] * 2, away
    assert f"the hub at {endpoint} cannot be reached (Got: ConnectError" in away[0]
    assert "check the network and HF_ENDPOINT" in away[0]


@pytest.mark.slow
def test_a_hub_that_takes_connections_and_says_nothing_is_given_up(
    prepared: Prepared, root: Path, tmp_path: Path, python: WarmPython
) -> None:
    source = DomainSource(name="a", uri="hf://datasets/lab/corpus/*.jsonl", text_field="text")
    asked = (
        prepared.evaluate_task("hf://lab/model"),
        prepare_task(uri(root / "datasets" / "lab" / "corpus"), uri(tmp_path), domains=(source,)),
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        lines = on_hub(python, endpoint, tmp_path, *asked, HF_HUB_ETAG_TIMEOUT="1")
    assert [line.split()[1] for line in lines] == ["StoreUnavailable"] * 2, lines
    assert "timed out" in lines[0]
