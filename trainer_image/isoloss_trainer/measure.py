"""`isoloss measure`: the initial loss of a checkpoint on files of text, without a cluster.

All of the text is held out: it is tokenized as a sweep does it, and evaluated as an evaluate pod does it.
"""

import glob
import io
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from isoloss_contract import layout, records
from isoloss_contract.store import Patience, Store
from isoloss_trainer.attention import preferred_kernels
from isoloss_trainer.corpus import find_files, read_documents
from isoloss_trainer.evaluate import measure as measured
from isoloss_trainer.hub import SCHEME, directory
from isoloss_trainer.launch import scratch_folder
from isoloss_trainer.log import Log
from isoloss_trainer.model import POSITIONS
from isoloss_trainer.prepare import write_held_out
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import BadData, Interruption, explain
from isoloss_trainer.tokenization import load_tokenizer, read_json
from isoloss_trainer.units import BadDocuments
from isoloss_trainer.world import World

DOMAIN, CONFIG = "text", "config.json"
SHORTEST, LONGEST = 8, 2048
"""Tokens of a sequence; the longest unless another length is given or the model reads fewer."""
ANSWERED, BAD_INPUT = 0, 2
"""Exit codes, those of every command of isoloss."""
OPTIONS = {"text_field": "--text-field", "checkpoint": "CHECKPOINT"}
"""Where the fields of records come from."""
AT_A_TERMINAL = Patience(attempts=4)
"""A person is told within seconds that a server cannot be reached; a pod tries for minutes (PATIENT)."""


