"""What the tools that people log with call the columns of a table: data, with the tool of each name.

A name is listed only if the tool itself writes it, and what it means there is what the column means here. Several
meanings are kept apart: settings from logged values, global batch sizes from those of one device, held-out from
training losses, nats from bits per byte.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Where a name is looked for: MLflow writes settings as `params.NAME` and logged values as `metrics.NAME`."""

    SETTING = "setting"
    LOGGED = "logged"


PREFIXES: Mapping[str, Kind] = {
    "params.": Kind.SETTING,
    "config.": Kind.SETTING,
    "metrics.": Kind.LOGGED,
    "summary.": Kind.LOGGED,
}


@dataclass(frozen=True)
class Known:
    """A tool's name of a column."""

    name: str
    tool: str
    doubt: str = ""
    """What may be wrong with it, as the end of a warning."""


@dataclass(frozen=True)
class Tier:
    """Names of one meaning: the first tier with a value is taken, and two of its columns that differ are an error."""

    kind: Kind
    names: Sequence[Known]


def _settings(*names: Known) -> Tier:
    return Tier(Kind.SETTING, names)


def _logged(*names: Known) -> Tier:
    return Tier(Kind.LOGGED, names)


IN_STEPS = (
    "counts W&B's log calls unless the trainer passes step=; if it is not the optimizer step, "
    "give the column that is: --column tokens=STEP*batch_size*sequence_length"
)
IN_TRACKIO = IN_STEPS.replace("W&B", "Trackio")
TRAINING = (
    "is a loss on training data: a held-out loss may have its optimum elsewhere, "
    "by a factor of 2 to 4 in learning rate on published tables"
)
ALL_PARAMS = (
    "may count the embedding lookup too, which params leaves out: "
    "give the count with --column params=NUMBER or a column"
)
ANY_LR = (
    "has one value for each run: if it is a schedule's last value, it is not the learning rate: "
    "give the peak with --column learning_rate=NAME or --settings"
)

RUN_IDS = ("run_id", "run_uuid", "Run ID", "ID")
"""Of trackers: a name may be that of several runs, an ID is not."""
RUN = ("run", "Name", "run_name", "tags.mlflow.runName", "name", *RUN_IDS)
"""Names of runs, the first that there is: those of this project, W&B's runs table, Trackio, MLflow and W&B's API."""

TIERS: Mapping[str, Sequence[Tier]] = {
    "params": (
        _settings(Known("params", "isoloss")),
        _settings(
            Known("model/num_parameters", "HF Trainer", ALL_PARAMS),
            Known("num_parameters", "HF Trainer", ALL_PARAMS),
            Known("num_params", "W&B config", ALL_PARAMS),
            Known("n_params", "W&B config", ALL_PARAMS),
        ),
    ),
    "batch_size": (
        _settings(
            Known("batch_size", "isoloss, W&B config"),
            Known("global_batch_size", "Megatron-LM"),
            Known("training.global_batch_size", "torchtitan"),
            Known("batch-size", "Megatron-LM"),
        ),
    ),
    "sequence_length": (
        _settings(
            Known("sequence_length", "isoloss, W&B config"),
            Known("seq_length", "Megatron-LM"),
            Known("seq_len", "torchtitan"),
            Known("training.seq_len", "torchtitan"),
            Known("max_seq_len", "nanochat"),
            Known("block_size", "nanoGPT, HF run_clm"),
        ),
    ),
    "learning_rate": (
        _settings(
            Known("learning_rate", "isoloss, HF Trainer"),
            Known("optimizer.lr", "torchtitan"),
            Known("params.lr", "MLflow"),
            Known("config.lr", "W&B"),
        ),
        _logged(
            Known("train/learning_rate", "HF Trainer"),
            Known("learning_rate", "HF Trainer to MLflow"),
            Known("learning-rate", "Megatron-LM"),
            Known("lr", "torchtitan, W&B config", ANY_LR),
            Known("train/lr", "W&B"),
        ),
    ),
    "tokens": (
        _logged(Known("tokens", "isoloss")),
        _logged(
            Known("n_tokens_seen", "torchtitan"),
            Known("train/num_input_tokens_seen", "HF Trainer"),
            Known("num_input_tokens_seen", "HF Trainer"),
        ),
    ),
    "step": (
        _logged(
            Known("train/global_step", "HF Trainer"),
            Known("trainer/global_step", "Lightning"),
        ),
        _logged(Known("step", "nanochat, MLflow, Trackio")),
        _logged(Known("iteration", "Megatron-LM"), Known("iter", "nanoGPT")),
        _logged(Known("_step", "W&B", IN_STEPS), Known("Step", "W&B", IN_STEPS)),
    ),
    "loss": (
        _logged(
            Known("eval/loss", "HF Trainer"),
            Known("eval_loss", "HF Trainer"),
            Known("val/loss", "nanoGPT, W&B"),
            Known("val_loss", "Lightning"),
            Known("validation/loss", "W&B"),
            Known("validation_loss", "W&B"),
            Known("lm loss validation", "Megatron-LM"),
            Known("validation_metrics/loss", "torchtitan"),
        ),
        _logged(
            Known("loss", "isoloss, HF Trainer", TRAINING),
            Known("train/loss", "HF Trainer, nanochat", TRAINING),
            Known("lm loss", "Megatron-LM", TRAINING),
            Known("loss_metrics/global_avg_loss", "torchtitan", TRAINING),
        ),
    ),
}
"""By column here. `step` is none of ours: tokens are step * batch_size * sequence_length where no column has them."""

