"""The manifests that `isoloss init` writes, with a comment at every value that is a guess."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isoloss import formatting
from isoloss.yaml_text import read_documents
from isoloss_operator.api import API_VERSION, PREDICTION_KIND, SWEEP_KIND
from isoloss_operator.commands.costs import PlacedSize
from isoloss_operator.commands.design import FIRST_TOKENS, NODE, Design
from isoloss_operator.commands.options import Checkpoint, CorpusPart

GUESSED = "guessed"
"""Marks a line that its owner must look at."""

OPTIMIZER = ('    beta1: "0.9"', '    beta2: "0.95"', '    weightDecay: "0.1"')
VALIDATION = "-validation"
"""How the name of the sweep around the answer ends."""


@dataclass(frozen=True)
class Written:
    """Everything that the manifests say."""

    name: str
    namespace: str | None
    checkpoint: Checkpoint
    cpt_tokens: int
    storage: str
    is_storage_guessed: bool
    secret: str | None
    tokenizer: str
    sequence_length: int
    is_sequence_length_guessed: bool
    corpus: Sequence[CorpusPart]
    design: Design
    evaluation_accelerators: int
    """That hold the checkpoint's weights."""
    accelerators: int
    """Of each Job."""
    parallelism: int
    """Jobs at a time."""
    validation_sequences: int | None = None
    """Per domain; None: the API's default."""
    budget: float | None = None
    """FLOPs; None: not known yet."""
    grids: Sequence[PlacedSize] | None = None
    """None: a search places them."""
    validated_share: float | None = None
    """Share of the planned tokens after which points around the answer show whether it holds; None: nothing shows it."""
    training_accelerators: int = 1
    """That hold the training state of the checkpoint."""
    costs: Sequence[str] = field(default=())
    """What it costs, in sentences for the head of the file."""


def manifests(written: Written) -> str:
    """A ScalingSweep, a HyperparamPrediction and, if its answer is to be validated, a ScalingSweep around that, as YAML."""
    around = ["---", *_validation(written)] if written.validated_share is not None else []
    return "\n".join(
        [*_head(written), *_sweep(written), "---", *_prediction(written), *around, ""]
    )


def guesses(text: str) -> int:
    """How many lines of manifests are guesses."""
    return sum(f"# {GUESSED}" in line for line in text.splitlines())


