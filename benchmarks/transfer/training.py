"""Trains what is missing, a stack at a time, until the time is over. Everything lies in one folder:

results.jsonl        a line for each run: its losses, which is all that anybody needs
states/              training states of unfinished runs, and of those that a later part goes on with
checkpoints/         pre-trained weights, and the states of the runs that they are from
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import torch

from benchmarks.trainer_rivals import point_of
from benchmarks.transfer import design, texts
from benchmarks.transfer.grids import Place
from benchmarks.transfer.stack import Stack, Tensors, initial

RUNS_AT_ONCE = {"cpu": 4, "cuda": 24}
TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 2**17}
"""Over all runs of a stack: caches are small, and logits of so many tokens take 2 GB."""
VALIDATION_TOKENS = 2**14
SAVE_SECONDS, SAVE_SHARE = 60.0, 0.05
"""States are saved so often, and less often if saving would take a larger share of the time."""
TARGET_SEED, PAST_SEED = 0, 1
"""Orders of the sequences."""

Say = Callable[[str], None]
Precision = Literal["bf16", "float32"]


class Stopped(Exception):
    """The time is over; all is saved."""


class Study:
    """Trains on one device in one folder until `stop` says so."""

    def __init__(self, folder: Path, device: str, stop: Callable[[], bool], say: Say) -> None:
        self._folder, self._device, self._stop, self._say = folder, device, stop, say
        self._texts: dict[int, dict[str, texts.Tokens]] = {}
        self._save_at = time.monotonic() + SAVE_SECONDS
        results = folder / "results.jsonl"
        self.results = read_results([results] if results.exists() else [])
        for name in ("states", "checkpoints"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def train(self, sizes: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        """All that is missing. Raises Stopped."""
        while job := next(design.missing(self.results, self._device, sizes, origins), None):
            self._train(job)

    # ------------------------------------------------------------------------------------------ grids

    def _train(self, job: design.Missing) -> None:
        """Those of a job's runs that are furthest, as many as fit, to its end."""
        size, part = job.size, job.part
        stems = {
            place: f"states/{size.name}-{part.origin}-{place.i}-{place.j}" for place in job.places
        }
        at = {place: self._kept_tokens(stem) for place, stem in stems.items()}
        began = max(at.values())
        places = [p for p in job.places if at[p] == began][: RUNS_AT_ONCE[self._device]]
        start = (
            initial(size.shape) if part.checkpoint is None else self._past(size, part.checkpoint)
        )
        stack = self._stack(size, places, start)
        for run, place in enumerate(places):
            self._restore(stack, run, stems[place])
        end = size.tokens(part.per_param)
        self._say(
            f"{size.name} {part.origin}: {len(places)} runs from {began:,} to {end:,} tokens"
        )

        def save() -> None:
            # First: what is read again after a kill is no harm, but readings before a state's tokens would be lost.
            write_results(self._folder / "results.jsonl", self.results)
            for run, place in enumerate(places):
                self._keep(stack, run, stems[place])

        runs = self.results.setdefault((size.name, part.origin), {})
        held_out = self._held_out(size)
        sequences = texts.Sequences(self._text(size)[texts.TARGET], size.shape.length, TARGET_SEED)
        for reading in (0, *size.readings(part.per_param)):
            if reading >= began:
                self._learn(stack, sequences, reading, save)
                losses = stack.evaluate(held_out, self._evaluated_at_once(stack), averaged=True)
                for place, loss in zip(places, losses.tolist(), strict=True):
                    runs[place] = {**runs.get(place, {}), reading: round(loss, 5)}
        save()
        if part.per_param == max(p.per_param for p in size.parts if p.origin == part.origin):
            for place in places:
                self._forget(stems[place])

    def _learn(
        self,
        stack: Stack,
        sequences: texts.Sequences,
        until: int,
        save: Callable[[], None],
        factor: Callable[[int], float] = lambda tokens: 1.0,
    ) -> None:
        """Until the runs have read so many tokens, at `factor(tokens)` of their schedule. Raises Stopped, after `save`."""
        length, whole = stack.shape.length, max(point.batch_size for point in stack.points)
        at_once = stack.at_once(TOKENS_AT_ONCE[self._device])
        while stack.tokens < until:
            batch = sequences.read(stack.tokens // length, at_once)
            stack.learn(torch.from_numpy(batch).to(self._device), factor(stack.tokens))
            if stack.tokens // length % whole == 0:
                stops, began = self._stop(), time.monotonic()
                if stops or began > self._save_at:
                    save()
                    took = time.monotonic() - began
                    self._save_at = time.monotonic() + max(SAVE_SECONDS, took / SAVE_SHARE)
                if stops:
                    raise Stopped

    # ------------------------------------------------------------------------------------ checkpoints

    def _past(self, size: design.Size, wanted: design.Checkpoint) -> Tensors:
        """Weights of a checkpoint. It is trained if need be, and with it all shorter ones of the same run."""
        if not self._weights_path(size, wanted).exists():
            self._pretrain(size, wanted)
        found: Tensors = torch.load(self._weights_path(size, wanted), map_location=self._device)
        return found

    def _pretrain(self, size: design.Size, wanted: design.Checkpoint) -> None:
        stem, place = f"checkpoints/{size.name}-{wanted.run}-run", size.pretraining
        place = Place(place.i - wanted.slower, place.j)
        stack = self._stack(size, [place], initial(size.shape, seed=PAST_SEED))
        self._restore(stack, 0, stem)
        self._say(f"{size.name} {wanted.name}: pre-training from {stack.tokens:,} tokens")
        sequences = texts.Sequences(self._text(size)[wanted.text], size.shape.length, PAST_SEED)
        for checkpoint in size.checkpoints(wanted):
            end = size.tokens(checkpoint.per_param)
            if self._weights_path(size, checkpoint).exists() or stack.tokens > end:
                continue
            self._learn(stack, sequences, end, lambda: self._keep(stack, 0, stem))
            self._keep(stack, 0, stem)
            weights = stack.averaged
            if checkpoint.ending == "decayed":
                weights = self._decayed(size, stack, sequences)
            _save(
                self._weights_path(size, checkpoint),
                {n: w[0].detach() for n, w in weights.items()},
            )

    def _decayed(self, size: design.Size, stack: Stack, sequences: texts.Sequences) -> Tensors:
        began, length = stack.tokens, size.tokens(design.DECAY * stack.tokens / size.shape.params)
        decaying = Stack(size.shape, stack.points, initial(size.shape), self._device)
        decaying.restore(0, stack.state(0))
        self._learn(
            decaying,
            sequences,
            began + length,
            lambda: None,
            lambda tokens: 1.0 - (1.0 - design.DECAYED_TO) * (tokens - began) / length,
        )
        return decaying.weights

    def _weights_path(self, size: design.Size, checkpoint: design.Checkpoint) -> Path:
        return self._folder / "checkpoints" / f"{size.name}-{checkpoint.name}.pt"

    # ----------------------------------------------------------------------------------------- states

    def _stack(self, size: design.Size, places: Sequence[Place], weights: Tensors) -> Stack:
        return stack_of(size, places, weights, self._device)

    def _kept(self, stem: str) -> list[Path]:
        """At most one, but for a process that ended while it saved."""
        path = self._folder / stem
        return sorted(path.parent.glob(f"{path.name}.*.pt"), key=_tokens_of)

    def _kept_tokens(self, stem: str) -> int:
        return max(map(_tokens_of, self._kept(stem)), default=0)

    def _keep(self, stack: Stack, run: int, stem: str) -> None:
        path, old = self._folder / f"{stem}.{stack.tokens}.pt", self._kept(stem)
        _save(path, stack.state(run))
        for other in old:
            if other != path:
                other.unlink()

    def _restore(self, stack: Stack, run: int, stem: str) -> None:
        if kept := self._kept(stem):
            stack.restore(run, torch.load(kept[-1], map_location=self._device))

    def _forget(self, stem: str) -> None:
        for path in self._kept(stem):
            path.unlink()

    def _text(self, size: design.Size) -> dict[str, texts.Tokens]:
        vocabulary = size.shape.vocabulary
        if vocabulary not in self._texts:
            self._texts[vocabulary] = texts.read(self._folder, vocabulary)
        return self._texts[vocabulary]

    def _held_out(self, size: design.Size) -> torch.Tensor:
        """[n, S + 1]."""
        length = size.shape.length
        found = texts.spread(self._text(size)[texts.HELD_OUT], length, VALIDATION_TOKENS // length)
        return torch.from_numpy(found).to(self._device)

    def _evaluated_at_once(self, stack: Stack) -> int:
        """A power of two: compiled code is for one shape."""
        fitting = TOKENS_AT_ONCE[self._device] // (len(stack.points) * stack.shape.length)
        return 1 << max(0, fitting.bit_length() - 1)


def _tokens_of(path: Path) -> int:
    return int(path.name.split(".")[-2])


def stack_of(
    size: design.Size,
    places: Sequence[Place],
    weights: Tensors,
    device: str,
    precision: Precision | None = None,
) -> Stack:
    """Runs of a size; float32 on a CPU, unless stated."""
    precision = precision or ("float32" if device == "cpu" else "bf16")
    points = [
        point_of(size.shape.model, place.batch, size.shape.length, precision).model_copy(
            update={"optimizer": size.optimizer, "learning_rate": place.rate}
        )
        for place in places
    ]
    return Stack(size.shape, points, weights, device)


def _save(path: Path, content: object) -> None:
    temporary = path.with_suffix(".new")
    torch.save(content, temporary)
    temporary.rename(path)


def read_results(paths: Iterable[Path]) -> design.Results:
    """All runs of files of JSON lines; of the same run the losses of the later file."""
    found: design.Results = {}
    for line in chain.from_iterable(path.read_text().splitlines() for path in paths):
        run = json.loads(line)
        losses = {tokens: float("nan") if loss is None else loss for tokens, loss in run["losses"]}
        found.setdefault((run["size"], run["origin"]), {})[Place(run["i"], run["j"])] = losses
    return found


def write_results(path: Path, results: design.Results) -> None:
    """One line for each run: its size, origin, exponents of learning rate and batch size, and [tokens, loss] pairs."""
    lines = [
        {"size": size, "origin": origin, "i": place.i, "j": place.j, "losses": pairs}
        for (size, origin), runs in results.items()
        for place, run in sorted(runs.items())
        if (
            pairs := [
                [t, loss if math.isfinite(loss) else None] for t, loss in sorted(run.items())
            ]
        )
    ]
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
    temporary.rename(path)
