"""Manifests that must be refused, as a table: what is wrong with each and what the answer must say.

The same rows are given to a real API server and to the types that `isoloss plan` and the operator
read with, so that neither lets through what the other refuses.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from isoloss_operator.api import API_VERSION, PREDICTION_KIND, SWEEP_KIND
from tests.support.models import example_model

Manifest = dict[str, Any]
ABSENT = object()
"""As a change: leave the field out."""
QUOTE = "the same number in quotes"
TYPES_QUOTE = "write the number in quotes"


def sweep(changes: Mapping[str, Any] | None = None, name: str = "sweep") -> Manifest:
    """A small valid sweep with `changes`, by dotted path (list indices are numbers)."""
    spec = {
        "storage": {"uri": "s3://bucket/sweep"},
        "data": {
            "tokenizer": "s3://bucket/tokenizer",
            "sequenceLength": 128,
            "domains": [
                {"name": "general", "uri": "s3://bucket/general/*.parquet", "weight": 3},
                {"name": "code", "uri": "s3://bucket/code/*.jsonl.zst", "weight": 1},
            ],
        },
        "proxies": [
            {
                "name": "small",
                "model": {"config": example_model("dense-tiny")},
                "tokens": 1_000_000,
            },
            {
                "name": "large",
                "model": {"config": example_model("dense-small")},
                "tokens": 2_000_000,
            },
        ],
        "grid": {"batchSizes": [2, 4, 8], "learningRates": ["5e-4", "1e-3", "2e-3"]},
        "evaluation": {"firstTokens": 10_000},
    }
    return _manifest(SWEEP_KIND, name, spec, changes)


def prediction(changes: Mapping[str, Any] | None = None, name: str = "prediction") -> Manifest:
    """A small valid prediction with `changes`, by dotted path."""
    spec = {
        "sweepRef": {"name": "sweep"},
        "checkpoint": {"uri": "s3://bucket/checkpoint"},
        "budget": {"flops": "2e15"},
    }
    return _manifest(PREDICTION_KIND, name, spec, changes)


def _manifest(kind: str, name: str, spec: Manifest, changes: Mapping[str, Any] | None) -> Manifest:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": copy.deepcopy(spec),
    }
    for path, value in (changes or {}).items():
        _change(manifest["spec"], path.split("."), value)
    return manifest


def _change(node: Any, path: list[str], value: Any) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path]
    for part in parents:
        node = node[part] if isinstance(part, int) else node.setdefault(part, {})
    if value is ABSENT:
        del node[last]
    else:
        node[last] = value


Table = Mapping[str | tuple[str, str], Mapping[str, Mapping[str, Any]]]
"""Changes by what is wrong with each, by what is said: by the API server and the types, if they say it differently."""


@dataclass(frozen=True)
class Refused:
    """One manifest: what is wrong, and fragments of what the API server and the types say.

    `types_say` is None where only the API server can tell.
    """

    sentence: str
    manifest: Manifest
    says: str
    types_say: str | None

    def __str__(self) -> str:
        """Row id."""
        return self.sentence


def grid(batch_sizes: int, learning_rates: int) -> Manifest:
    """A valid grid with so many values."""
    return {
        "batchSizes": list(range(1, batch_sizes + 1)),
        "learningRates": [f"{i}e-5" for i in range(1, learning_rates + 1)],
    }


_PATTERN = "must be s3://BUCKET/PATH, gs://BUCKET/PATH or file:///PATH"
_SEGMENTS = "must not contain empty, '.' or '..' path segments"
_FIRST = {"evaluation.firstTokens": 1}
_UNCHECKED = {"design": "Unchecked"}

CHECKPOINT = {"uri": "s3://bucket/checkpoint"}
CONTINUED = {"name": "probe", "checkpoint": CHECKPOINT, "tokens": 1_000_000}
AROUND = {**CONTINUED, "grid": {"around": {"prediction": "prediction"}}}

SIZES: Final[Table] = {
    "set exactly one of model and checkpoint": {
        "a model and a checkpoint": {"proxies.0.checkpoint": CHECKPOINT},
        "neither model nor checkpoint": {"proxies.0.model": ABSENT},
    },
    "set batchSizes and learningRates, or around": {
        "a grid and points around an answer": {
            "proxies.0": {
                **CONTINUED,
                "grid": {**grid(3, 3), "around": {"prediction": "prediction"}},
            }
        },
        "half a grid of one size": {"proxies.0.grid": {"batchSizes": [1, 2, 4]}},
    },
    "grid.around is about continued runs: set checkpoint": {
        "random weights around an answer": {
            "proxies.0.grid": {"around": {"prediction": "prediction"}}
        }
    },
    "put them into two ScalingSweeps": {
        "laws of random weights and of checkpoints": {"proxies.0": CONTINUED}
    },
    "put these into a ScalingSweep of their own": {
        "a search around an answer": {
            "proxies.0": AROUND,
            "search": {"strategy": "Sequential"},
            **_UNCHECKED,
        }
    },
    "one size gives no laws": {"one size beside one around an answer": {"proxies.0": AROUND}},
    "must be a number above 1, up to 10": {
        "a neighbour at the answer": {
            "proxies.0": {**AROUND, "grid": {"around": {"prediction": "p", "factor": "1"}}}
        }
    },
}


GRIDS: Final[Table] = {
    "at most 10000 points": {
        "10,001 points": {
            **_FIRST,
            "proxies.0.grid": grid(99, 99),
            "proxies.1.grid": grid(10, 20),
        },
        "10,000 points twice by another seed": {
            **_FIRST,
            "proxies": sweep()["spec"]["proxies"][:1],
            "grid": grid(100, 100),
            "training": {"additionalSeeds": [1]},
        },
    },
    "set spec.grid, or a grid for every proxy": {
        "no grid": {"grid": ABSENT},
        "no grid for one proxy of two": {"grid": ABSENT, "proxies.0.grid": grid(2, 2)},
    },
    "these batch sizes show no best one": {
        "one batch size for one proxy of two": {"proxies.1.grid": grid(1, 4)},
        "a grid of two batch sizes": {"grid": grid(2, 4)},
    },
    "must ascend, each value once": {
        "descending batch sizes": {"grid.batchSizes": [8, 4]},
        "descending learning rates": {"grid.learningRates": ["2e-3", "1e-3"]},
        "a batch size given twice": {"grid.batchSizes": [4, 4, 8]},
        "learning rates that ascend as text but not as numbers": {
            "grid.learningRates": ["1e-3", "2e-4"]
        },
        "one learning rate written in two ways": {"grid.learningRates": ["1e-3", "0.001", "2e-3"]},
        "a proxy's own grid in the wrong order": {
            "proxies.1.grid": {"batchSizes": [8, 4], "learningRates": ["1e-3", "2e-3"]}
        },
    },
    "must differ from each other and from seed": {
        "a seed twice": {"training": {"additionalSeeds": [3, 3]}},
        "the sweep's own seed once more": {"training": {"seed": 3, "additionalSeeds": [1, 3]}},
    },
    "at least 1 item": {"no batch size": {"grid.batchSizes": []}},
    "give at least 2 to every size": {
        "a search that begins with one batch size": {
            "grid": grid(1, 4),
            "search": {"strategy": "Sequential"},
        }
    },
    "at least 2 items": {"a grid of one learning rate": {"grid.learningRates": ["1e-3"]}},
    "shows no best one": {"a grid of two learning rates": {"grid": grid(4, 2)}},
    "a grid of two learning rates shows no best one: give at least 3 to every size": {
        "two learning rates for one proxy of two": {"proxies.1.grid": grid(4, 2)}
    },
    "one size gives no laws: add a proxy; set design to Unchecked": {
        "a single proxy": {"proxies": sweep()["spec"]["proxies"][:1]}
    },
    "one size gives no laws": {
        "a search of a single proxy": {
            "search.strategy": "Sequential",
            "proxies": sweep()["spec"]["proxies"][:1],
        }
    },
    "must last for 100 steps of its largest batch (batch size x data.sequenceLength); batchSizes count sequences": {
        "batch sizes that are tokens": {"grid.batchSizes": [256, 512, 1024]}
    },
    "must last for 100 steps of its largest batch": {
        "runs of 99 steps": {"proxies.0.tokens": 100 * 8 * 128 - 1}
    },
    "only search.strategy Sequential begins without one": {
        "no grid and a search of the whole of it": {
            "grid": ABSENT,
            "search.strategy": "Exhaustive",
        }
    },
    "should be greater than or equal to 3": {
        "a placed lattice of two lines": {
            "grid": ABSENT,
            "search": {"strategy": "Sequential", "placement": {"lines": 2}},
        }
    },
    "must be a number from 1.5 to 10": {
        "placed lines that meet once they are rounded": {
            "grid": ABSENT,
            "search": {"strategy": "Sequential", "placement": {"batchSizeFactor": "1.2"}},
        }
    },
    "should be greater than or equal to 1": {
        "a batch size of zero": {"grid.batchSizes": [0, 4]},
        "a target without tokens": {"search": {"target": {"parameters": 10**9, "tokens": 0}}},
    },
    "must be a learning rate above 0 and at most 10": {
        "a learning rate of zero": {"grid.learningRates": ["0", "1e-3"]}
    },
    ("must be a learning rate above 0", "should match pattern"): {
        "a negative learning rate": {"grid.learningRates": ["-1e-3", "1e-3"]}
    },
    "at most 10": {
        "a learning rate without its minus sign": {"grid.learningRates": ["1e-4", "2e4"]}
    },
    ('such as "2e-4", in quotes', "should match pattern"): {
        "a word for a learning rate": {"grid.learningRates": ["fast", "faster"]}
    },
    "at most 100 items": {"more than 100 batch sizes": {"grid.batchSizes": list(range(1, 102))}},
    "trains every point with one seed": {
        "a search over several seeds": {
            "search": {"strategy": "Sequential"},
            "training": {"additionalSeeds": [1]},
        }
    },
}


REST_OF_SWEEP: Final[Table] = {
    (QUOTE, TYPES_QUOTE): {
        "unquoted learning rates": {"grid.learningRates": [5e-4, 1e-3]},
        "a whole number as learning rate": {"grid.learningRates": ["1e-3", 1]},
        "an unquoted gradientClip": {"optimizer.gradientClip": 1.0},
        "an unquoted irreducibleLoss": {"fit.irreducibleLoss": 1.69},
        "an unquoted budget.flops": {"budget.flops": 1e21},
    },
    "should be greater than or equal to 1": {
        "negative tokens": {"proxies.0.tokens": -5},
        "a weight of zero": {"data.domains.0.weight": 0},
        "a negative weight": {"data.domains.0.weight": -9},
        "a parallelism of zero": {"parallelism": 0},
    },
    ("config: Required value", "Field required"): {
        "a model without a configuration": {"proxies.0.model": {}}
    },
    ("must be of type integer", "valid integer"): {"tokens as text": {"proxies.0.tokens": "1e6"}},
    "should be less than or equal to 9007199254740992": {
        "more tokens than a float64 can count": {"proxies.0.tokens": 2**53 + 2}
    },
    "every proxy's tokens must cover a step of its largest batch": {
        "tokens for less than one step of the largest batch": {"proxies.0.tokens": 1000, **_FIRST}
    },
    "every proxy's tokens must be more than 2 x optimizer.warmupTokens": {
        "a warm-up of half a run": {"optimizer.warmupTokens": 500_000}
    },
    "evaluation.firstTokens (100000000 unless set) must be less than every proxy's tokens": {
        "a first evaluation after the end of a run": {"evaluation": {}}
    },
    ("model_type: Required value", "needs model_type"): {
        "a model config without its type": {"proxies.0.model": {"config": {"hidden_size": 64}}}
    },
    "at least 1 item": {"no proxies": {"proxies": []}, "no domains": {"data.domains": []}},
    ("spec.proxies[1]: Duplicate value", "names must be unique: small"): {
        "two proxies of one name": {"proxies.1.name": "small"}
    },
    "should match": {"a proxy name that no Job can have": {"proxies.0.name": "Dense_100M"}},
    ("spec.data.domains[1]: Duplicate value", "names must be unique: general"): {
        "two domains of one name": {"data.domains.1.name": "general"}
    },
    ("spec.storage: Required value", "Field required"): {"no storage": {"storage": ABSENT}},
    _PATTERN: {
        "a path as storage": {"storage.uri": "/mnt/sweeps"},
        "storage over http": {"storage.uri": "https://bucket/sweep"},
        "storage outside of every bucket": {"storage.uri": "s3:///sweep"},
        "credentials in a URI": {"storage.uri": "s3://key:secret@bucket/sweep"},
        "an escape in a URI": {"storage.uri": "s3://bucket/%2e%2e/b"},
        "a line break in a URI": {"data.tokenizer": "s3://bucket/a\nb"},
    },
    _SEGMENTS: {
        "a way out of the storage": {"storage.uri": "s3://bucket/a/../b"},
        "an empty path segment": {"data.tokenizer": "s3://bucket//tokenizer"},
    },
    "must have at most 512 bytes": {
        "storage that leaves no room for keys, in characters of two bytes": {
            "storage.uri": "s3://bucket/" + "\u00e9" * 251
        }
    },
    "must name one folder, not a pattern": {
        "a pattern for a folder": {"data.tokenizer": "s3://bucket/tokenizers/*"}
    },
    "must name the folder, not a file in it": {
        "a file for a folder": {"data.tokenizer": "s3://bucket/tokenizer/tokenizer.json"}
    },
    "must be a number from 0 to below 1": {"a beta of one": {"optimizer.beta2": "1.0"}},
    "must be a positive number": {
        "a gradientClip of zero": {"optimizer.gradientClip": "0.0"},
        "a budget of no FLOPs": {"budget.flops": "0"},
    },
    "must be a number from 0 to 1": {"a zLoss above one": {"optimizer.zLoss": "1.5"}},
    ('supported values: "Constant"', "should be 'Constant'"): {
        "an unknown schedule": {"optimizer.schedule": "Cosine"}
    },
    ("must be a loss in nats per token, from 0 to below 100", "should match pattern"): {
        "an irreducible loss in words": {"fit.irreducibleLoss": "auto"}
    },
    "set flops, acceleratorHours or both": {"an empty budget": {"budget": {}}},
    ('supported values: "BFloat16", "Float32"', "should be 'BFloat16' or 'Float32'"): {
        "a precision in the trainer's words": {"training.precision": "bf16"}
    },
    "should be greater than or equal to 60": {
        "a deadline of no time": {"failurePolicy.attemptDeadlineSeconds": 0}
    },
    "should be greater than or equal to 0": {
        "a finished Job that is removed before it ends": {
            "jobs.ttlSecondsAfterFinished.failed": -1
        }
    },
    ("localQueueName: Required", "Field required"): {"a queue without a name": {"queue": {}}},
    ('unknown field "spec.paralellism"', "Extra inputs are not permitted"): {
        "a misspelt field": {"paralellism": 8}
    },
    (
        'unknown field "spec.podTemplate.nodeSelector"',
        "has metadata and spec only, not nodeSelector",
    ): {"a pod field in the wrong place": {"podTemplate": {"nodeSelector": {"gpu": "h100"}}}},
}


PREDICTIONS: Final[Table] = {
    (QUOTE, TYPES_QUOTE): {
        "an unquoted initialLoss": {"checkpoint": ABSENT, "initialLoss": 2.08},
        "an unquoted flops budget": {"budget.flops": 2e15},
    },
    "must be a loss in nats per token, above 0 and below 100": {
        "an initial loss of 100": {"checkpoint": ABSENT, "initialLoss": "100"},
        "an initial loss of zero": {"checkpoint": ABSENT, "initialLoss": "0"},
    },
    "set exactly one of flops and tokens": {
        "a budget of both kinds": {"budget.tokens": 1_000_000},
        "a budget of no kind": {"budget": {}},
    },
    "set exactly one of checkpoint and initialLoss": {
        "both checkpoint and initialLoss": {"initialLoss": "2.08"},
        "neither checkpoint nor initialLoss": {"checkpoint": ABSENT},
    },
    "batchSize with initialLoss needs targetParameters": {
        "a batch size for a model of unknown size": {
            "checkpoint": ABSENT,
            "initialLoss": "2.08",
            "batchSize": 64,
        }
    },
    "batchSizeTolerance is about the best batch size": {
        "a tolerance beside a batch size that is given": {
            "batchSize": 64,
            "batchSizeTolerance": "0.01",
        }
    },
    "pretrainingLearningRate is about the best pair by the composition Measured": {
        "a rate of pre-training beside a batch size that is given": {
            "batchSize": 64,
            "pretrainingLearningRate": "3e-4",
        },
        "a rate of pre-training for the paper's composition": {
            "composition": "Paper",
            "pretrainingLearningRate": "3e-4",
        },
    },
    "batchSizeMultipleOf rounds the best batch size: remove it, or batchSize": {
        "a multiple beside a batch size that is given": {"batchSize": 64, "batchSizeMultipleOf": 8}
    },
    ("spec.budget: Required value", "Field required"): {"no budget": {"budget": ABSENT}},
    "budget.tokens with initialLoss needs targetParameters": {
        "a token budget for a model of unknown size": {
            "checkpoint": ABSENT,
            "initialLoss": "2.08",
            "budget": {"tokens": 1_000_000},
        }
    },
    "targetParameters goes with initialLoss only": {
        "parameters beside a checkpoint that says its own": {"targetParameters": 8_000_000_000}
    },
    "must be a number of 1 or more": {"a maxExtrapolation below one": {"maxExtrapolation": "0.5"}},
    "should be greater than or equal to 1": {
        "a batch size multiple of zero": {"batchSizeMultipleOf": 0}
    },
    ("spec.sweepRef: Required value", "Field required"): {"no sweep": {"sweepRef": ABSENT}},
    _PATTERN: {"a checkpoint of a model hub": {"checkpoint.uri": "hf://org/model"}},
    "should match": {"a ConfigMap name with capitals": {"publish.configMapName": "Answer"}},
    "validation continues a checkpoint: set checkpoint instead of initialLoss": {
        "a validation without a checkpoint": {
            "checkpoint": ABSENT,
            "initialLoss": "2.08",
            "validation": {"sweepRef": {"name": "near"}},
        }
    },
    ("spec.validation.sweepRef: Required value", "sweepRef"): {
        "a validation by no sweep": {"validation": {}}
    },
    "must be a positive number": {
        "a tolerance of nothing": {"validation": {"sweepRef": {"name": "near"}, "tolerance": "0"}}
    },
}


def _rows(make: Callable[[Mapping[str, Any]], Manifest], table: Table) -> Iterator[Refused]:
    for told, manifests in table.items():
        says, types_say = (told, told) if isinstance(told, str) else told
        for sentence, changes in manifests.items():
            yield Refused(sentence, make(changes), says, types_say)


REFUSED = (
    *(row for table in (SIZES, GRIDS, REST_OF_SWEEP) for row in _rows(sweep, table)),
    Refused(
        "a name too long for a label",
        sweep(name="a" * 64),
        "metadata.name must be at most 63 characters",
        None,
    ),
    *_rows(prediction, PREDICTIONS),
)


_ACCEPTED_SWEEPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "a single batch size for all sizes": {"grid": grid(1, 4)},
    "one size around an answer": {"proxies": [AROUND]},
    "a size around an answer beside two sizes for laws": {
        "proxies": [*sweep()["spec"]["proxies"], AROUND]
    },
    "two sizes that continue checkpoints": {
        "proxies": [
            CONTINUED,
            {**CONTINUED, "name": "sibling", "checkpoint": {"uri": "s3://bucket/sibling"}},
        ]
    },
    "the smallest grid": {"grid": grid(3, 3)},
    "the smallest grid that is not checked": {**_UNCHECKED, "grid": grid(2, 2)},
    "the smallest grid of a search": {"search.strategy": "Sequential", "grid": grid(2, 2)},
    "runs of a hundred steps": {"proxies.0.tokens": 100 * 8 * 128},
    "runs of few steps that are not checked": {**_UNCHECKED, "proxies.0.tokens": 20_000},
    "10,000 points": {
        **_FIRST,
        **_UNCHECKED,
        "proxies": sweep()["spec"]["proxies"][:1],
        "grid": grid(100, 100),
    },
    "a sequential search": {"search": {"strategy": "Sequential", "extendGrid": {"maxPoints": 0}}},
    "a search without a grid": {"grid": ABSENT, "search.strategy": "Sequential"},
    "a search with a grid for one size of two": {
        "grid": ABSENT,
        "proxies.0.grid": grid(2, 2),
        "search": {
            "strategy": "Sequential",
            "placement": {"lines": 5, "learningRateFactor": "1.5", "batchSizeFactor": "10"},
        },
    },
    "further seeds": {"training": {"additionalSeeds": [1, 2]}},
    "a corpus prepared by several pods": {"data.parallelism": 16},
    "one proxy, for more to come": {**_UNCHECKED, "proxies": sweep()["spec"]["proxies"][:1]},
    "a grid for every proxy and none for the sweep": {
        "grid": ABSENT,
        "proxies.0.grid": grid(3, 3),
        "proxies.1.grid": grid(3, 4),
    },
    "learning rates in different notations": {"grid.learningRates": ["0.0001", "2E-4", "1e-03"]},
    "a model configuration of one's own": {
        "proxies.0.model": {
            "config": {"model_type": "llama", "hidden_size": 64, "deep": {"x": [1]}}
        }
    },
    "betas and decay of zero": {"optimizer": {"beta1": "0", "beta2": "0.0", "weightDecay": "0"}},
    "a warm-up of just under half a run": {"optimizer.warmupTokens": 499_999},
    "the largest zLoss": {"optimizer.zLoss": "1"},
    "an irreducible loss of one's own": {"fit.irreducibleLoss": "1.69"},
    "storage on a shared volume": {"storage.uri": "file:///mnt/sweeps/dense"},
    "a whole bucket as storage": {"storage.uri": "gs://bucket"},
    "an irreducible loss of zero": {"fit.irreducibleLoss": "0"},
    "an empty pod template": {"podTemplate": {}},
    "a pod template for the preparation": {"data.podTemplate": {"spec": {"priority": 1}}},
}
_ACCEPTED_PREDICTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "a suspended prediction for longer sequences": {
        "suspend": True,
        "targetSequenceLength": 32_768,
        "checkpoint.secretName": "models-s3",
    },
    "a batch size that is given": {"batchSize": 64},
    "a rate of pre-training": {"pretrainingLearningRate": "3e-4"},
    "a tolerance of batch sizes": {"batchSizeTolerance": "0.01"},
    "an initial loss without a checkpoint": {"checkpoint": ABSENT, "initialLoss": "2.08"},
    "tokens for a model of known size": {
        "checkpoint": ABSENT,
        "initialLoss": "2.08",
        "targetParameters": 8_000_000_000,
        "budget": {"tokens": 1_000_000},
    },
}
ACCEPTED = {
    **{sentence: sweep(each) for sentence, each in _ACCEPTED_SWEEPS.items()},
    "a name of 63 characters": sweep(name="a" * 63),
    **{sentence: prediction(each) for sentence, each in _ACCEPTED_PREDICTIONS.items()},
}