def measure(
    checkpoint: Annotated[
        str,
        typer.Argument(help="A folder in Hugging Face format, a URI of one, or hf://OWNER/NAME."),
    ],
    texts: Annotated[
        list[str],
        typer.Argument(
            help="Held-out text of the corpus: .txt, .jsonl, .json, .parquet or .arrow, plain, .gz or .zst; "
            "a .txt file is one document.",
            metavar="TEXT",
        ),
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder of the tokenizer that the laws' runs use: the loss is then per token of that one. "
            "Default: the checkpoint's own."
        ),
    ] = None,
    text_field: Annotated[
        str, typer.Option(help="Where rows of JSON, Parquet and Arrow have the text.")
    ] = "text",
    sequence_length: Annotated[
        int | None,
        typer.Option(
            min=SHORTEST,
            help=f"Tokens of a sequence: that of the laws' runs. Default: {LONGEST}, or what the model reads.",
        ),
    ] = None,
    sequences: Annotated[
        int, typer.Option(min=1, help="At most so many, spread evenly over the text.")
    ] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the initial loss of a checkpoint on text, for `isoloss predict --initial-loss`."""
    given = (checkpoint, texts, tokenizer, text_field, sequence_length, sequences)
    raise typer.Exit(_measured(*given, as_json=as_json))


def _measured(
    checkpoint: str,
    texts: list[str],
    tokenizer: str | None,
    text_field: str,
    sequence_length: int | None,
    sequences: int,
    *,
    as_json: bool,
) -> int:
    """Print what was measured; returns the exit code."""
    # Nothing listens to signals, so that Ctrl-C ends whatever is going on.
    interruption, world = Interruption(), World.of_environment()
    # Progress is for people: a bar on a terminal, and nothing in a pipe.
    log = Log(sys.stderr if sys.stderr.isatty() else io.StringIO(), events=False)
    try:
        with scratch_folder() as scratch, preferred_kernels(world):
            own = _folder(checkpoint)
            longest = _longest(own)
            length = sequence_length or longest
            of_tokens = _folder(tokenizer) if tokenizer else own
            data = _prepared(of_tokens, texts, text_field, length, scratch)
            config = records.EvaluateConfig(
                data_digest=data.manifest.digest,
                mixture={DOMAIN: 1.0},
                checkpoint=own,
                sequence_length=length,
                sequences_per_domain=sequences,
                precision="float32" if world.on_cpu else "bf16",
            )
            folder = f"file://{scratch}"
            task = records.EvaluateTask(config=config, store_uri=folder, data_uri=data.store.uri)
            found = measured(task, data, scratch, world, interruption, log)
            log.event("measured")
    except ValidationError as error:
        problem = error.errors()[0]
        where = OPTIONS.get(str(problem["loc"][0]), "TEXT")
        return _print_error(f"{where}: {problem['msg']}", as_json=as_json)
    except Exception as error:
        code, ending = explain(error)
        if code == 1:  # a bug
            raise
        return _print_error(ending.message, as_json=as_json)
    skipped = data.domain(DOMAIN).bad_documents
    print(
        json.dumps(_document(found, skipped), indent=2)
        if as_json
        else _in_words(found, length, skipped)
    )
    return ANSWERED


def _folder(path: str) -> str:
    """Its URI. Raises BadData if it is a path and no folder is there."""
    if "://" not in path and not os.path.isdir(path):
        on_hub = path.count("/") == 1 and not path.startswith((".", "/", "~"))
        instead = (
            f"; for the repository on the Hugging Face hub write {SCHEME}{path}" if on_hub else ""
        )
        raise BadData("NotACheckpoint", f"{path}: there is no such folder{instead}")
    return _uri(path)


def _uri(path: str) -> str:
    return path if "://" in path else f"file://{Path(path).absolute()}"


def _longest(checkpoint: str) -> int:
    """Tokens of a sequence that the model of a checkpoint reads, at most LONGEST.

    A config.json that cannot be used is left to the evaluation, which refuses it. Raises StoreUnavailable.
    """
    config = read_json(directory(checkpoint, (CONFIG,), AT_A_TERMINAL), CONFIG)
    of_text = config.get("text_config")
    config = {**config, **(of_text if isinstance(of_text, dict) else {})}
    places = next((found for name in POSITIONS if (found := config.get(name))), None)
    # A length that no sequence has is refused by the evaluation, which names it.
    return min(LONGEST, places) if isinstance(places, int) and places >= SHORTEST else LONGEST


def _prepared(
    tokenizer_uri: str, texts: list[str], text_field: str, length: int, scratch: Path
) -> PreparedData:
    """All documents of `texts`, held out. Raises BadData and StoreUnavailable."""
    tokenizer = load_tokenizer(tokenizer_uri, AT_A_TERMINAL)
    documents: dict[str, None] = {}
    bad = BadDocuments()
    # A file that is there is meant, even if its name reads as a pattern.
    for uri in (_uri(glob.escape(each) if os.path.exists(each) else each) for each in texts):
        source = records.DomainSource(name=DOMAIN, uri=uri, text_field=text_field)
        filesystem, files = find_files(source)
        for file in files:
            for document in read_documents(filesystem, file, text_field):
                if isinstance(document, BadData):
                    bad += BadDocuments.of(document)
                elif document.strip():
                    documents[document] = None
    if bad.count:
        bad.refuse_above_share(source, len(documents))
    store, folder = Store(f"file://{scratch}"), layout.data_folder(DOMAIN)
    _, domain = write_held_out(store, folder, DOMAIN, tokenizer, list(documents), tokenizer_uri)
    if domain.validation_documents < 2 or domain.validation_tokens <= length:
        raise BadData(
            "DomainTooSmall",
            f"the text has {domain.validation_tokens} tokens in {domain.validation_documents} different {'document' if domain.validation_documents == 1 else 'documents'}: a loss "
            f"with its error takes at least 2 documents and {length + 1} tokens. Name more files, or give a shorter "
            "--sequence-length",
        )
    digest = records.content_key([tokenizer.digest, length, domain.validation.sha256])
    manifest = records.DataManifest(
        prepare_key=digest,
        digest=digest,
        tokenizer_digest=tokenizer.digest,
        vocabulary_size=tokenizer.vocabulary_size,
        end_token=tokenizer.end_token,
        sequence_length=length,
        domains=(domain.model_copy(update={"bad_documents": bad.count}),),
    )
    store.write_record(f"{folder}/manifest.json", manifest)
    return PreparedData(f"file://{scratch}/{folder}", scratch)


def _document(found: records.EvaluationResult, skipped: int) -> dict[str, Any]:
    return {
        "initial_loss": found.loss,
        "standard_error": found.loss_standard_error,
        "nats_per_byte": found.nats_per_byte,
        "evaluated_tokens": found.evaluated_tokens,
        "bad_documents": skipped,
        "params": found.parameters.active,
        "params_total": found.parameters.total,
        "model_type": found.model_type,
        "same_tokenizer": found.same_tokenizer,
    }


def _in_words(found: records.EvaluationResult, length: int, skipped: int) -> str:
    counts = found.parameters
    mixture = f" of {counts.total:,}" if counts.total != counts.active else ""
    converted = "" if found.same_tokenizer else ", converted from the checkpoint's own tokens"
    unread = f"; unreadable documents skipped: {skipped}" if skipped else ""
    command = shlex.join(
        ("--initial-loss", f"{found.loss:.4f}", "--params", f"{counts.active:.4g}")
    )
    return (
        f"initial loss  {found.loss:.4f} ± {found.loss_standard_error:.4f} nats per token{converted}\n"
        f"              {found.nats_per_byte:.4f} nats per byte\n"
        f"read          {found.evaluated_tokens:,} tokens, in sequences of {length:,}{unread}\n"
        f"parameters    {counts.active:,} active{mixture} ({found.model_type})\n"
        "\n"
        "With laws of runs that were evaluated on this text, in these tokens:\n"
        f"  isoloss predict laws.json {command} --cpt-tokens TOKENS"
    )


def _print_error(message: str, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": {"message": message}}, indent=2))
    print(f"isoloss: {message}", file=sys.stderr)
    return BAD_INPUT
