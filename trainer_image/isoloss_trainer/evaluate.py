"""The initial loss of a checkpoint on the sweep's own validation sequences.

With the sweep's tokenizer, the loss is that of exactly the tokens that the proxies are evaluated on.
With another tokenizer, the checkpoint reads the text of these sequences in its own tokens, and the loss
is converted to the sweep's tokens; the result says so.
"""

import functools
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoloss_contract import layout
from isoloss_contract.records import DomainLoss, EvaluateConfig, EvaluateTask, EvaluationResult
from isoloss_contract.store import BadRecord, NotFound, Store
from isoloss_trainer import evaluation, foreign_model
from isoloss_trainer.attempt import versions
from isoloss_trainer.attention import computing_type, preferred_kernels
from isoloss_trainer.foreign_tokens import (
    LONGEST_SHARE,
    foreign_text,
    is_same_tokenizer,
    own_tokenizer,
)
from isoloss_trainer.log import Log
from isoloss_trainer.model import check_fits, count_parameters
from isoloss_trainer.placement import place, room_for_weights, weight_bytes
from isoloss_trainer.shards import PATIENT, PreparedData
from isoloss_trainer.termination import BadData, Interrupted, Interruption
from isoloss_trainer.tokenization import TextTokenizer
from isoloss_trainer.world import FETCH_PATIENCE, World

CPU_MICRO_BATCH_TOKENS = 4096
MICRO_BATCH_TOKENS = 65_536
PROBE_SEQUENCES = 4
"""Sequences per domain: they decide whether a checkpoint wants the tokenizer's first tokens."""


def evaluate(task: EvaluateTask, scratch: Path, interruption: Interruption, log: Log) -> str:
    """Measure the checkpoint unless that is done; returns a sentence for the termination message."""
    store = Store(task.store_uri, PATIENT)
    path = layout.evaluation_result(task.config.key)
    try:
        return f"already evaluated: {_summary(store.read_record(path, EvaluationResult))}"
    except (NotFound, BadRecord):
        pass
    data = PreparedData(task.data_uri, scratch)
    data.check_digest(task.config.data_digest)
    world = World.of_environment().joined(FETCH_PATIENCE)
    try:
        with preferred_kernels(world):
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
    """Load the checkpoint and compute its loss; every copy reads its share of the sequences."""
    started = time.monotonic()
    config = task.config
    check = functools.partial(_check_stop, world, interruption)
    check()
    folder = world.of_first(
        lambda: foreign_model.fetch_directory(
            config.checkpoint, scratch, foreign_model.fetching(interruption, log)
        )
    )
    check()
    tokenizer = own_tokenizer(folder, config.checkpoint)
    network, world = load_copies(folder, config, world, log)
    check()
    log.event("loaded", model_type=network.config.model_type, seconds=time.monotonic() - started)
    same = tokenizer is None or is_same_tokenizer(tokenizer, data, sorted(config.mixture))
    first = tokenizer.first_tokens if tokenizer else ()
    # Text in other tokens may take more of them; places are for tokens before the first.
    longest = config.sequence_length * (1 if same else LONGEST_SHARE) + max(1, len(first))
    model = foreign_model.ForeignModel(network, longest, config.checkpoint)
    if tokenizer is None:
        _check_vocabulary(model, data)
    if same:
        check_fits(model.config, vocabulary=0, sequence_length=config.sequence_length)
    reading = _Reading(config, data, model, tokenizer, same, world, check)
    if first and max(first) < model.head.shape[0]:
        reading.choose_first_tokens(first, log)
    text = reading.text(config.sequences_per_domain)
    loss, domains = reading.losses(text, log)
    error = _checked_error(loss, config.checkpoint)
    return EvaluationResult(
        key=config.key,
        loss=loss.value,
        loss_standard_error=error,
        domains={
            name: DomainLoss(loss=found.value, standard_error=found.standard_error)
            for name, found in domains.items()
        },
        nats_per_byte=loss.value / evaluation.bytes_per_token(data, config.mixture),
        evaluated_tokens=int(sum(each.sizes.sum() for each in text.values())),
        parameters=count_parameters(network),
        model_type=network.config.model_type,
        tokenizer_digest=tokenizer.digest if tokenizer else None,
        same_tokenizer=same,
        first_token=next(iter(model.first_tokens), None),
        accelerator_seconds=(time.monotonic() - started) * max(world.size, world.devices_per_copy),
        versions=versions(),
    )


def _check_stop(world: World, interruption: Interruption) -> None:
    """Raises Interrupted in all processes: one that left alone would keep the others waiting for it."""
    if world.any(interruption.requested):
        raise Interrupted("Interrupted", "stop requested")


def load_copies(folder: Path, config: EvaluateConfig, world: World, log: Log) -> tuple[Any, World]:
    """The network if this process holds a copy, else its shapes; and the world with its copies.

    Raises BadData and OutOfMemory.
    """
    dtype = computing_type(config.precision)
    shapes = foreign_model.load_shapes(folder, config.checkpoint, dtype, config.sequence_length)
    placement = place(shapes, *room_for_weights(world))
    world = world.with_copies_on(placement.devices)
    log.event("placed", bytes=weight_bytes(shapes), devices_per_copy=placement.devices)
    if not world.holds_copy:
        return shapes, world
    devices = None if world.on_cpu else placement.device_map(world.local_rank)
    return foreign_model.load_network(folder, config.checkpoint, dtype, devices).eval(), world


