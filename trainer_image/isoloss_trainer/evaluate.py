"""The initial loss of a checkpoint on the sweep's own validation sequences.

With the sweep's tokenizer the losses are those of the very same tokens as the proxies'. With another
one the checkpoint reads the same documents in its own tokens, and nats per byte lead back to the
sweep's tokens; the result says so.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from isoloss import layout
from isoloss.contract import DomainLoss, EvaluateTask, EvaluationResult
from isoloss.store import BadRecord, NotFound, Store
from isoloss_trainer.attention import preferred_kernels
from isoloss_trainer.evaluation import Loss, ValidationSet, bytes_per_token, mixed_loss
from isoloss_trainer.foreign_model import FIELD, ForeignModel, fetch_directory, load_network
from isoloss_trainer.foreign_tokens import converted_loss, is_same_tokenizer
from isoloss_trainer.interruption import Interruption
from isoloss_trainer.log import Log
from isoloss_trainer.model import check_fits, count_parameters
from isoloss_trainer.run import versions
from isoloss_trainer.shards import PreparedData
from isoloss_trainer.termination import BadData
from isoloss_trainer.tokenization import TextTokenizer, load_tokenizer
from isoloss_trainer.world import World, join

CPU_MICRO_BATCH_TOKENS = 4096
MICRO_BATCH_TOKENS = 65_536


def evaluate(task: EvaluateTask, scratch: Path, interruption: Interruption, log: Log) -> str:
    """Measure the checkpoint unless that is done; returns a sentence for the termination message."""
    store = Store(task.store_uri)
    path = layout.evaluation_result(task.config.key)
    try:
        return f"already evaluated: {_summary(store.read_record(path, EvaluationResult))}"
    except (NotFound, BadRecord):
        pass
    data = PreparedData(task.data_uri, scratch)
    if data.manifest.digest != task.config.data_digest:
        message = f"{task.data_uri}: digest {data.manifest.digest} is not the task's"
        raise BadData("DataChanged", message, "data")
    interruption.check()
    world = join()
    try:
        with preferred_kernels(world.device):
            result = measure(task, data, scratch, world, interruption, log)
    finally:
        world.leave()
    if world.is_first:
        store.write_record(path, result)
    return _summary(result)


def _summary(result: EvaluationResult) -> str:
    kind = "" if result.same_tokenizer else ", converted from another tokenizer"
    return f"{result.loss:.4f} ± {result.loss_standard_error:.4f} nats per token{kind}"


def measure(
    task: EvaluateTask,
    data: PreparedData,
    scratch: Path,
    world: World,
    interruption: Interruption,
    log: Log,
) -> EvaluationResult:
    """Load the checkpoint and compute its loss; every process holds all of it and reads its share."""
    started = time.monotonic()
    config = task.config
    device = world.device
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    folder = fetch_directory(config.checkpoint, scratch)
    network = load_network(folder, config.checkpoint, dtype)
    interruption.check()
    log.event("loaded", model_type=network.config.model_type, seconds=time.monotonic() - started)
    model = ForeignModel(network.to(device).eval(), config.sequence_length)
    tokenizer = _tokenizer(folder)
    same = tokenizer is None or is_same_tokenizer(tokenizer, data, sorted(config.mixture))
    if same:
        _check_vocabulary(model, data, config.sequence_length)
    validation = ValidationSet(data, config.mixture, config.sequences_per_domain)
    budget = CPU_MICRO_BATCH_TOKENS if device.type == "cpu" else MICRO_BATCH_TOKENS
    size = max(1, budget // config.sequence_length)
    if same:
        loss, domains = validation.evaluate(model.token_losses, world, size)
    else:
        assert tokenizer is not None, "without a tokenizer there is nothing to differ"
        domains = {
            name: converted_loss(model, tokenizer, data, name, known.documents, world, size)
            for name, known in validation.domains.items()
        }
        loss = mixed_loss(domains, config.mixture)
    error = _checked_error(loss, config.checkpoint)
    return EvaluationResult(
        key=config.key,
        loss=loss.value,
        loss_standard_error=error,
        domains={
            name: DomainLoss(loss=found.value, standard_error=found.standard_error)
            for name, found in domains.items()
        },
        nats_per_byte=loss.value / bytes_per_token(data, config.mixture),
        evaluated_tokens=validation.tokens,
        parameters=count_parameters(network),
        model_type=network.config.model_type,
        tokenizer_digest=tokenizer.digest if tokenizer else None,
        same_tokenizer=same,
        accelerator_seconds=(time.monotonic() - started) * world.size,
        versions=versions(),
    )


def _tokenizer(folder: Path) -> TextTokenizer | None:
    if not (folder / "tokenizer.json").exists():
        return None
    return load_tokenizer(f"file://{folder.resolve()}")


def _check_vocabulary(model: ForeignModel, data: PreparedData, sequence_length: int) -> None:
    """With the sweep's tokens, the checkpoint must know all of them."""
    vocabulary = data.manifest.vocabulary_size
    if model.head.shape[0] < vocabulary:
        message = (
            f"the checkpoint's vocabulary of {model.head.shape[0]} is smaller than the sweep's "
            f"{vocabulary}, and it brings no tokenizer of its own"
        )
        raise BadData("TokenizerDiffers", message, FIELD)
    check_fits(model.config, vocabulary=vocabulary, sequence_length=sequence_length)


def _checked_error(loss: Loss, uri: str) -> float:
    """The standard error; BadData where loss or error can not be stated."""
    if not math.isfinite(loss.value):
        raise BadData("NonFiniteLoss", f"{uri}: its loss is not a finite number", FIELD)
    if loss.standard_error is None:
        message = "a domain's validation sequences lie in one document: no error can be stated"
        raise BadData("TooFewDocuments", message, "validation.sequences_per_domain")
    return loss.standard_error