HELD_OUT = tuple(known.name for known in TIERS["loss"][0].names)
"""Of losses."""
LOGGED_RATES = tuple(known.name for known in TIERS["learning_rate"][1].names if not known.doubt)
"""Of learning rates as they were at a step."""
BITS_PER_BYTE = ("val/bpb", "val_bpb", "eval/bpb", "eval_bpb")
"""nanochat's held-out loss: another unit, which takes the bytes per token of its text."""
TOKENS_PER_STEP = ("total_batch_size",)
"""nanochat's batch size, in tokens."""
SCALED_RATES = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr")
"""nanochat's learning rates, as they were given: since January 2026 it trains at these times the root of its batch size over ..."""
REFERENCE_BATCH = 2**19
"""... so many tokens."""
MUP = re.compile(r"(?:^|[\W_])(?:use_)?mup(?:$|[\W_])", re.IGNORECASE)
"""In the names of settings of muP, such as mup_base_width of Cerebras and mup_enabled of nanoGPT-mup."""
PER_DEVICE = (
    "per_device_train_batch_size",  # HF Trainer
    "device_batch_size",  # nanochat
    "micro_batch_size",  # Megatron-LM
    "training.local_batch_size",  # torchtitan
    "local_batch_size",  # torchtitan
)
ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps")
DEVICES = ("world_size", "num_processes", "num_devices", "n_gpus", "num_gpus")
NODES = ("num_nodes", "nnodes")
BATCH_FACTORS = (*ACCUMULATION, *DEVICES, *NODES)
"""Factors between the batch of one device and the whole one: with one of them a plain batch_size is in doubt."""
OF_ALL_NODES = ("world_size", "num_processes")
"""DEVICES that are never those of one node."""
SHARING = (
    "tensor_model_parallel_size",  # Megatron-LM
    "pipeline_model_parallel_size",  # Megatron-LM
    "context_parallel_size",  # Megatron-LM
    "parallelism.tensor_parallel_degree",  # torchtitan
    "parallelism.pipeline_parallel_degree",  # torchtitan
    "parallelism.context_parallel_degree",  # torchtitan
)
"""Devices that work on one batch together."""
ROUTER_LOSS = "output_router_logits"
"""Whether transformers' loss of a mixture has that of its routers in it."""
ADDED_TO_LOSS = {
    "label_smoothing_factor": "label smoothing",  # transformers, in eval_loss too
    "label_smoothing": "label smoothing",
    "z_loss_weight": "a z-loss",  # levanter
    "z_loss_multiplier": "a z-loss",  # OLMo-core, MaxText
    "train_module.z_loss_multiplier": "a z-loss",
    "softmax_auxiliary_loss": "a z-loss",  # OLMo
}
"""Settings that add to the cross entropy, unless they are zero or off, and what."""

NAMES = frozenset(
    [known.name for tiers in TIERS.values() for tier in tiers for known in tier.names]
    + [
        *RUN,
        *BITS_PER_BYTE,
        *TOKENS_PER_STEP,
        *PER_DEVICE,
        *BATCH_FACTORS,
        *SHARING,
        ROUTER_LOSS,
        *ADDED_TO_LOSS,
    ]
)


def bare(column: str) -> tuple[str, Kind | None]:
    """A column's name without the prefix of MLflow or W&B's API, and the kind that the prefix says."""
    for prefix, kind in PREFIXES.items():
        if column.startswith(prefix):
            return column[len(prefix) :], kind
    return column, None


def is_known(column: str) -> bool:
    """Whether a column of a table, with its prefix or without, is in these lists."""
    return column in NAMES or bare(column)[0] in NAMES


def is_of(column: str, known: Known, kind: Kind) -> bool:
    """Whether a column of a table is the one of this name and kind."""
    name, prefixed = bare(column)
    return column == known.name or (name == known.name and prefixed is kind)