@dataclass(frozen=True)
class _Reading:
    """How the checkpoint reads the sweep's validation text."""

    config: EvaluateConfig
    data: PreparedData
    model: foreign_model.ForeignModel
    tokenizer: TextTokenizer | None
    """The checkpoint's own, if it has one."""
    same_tokenizer: bool
    """Whether its tokens are the sweep's."""
    world: World
    check: evaluation.Check

    def text(self, limit: int) -> dict[str, evaluation.DomainText]:
        """At most `limit` of the sweep's validation sequences of each domain, in the checkpoint's own tokens."""
        validation = evaluation.ValidationSet(self.data, self.config.mixture, limit)
        found, tokenizer = validation.texts, self.tokenizer
        if tokenizer is not None and not self.same_tokenizer:
            longest = self.model.longest_input
            found = {
                name: foreign_text(tokenizer, self.data, name, ours, longest)
                for name, ours in validation.domains.items()
            }
        self._check_rows(found)
        return found

    def _check_rows(self, text: Mapping[str, evaluation.DomainText]) -> None:
        """Raises BadData(TokenizerDiffers) if the text has a token that the model has no embedding for: a word, or an end
        of text, that was added to the tokenizer alone."""
        rows = min(
            self.model.head.shape[0], self.model.network.get_input_embeddings().weight.shape[0]
        )
        token = max(int(group.tokens.max()) for each in text.values() for group in each.groups)
        if token >= rows:
            tokenizer = self.tokenizer and self.tokenizer.tokenizer
            named = f"{tokenizer.id_to_token(token)!r} ({token})" if tokenizer else str(token)
            message = (
                f"{self.config.checkpoint}: its tokenizer reads token {named} in the held-out text, but the model has "
                f"embeddings for {rows} tokens: take added tokens out of tokenizer.json, or train the model with them "
                "(resize_token_embeddings)"
            )
            raise BadData("TokenizerDiffers", message, foreign_model.FIELD)

    def losses(
        self, text: Mapping[str, evaluation.DomainText], log: Log | None = None
    ) -> evaluation.Losses:
        """Losses of the mixture and of each domain; progress goes to `log`."""
        tokens = CPU_MICRO_BATCH_TOKENS if self.world.on_cpu else MICRO_BATCH_TOKENS
        batches = sum(
            self.world.rounds(len(group.tokens), max(1, tokens // group.width))
            for each in text.values()
            for group in each.groups
        )
        check = self.check if log is None else _with_progress(self.check, log, batches)
        domains = {
            name: each.loss(self.model.token_losses, self.world, tokens, check)
            for name, each in text.items()
        }
        return evaluation.mixed_loss(domains, self.config.mixture), domains

    def choose_first_tokens(self, tokens: tuple[int, ...], log: Log) -> None:
        """Put the tokenizer's first tokens before every sequence if the loss is lower so.

        Gemma loses nats without it; a checkpoint that was trained without it may lose by it.
        """
        text = self.text(PROBE_SEQUENCES)
        without, _ = self.losses(text)
        self.model.first_tokens = tokens
        with_it, _ = self.losses(text)
        if not with_it.value < without.value:
            self.model.first_tokens = ()
        facts = {"loss_without": without.value, "loss_with": with_it.value}
        log.event("first-token", token=tokens[0], used=bool(self.model.first_tokens), **facts)


def _with_progress(check: evaluation.Check, log: Log, batches: int) -> evaluation.Check:
    """`check`, called before each of `batches` batches, which also says how far the evaluation is."""
    began, numbers = time.monotonic(), itertools.count()

    def checked() -> None:
        check()
        done = next(numbers)
        if done:
            left = (time.monotonic() - began) / done * max(0, batches - done)
            log.progress("evaluate", done, batches, words=f"{left:.0f} s left")

    return checked


def _check_vocabulary(model: foreign_model.ForeignModel, data: PreparedData) -> None:
    """Evaluated on the sweep's tokens, the checkpoint must have all of them."""
    vocabulary = data.manifest.vocabulary_size
    if model.head.shape[0] < vocabulary:
        message = (
            f"the checkpoint's vocabulary of {model.head.shape[0]} is smaller than the sweep's "
            f"{vocabulary}, and it has no tokenizer of its own"
        )
        raise BadData("TokenizerDiffers", message, foreign_model.FIELD)


def _checked_error(loss: evaluation.Loss, uri: str) -> float:
    """The standard error; BadData if the loss is not finite or the error cannot be estimated."""
    if not math.isfinite(loss.value):
        raise BadData("NonFiniteLoss", f"{uri}: the loss is not finite", foreign_model.FIELD)
    if loss.standard_error is None:
        message = "all validation sequences of a domain are in one document: the error cannot be estimated"
        raise BadData("TooFewDocuments", message, "validation.sequences_per_domain")
    return loss.standard_error