def _scalar(text: str) -> str:
    """A text that YAML reads as that text: in quotes if it would take it for something else."""
    # One letter alone is a truth value to some readers.
    is_plain = len(text) > 1 and read_documents(f"- {text}") == [[text]]
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def _value(value: object) -> str:
    """A setting of a model: JSON is YAML."""
    return _scalar(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _head(written: Written) -> Iterator[str]:
    tokens = formatting.count(written.cpt_tokens)
    yield f"# Which learning rate and batch size for {tokens} more tokens of {written.checkpoint.uri}?"
    yield f'# Written by isoloss init. Check what is marked "{GUESSED}" before you apply it.'
    if written.checkpoint.nearest is not None:
        yield from (f"# {sentence}" for sentence in written.checkpoint.nearest.sentences)
    yield from (f"# {sentence}" for sentence in written.costs)


def _metadata(written: Written, suffix: str = "") -> Iterator[str]:
    yield "metadata:"
    yield f"  name: {_scalar(written.name + suffix)}"
    if written.namespace:
        yield f"  namespace: {_scalar(written.namespace)}"


# ------------------------------------------------------------------------------------ the sweep


def _sweep(written: Written) -> Iterator[str]:
    yield f"apiVersion: {API_VERSION}"
    yield f"kind: {SWEEP_KIND}"
    yield from _metadata(written)
    yield "spec:"
    yield from _storage(written)
    yield from _data(written)
    yield from _proxies(written)
    yield from _search(written)
    yield "  optimizer: # guessed: make it that of the continued run; it cannot be changed later"
    yield from OPTIMIZER
    if written.design.first_tokens != FIRST_TOKENS:
        yield "  evaluation:"
        yield f"    firstTokens: {written.design.first_tokens} # a twentieth of the shortest runs"
    at_work = written.parallelism * written.accelerators
    yield f"  parallelism: {written.parallelism} # Jobs at a time, on {formatting.counted(at_work, 'accelerator')}"
    if written.budget is not None:
        yield "  budget:"
        yield f'    flops: "{formatting.flops(written.budget)}" # the whole grid, and a fifth for retries'
    yield from _pods(written)


def _storage(written: Written) -> Iterator[str]:
    guess = f" # {GUESSED}: the operator must be allowed to write there"
    yield "  storage:"
    yield f"    uri: {_scalar(written.storage)}{guess if written.is_storage_guessed else ''}"
    if written.secret:
        yield f"    secretName: {_scalar(written.secret)}"
    elif not written.storage.startswith("file:"):
        yield "    # secretName: sweep-s3 # if pods need keys: a Secret with AWS_ACCESS_KEY_ID and so on"


def _data(written: Written) -> Iterator[str]:
    length = written.sequence_length
    guess = f" # {GUESSED}: better that of the continued run; it cannot be changed later"
    yield "  data:"
    yield f"    tokenizer: {_scalar(written.tokenizer)}"
    yield f"    sequenceLength: {length}{guess if written.is_sequence_length_guessed else ''}"
    yield "    domains:"
    for part in written.corpus:
        files = f" # {GUESSED}: all files of the folder" if part.is_folder else ""
        yield f"      - name: {_scalar(part.name)}"
        yield f"        uri: {_scalar(part.uri)}{files}"
        yield f"        textField: text # {GUESSED}: the field of a document that holds its text"
        if len(written.corpus) > 1:
            yield f"        weight: 1 # {GUESSED}: equal shares of the tokens"
        else:
            yield "        weight: 1"
    if written.validation_sequences is not None:
        yield "    validation:"
        yield f"      sequencesPerDomain: {written.validation_sequences} # evaluations then take at most 3% of a run"
    yield "    podTemplate:"
    yield "      spec:"
    yield "        containers:"
    yield "          - name: trainer"
    yield "            resources: # tokenizing needs processors, and no accelerator"
    yield f"              requests: {{cpu: 16, memory: 64Gi}} # {GUESSED}"
    yield "              limits: {nvidia.com/gpu: 0}"


def _proxies(written: Written) -> Iterator[str]:
    by_name = {grid.name: grid for grid in written.grids or ()}
    other = written.checkpoint.nearest
    whose = (
        "the checkpoint's architecture"
        if other is None
        else f"the family nearest to {other.model_type}"
    )
    yield f"  proxies: # of {whose}, smaller"
    for run in written.design.runs:
        size = run.size
        name = f"proxy-{formatting.count(size.parameters).lower().replace('.', '-')}"
        ratio = run.tokens / size.active
        yield f"    - name: {name} # {_counts(size.active, size.total)}"
        yield "      model:"
        yield "        config:"
        yield from (
            f"          {key}: {_value(value)}"
            for key, value in size.config.items()
            if value is not None
        )
        yield f"      tokens: {run.tokens} # {formatting.number(ratio, 2)} per parameter"
        if size.nodes > 1:
            yield f"      nodes: {size.nodes} # {GUESSED}: of {NODE} accelerators each, to hold its training state"
        if (grid := by_name.get(name)) is not None:
            rates = ", ".join(
                f'"{formatting.learning_rate(rate)}"' for rate in grid.learning_rates
            )
            yield f"      grid: # about the optimum of {grid.source}"
            yield f"        batchSizes: [{', '.join(map(str, grid.batch_sizes))}] # sequences"
            yield f"        learningRates: [{rates}]"


def _counts(active: int, total: int) -> str:
    if formatting.count(active) == formatting.count(total):
        return f"{formatting.count(active)} parameters"
    return f"{formatting.count(active)} active parameters, {formatting.count(total)} in all"


def _search(written: Written) -> Iterator[str]:
    if written.grids is not None:
        return
    yield "  search:"
    yield "    strategy: Sequential # no grid: a published law places the first points of each size"
    if written.design.lines != 3:
        yield "    placement:"
        yield f"      lines: {written.design.lines}"


def _pods(written: Written) -> Iterator[str]:
    count = min(written.accelerators, NODE)
    yield "  podTemplate:"
    yield "    spec:"
    yield "      # nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}"
    yield "      # tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]"
    yield "      containers:"
    yield "        - name: trainer"
    yield f"          resources: {{limits: {{nvidia.com/gpu: {count}}}}} # {GUESSED}: of 80 GB each, for every pod"


# ------------------------------------------------------------------------------- the prediction


def _prediction(written: Written) -> Iterator[str]:
    yield f"apiVersion: {API_VERSION}"
    yield f"kind: {PREDICTION_KIND}"
    yield from _metadata(written)
    yield "spec:"
    yield "  sweepRef:"
    yield f"    name: {_scalar(written.name)}"
    yield "  checkpoint:"
    yield f"    uri: {_scalar(written.checkpoint.uri)}"
    yield "    podTemplate: # of the one evaluation that measures its initial loss"
    yield "      spec:"
    yield "        containers:"
    yield "          - name: trainer"
    count = written.evaluation_accelerators
    size = f"for {formatting.count(written.checkpoint.total)} parameters"
    if count > NODE:
        size += f"; if no node has {count}, measure the loss yourself and set initialLoss instead"
    yield f"            resources: {{limits: {{nvidia.com/gpu: {count}}}}} # {GUESSED}: of 80 GB each, {size}"
    yield "  budget:"
    yield f"    tokens: {written.cpt_tokens}"
    yield '  # pretrainingLearningRate: "3e-4" # peak learning rate of its pre-training, if known: a lower one lowers the answer'
    if written.validated_share is not None:
        yield "  validation:"
        yield "    sweepRef:"
        yield f"      name: {_scalar(written.name + VALIDATION)}"
    yield "  publish:"
    yield f"    configMapName: {_scalar(written.name + '-hyperparams')}"


# ------------------------------------------------------------------------- the sweep around the answer


def _validation(written: Written) -> Iterator[str]:
    share = written.validated_share
    assert share is not None
    tokens = max(round(share * written.cpt_tokens), 1)
    count, first = written.training_accelerators, max(tokens // 20, 1)
    yield f"apiVersion: {API_VERSION}"
    yield f"kind: {SWEEP_KIND}"
    yield from _metadata(written, VALIDATION)
    yield "spec: # short runs that continue the checkpoint and show whether the answer holds"
    yield from _storage(written)
    yield from _data(written)
    yield "  proxies:"
    yield "    - name: near"
    yield "      checkpoint:"
    yield f"        uri: {_scalar(written.checkpoint.uri)}"
    yield f"      tokens: {tokens} # {share:g} of the planned ones; five such runs cost {5 * share:.3g} times the budget"
    yield "      grid:"
    yield "        around:"
    yield f"          prediction: {_scalar(written.name)}"
    yield '          factor: "2" # between the answer and its neighbours'
    if count > NODE:
        yield f"      nodes: {count // NODE} # {GUESSED}: of {NODE} accelerators each"
    yield "  optimizer: # as above"
    yield from OPTIMIZER
    if first < FIRST_TOKENS:
        yield "  evaluation:"
        yield f"    firstTokens: {first} # a twentieth of each run"
    at_work = written.parallelism * written.accelerators
    yield f"  parallelism: {max(at_work // count, 1)} # Jobs at a time"
    yield "  podTemplate:"
    yield "    spec:"
    yield "      containers:"
    yield "        - name: trainer"
    size = f"for the training state of {formatting.count(written.checkpoint.total)} parameters"
    yield f"          resources: {{limits: {{nvidia.com/gpu: {min(count, NODE)}}}}} # {GUESSED}: of 80 GB each, {size}"
