"""Part of a ScalingSweep's spec: the proxy models and their grids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from isoloss_contract.records import MAX_BATCH_SIZE
from isoloss_operator.api.fields import (
    IDENTITY,
    ApiType,
    FolderUri,
    LearningRate,
    Nodes,
    PodTemplate,
    PositiveTokens,
    Rule,
    is_decimal_cel,
)


def _has_model_type(config: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(config.get("model_type"), str):
        raise PydanticCustomError("model_type", "needs model_type, such as llama")
    return config


TransformersConfig = Annotated[
    dict[str, Any],
    AfterValidator(_has_model_type),
    Field(
        json_schema_extra={
            "x-kubernetes-preserve-unknown-fields": True,
            "required": ["model_type"],
            "properties": {
                "model_type": {
                    "description": "Architecture, such as llama.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 64,
                }
            },
        }
    ),
]


class Like(ApiType):
    """A checkpoint to derive a proxy from, and the proxy's size."""

    checkpoint: FolderUri
    """Folder of the checkpoint; the operator reads its config.json and nothing else. It must be under
    a prefix that is allowed for the namespace. Supported families: llama, mistral, qwen3, qwen3_moe,
    mixtral and deepseek_v3."""
    parameters: int = Field(ge=1000, le=10**13, json_schema_extra={"format": "int64"})
    """Active parameters in matrix products, output head included. The proxy is within 10 % of this
    number, or refused."""


class Model(ApiType):
    """Exactly one of preset, config and like."""

    rules: ClassVar = (
        Rule(
            "[has(self.preset), has(self.config), has(self.like)].exists_one(given, given)",
            "set exactly one of preset, config and like",
            lambda model: [model.preset, model.config, model.like].count(None) == 2,
        ),
    )

    preset: (
        Literal[
            "dense-100m",
            "dense-500m",
            "moe-100m",
            "moe-500m",
            "dense-tiny",
            "dense-small",
            "moe-tiny",
        ]
        | None
    ) = None
    """Name of a known proxy. `isoloss plan` prints its parameter counts."""
    config: TransformersConfig | None = None
    """A transformers configuration with model_type, as in a config.json."""
    like: Like | None = None
    """A proxy derived from a checkpoint: the same family, head sizes, aspect ratio, vocabulary and
    expert layout, smaller in width and depth. `isoloss plan` prints its size."""
    qk_norm: bool = False
    """Normalise the queries and keys of every head. For llama: the model is then a Qwen3 of the same
    shape. Qwen3 has it anyway, and other families do not have it."""


def _ascends(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


class Grid(ApiType):
    """The grid of batch sizes and learning rates."""

    batch_sizes: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)], ...],
        Field(min_length=1, max_length=100),
        Rule(
            "self.isSorted() && self.all(a, self.exists_one(b, a == b))",
            "must ascend, each value once",
            _ascends,
        ),
    ]
    """Sequences per optimizer step, in ascending order: at least three, or a single one for all sizes in spec.grid if
    predictions are to set spec.batchSize to it."""
    learning_rates: Annotated[
        tuple[LearningRate, ...],
        Field(min_length=2, max_length=100),
        Rule(
            f"self.exists(x, !{is_decimal_cel('x')}) || ("
            "self.map(x, double(x)).isSorted() "
            "&& self.all(a, self.exists_one(b, double(a) == double(b))))",
            "must ascend, each value once",
            lambda rates: _ascends([float(rate) for rate in rates]),
        ),
    ]
    """Peak learning rates as quoted decimals ("2e-4"), at least two values in ascending order."""

    @property
    def points(self) -> int:
        """Pairs of batch size and learning rate."""
        return len(self.batch_sizes) * len(self.learning_rates)


class Proxy(ApiType):
    """One proxy model size."""

    name: Annotated[
        str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=30)
    ]
    """Name of the size, part of the Jobs' names."""
    model: Annotated[Model, IDENTITY]
    """Architecture. Immutable while a proxy of this name exists."""
    tokens: PositiveTokens
    """Training tokens of each point. Points continue from their checkpoints when it is raised."""
    grid: Grid | None = None
    """Grid of this size. Defaults to spec.grid; without either, search.placement places its first points."""
    nodes: Nodes | None = None
    """Number of pods that train each point together, each with the accelerators that the pod template asks for. They are
    one Job and count as one against spec.parallelism. Defaults to 1."""
    pod_template: PodTemplate | None = None
    """Merged into the training pods of this size, after spec.podTemplate."""
