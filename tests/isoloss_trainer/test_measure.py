"""`isoloss measure`: the loss that `isoloss predict --initial-loss` takes, from a folder and files of text."""

import json
import re
import socket
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from isoloss.cli.application import run
from tests.isoloss_trainer import builders
from tests.isoloss_trainer.families import FAMILIES
from tests.isoloss_trainer.test_evaluate import save

TEXTS = builders.documents(24, 24_000)
LENGTH = ("--sequence-length", str(builders.SEQUENCE_LENGTH))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tokenizer = builders.make_tokenizer(tmp_path / "tokenizer", TEXTS)
    return save(tmp_path / "model", builders.LLAMA, tokenizer)


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    file = tmp_path / "held-out.jsonl"
    builders.write_json_lines(file, TEXTS)
    return file


def own_loss(checkpoint: Path, length: int) -> float:
    """Nats per token by transformers' own model, over all whole sequences of the documents in a row."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    end = tokenizer.token_to_id(builders.END)
    stream = [token for text in TEXTS for token in (*tokenizer.encode(text).ids, end)]
    count = (len(stream) - 1) // length
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    rows = torch.tensor([stream[i * length : (i + 1) * length + 1] for i in range(count)])
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))


@pytest.mark.parametrize("name", ["held-out.jsonl", "r[1].jsonl", "r?.jsonl"])
def test_the_loss_of_all_of_the_text_is_transformers_own(
    checkpoint: Path, held_out: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the file that is named, even if its name reads as a pattern that others match."""
    held_out = held_out.rename(held_out.with_name(name))
    builders.write_json_lines(held_out.with_name("rx.jsonl"), builders.documents(3, 9_000))
    options = (*LENGTH, "--sequences", "100000", "--json")
    assert run(["measure", str(checkpoint), str(held_out), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["initial_loss"] == pytest.approx(
        own_loss(checkpoint, builders.SEQUENCE_LENGTH), abs=1e-5
    )
    assert 0 < found["standard_error"] < 0.1
    assert found["same_tokenizer"]


def test_what_is_printed_ends_with_the_command_to_type_next(
    checkpoint: Path, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["measure", str(checkpoint), str(held_out), *LENGTH]) == 0
    printed = capsys.readouterr()
    loss = re.search(r"initial loss +(\S+) ± \S+ nats per token\n", printed.out)
    assert loss is not None, printed.out
    last = printed.out.splitlines()[-1].split()
    assert last[:3] == ["isoloss", "predict", "laws.json"]
    assert last[last.index("--initial-loss") + 1] == loss[1]
    assert not printed.err  # no bar where nobody looks


def test_text_files_are_a_document_each_and_a_sequence_is_as_long_as_the_model_reads(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    for file, text in zip(files, TEXTS, strict=False):
        file.write_text(text)
    assert run(["measure", str(checkpoint), *map(str, files)]) == 0
    assert "in sequences of 64\n" in capsys.readouterr().out


def test_the_loss_is_per_token_of_the_tokenizer_that_is_given(
    checkpoint: Path, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = {}
    coarse = builders.make_tokenizer(tmp_path / "coarse", TEXTS, vocabulary=300)
    for name, options in {"own": (), "other": ("--tokenizer", str(coarse))}.items():
        assert run(["measure", str(checkpoint), str(held_out), *LENGTH, *options, "--json"]) == 0
        losses[name] = json.loads(capsys.readouterr().out)
    assert not losses["other"]["same_tokenizer"]
    assert losses["other"]["initial_loss"] < losses["own"]["initial_loss"]  # of shorter tokens
    per_byte = [found["nats_per_byte"] for found in losses.values()]
    assert per_byte[0] == pytest.approx(per_byte[1], rel=0.03)


def test_as_many_unreadable_documents_are_skipped_as_in_a_sweep(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = builders.documents(200, 24_000)
    file = tmp_path / "rows.jsonl"
    for skipped in (2, 3):
        builders.write_json_lines(file, texts[skipped:])
        with file.open("a") as rows:
            rows.write('{"text": null}\n' * skipped)
        code = run(["measure", str(checkpoint), str(file), *LENGTH])
        printed = capsys.readouterr()
        if skipped == 2:
            assert code == 0
            assert "unreadable documents skipped: 2\n" in printed.out
        else:
            assert code == 2
            assert "field 'text' is null, not text; 3 of 200 documents" in printed.err


def test_a_sequence_is_no_longer_than_positions_of_any_name(
    tmp_path: Path, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = builders.make_tokenizer(tmp_path / "tokenizer", TEXTS)
    model = save(tmp_path / "mpt", {"model_type": "mpt", **FAMILIES["mpt"]}, tokenizer)
    assert run(["measure", str(model), str(held_out)]) == 0
    assert "in sequences of 64\n" in capsys.readouterr().out
    assert run(["measure", str(model), str(held_out), "--sequence-length", "128"]) == 2
    assert "max_seq_len 64 is below the sequence length 128" in capsys.readouterr().err


def test_what_cannot_be_measured_names_the_file_or_option(
    checkpoint: Path, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tmp_path / "one.txt"
    one.write_text(TEXTS[0])
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = {
        (str(checkpoint), str(one), *LENGTH): "at least 2 documents",
        (str(checkpoint), str(held_out), "--sequence-length", "60000"): "--sequence-length",
        (
            str(checkpoint),
            str(empty),
        ): f"{builders.uri(empty)} matches folders and no file: write {builders.uri(empty)}/*",
        (
            "lab/model",
            str(held_out),
        ): "for the repository on the Hugging Face hub write hf://lab/model",
        (
            str(checkpoint),
            str(held_out),
            "--text-field",
            "",
        ): "--text-field: String should have at",
        (str(checkpoint), f"s3://bucket/{'x' * 2000}.jsonl"): "TEXT: String should have at most",
        (str(checkpoint), f"/{'x' * 300}.jsonl"): "x.jsonl",
        (str(checkpoint), "/{a,b}.jsonl"): "/{a,b}.jsonl: braces are not expanded",
        (str(tmp_path / "absent"), str(held_out)): "absent: there is no such folder",
        (
            str(checkpoint),
            str(held_out),
            "--tokenizer",
            str(empty),
        ): "no tokenizer.json: save_pretrained",
    }
    for arguments, part in cases.items():
        assert run(["measure", *arguments]) == 2, arguments
        printed = capsys.readouterr()
        assert printed.err.startswith("isoloss: "), arguments
        assert part in printed.err, arguments
        assert "Traceback" not in printed.err
        assert not printed.out
        assert run(["measure", *arguments, "--json"]) == 2
        assert part in json.loads(capsys.readouterr().out)["error"]["message"]


@pytest.mark.parametrize("unreachable", ["checkpoint", "tokenizer", "text"])
def test_a_server_that_cannot_be_reached_is_named_after_a_few_tries(
    checkpoint: Path,
    held_out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unreachable: str,
) -> None:
    """A pod tries for minutes. Somebody who waits at a terminal would take the command for hung."""
    asked, away = [str(checkpoint), str(held_out)], "s3://bucket/model"
    given = {
        "checkpoint": [away, str(held_out)],
        "tokenizer": [*asked, "--tokenizer", away],
        "text": [str(checkpoint), f"{away}/*.jsonl"],
    }
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        endpoint = f"http://127.0.0.1:{reserved.getsockname()[1]}"
    # Nobody listens at the port any more.
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }.items():
        monkeypatch.setenv(name, value)
    pauses: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)
    assert run(["measure", *given[unreachable]]) == 2
    printed = capsys.readouterr()
    assert away in printed.err
    assert "Could not connect" in printed.err
    assert len(pauses) <= 3
