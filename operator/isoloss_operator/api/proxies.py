"""Part of a ScalingSweep's spec: the proxy models and their grids."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from isoloss_contract.records import MAX_BATCH_SIZE
from isoloss_operator.api import fields


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


class Model(fields.ApiType):
    """An architecture."""

    config: TransformersConfig
    """A transformers configuration with model_type, as in a config.json. crds/examples has four of 100 to 500 million
    parameters, and `isoloss init` derives them from a checkpoint's. The supported families are in
    docs/reference/checkpoints.md."""


def _ascends(values: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


BatchSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)], ...],
    Field(min_length=1, max_length=100),
    fields.Rule(
        "self.isSorted() && self.all(a, self.exists_one(b, a == b))",
        "must ascend, each value once",
        _ascends,
    ),
]
LearningRates = Annotated[
    tuple[fields.LearningRate, ...],
    Field(min_length=2, max_length=100),
    fields.Rule(
        f"self.exists(x, !{fields.is_decimal_cel('x')}) || ("
        "self.map(x, double(x)).isSorted() "
        "&& self.all(a, self.exists_one(b, double(a) == double(b))))",
        "must ascend, each value once",
        lambda rates: _ascends([float(rate) for rate in rates]),
    ),
]


class Grid(fields.ApiType):
    """The grid of batch sizes and learning rates."""

    batch_sizes: BatchSizes
    """Sequences per optimizer step, ascending: at least three, or a single one in spec.grid for predictions that set
    spec.batchSize to it."""
    learning_rates: LearningRates
    """Peak learning rates as quoted decimals ("2e-4"), at least two values in ascending order."""

    @property
    def points(self) -> int:
        """Pairs of batch size and learning rate."""
        return len(self.batch_sizes) * len(self.learning_rates)


MAX_NEIGHBOURHOOD: Final = 5
"""The answer, and a neighbour on either side of its learning rate and of its batch size."""


class Around(fields.ApiType):
    """The answer of a prediction and its neighbours."""

    prediction: fields.ObjectName
    """Name of a HyperparamPrediction in the same namespace whose answer comes from another sweep. The points are placed
    once it is Ready, and placed again if its answer moves by more than a quarter of the way to a neighbour."""
    factor: fields.NeighbourFactor = "2"
    """Factor between the answer and its neighbours, in learning rate and in batch size; in learning rate alone if the
    prediction has spec.batchSize."""


class ProxyGrid(fields.ApiType):
    """Batch sizes and learning rates of one size, or points around the answer of a prediction."""

    rules: ClassVar = (
        fields.Rule(
            "has(self.around) ? !has(self.batchSizes) && !has(self.learningRates)"
            " : has(self.batchSizes) && has(self.learningRates)",
            "set batchSizes and learningRates, or around",
            lambda grid: (
                [grid.batch_sizes, grid.learning_rates].count(None) == (2 if grid.around else 0)
            ),
        ),
    )

    batch_sizes: BatchSizes | None = None
    """Sequences per optimizer step, in ascending order: at least three."""
    learning_rates: LearningRates | None = None
    """Peak learning rates as quoted decimals ("2e-4"), at least two values in ascending order."""
    around: Around | None = None
    """Points at the answer of a prediction and next to it, to see whether it holds. The size must continue a
    checkpoint, and no laws are fitted to it."""


class InitialCheckpoint(fields.ApiType):
    """Weights from which the points of a size start."""

    uri: Annotated[fields.FolderUri, fields.IDENTITY]
    """Folder in Hugging Face format (config.json, safetensors) under a prefix that is allowed for the namespace.
    The operator reads its config.json. Immutable while a proxy of this name exists."""
    secret_name: fields.ObjectName | None = None
    """Name of a Secret in the same namespace whose keys become environment variables of this size's training pods,
    and override those of the sweep's storage.secretName."""


class Proxy(fields.ApiType):
    """One proxy model size."""

    rules: ClassVar = (
        fields.Rule(
            "has(self.model) != has(self.checkpoint)",
            "set exactly one of model and checkpoint",
            lambda proxy: (proxy.model is None) != (proxy.checkpoint is None),
        ),
        fields.Rule(
            "has(self.model) == has(oldSelf.model)",
            "a size cannot change from random weights to a checkpoint or back: give it another name",
        ),
        fields.Rule(
            "!has(self.grid) || !has(self.grid.around) || has(self.checkpoint)",
            "grid.around is about continued runs: set checkpoint",
            lambda proxy: not proxy.is_around_an_answer or proxy.checkpoint is not None,
        ),
    )

    name: Annotated[
        str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=30)
    ]
    """Name of the size, part of the Jobs' names."""
    model: Annotated[Model | None, fields.IDENTITY] = None
    """Architecture, which starts from random weights. Immutable while a proxy of this name exists."""
    checkpoint: InitialCheckpoint | None = None
    """Checkpoint that is continued, with a fresh optimizer, in place of a model: the architecture is its own."""
    tokens: fields.PositiveTokens
    """Training tokens of each point; of a checkpoint that is continued, those of the continuation. Points continue
    from where they are when it is raised."""
    grid: ProxyGrid | None = None
    """Grid of this size. Defaults to spec.grid."""
    nodes: fields.Nodes | None = None
    """Number of pods that train each point together, each with the pod template's accelerators. They are one Job.
    Defaults to 1."""
    pod_template: fields.PodTemplate | None = None
    """Merged into the training pods of this size, after spec.podTemplate."""

    @property
    def config(self) -> dict[str, Any]:
        """Its transformers configuration. Raises ValueError for a checkpoint's that is not read yet."""
        if self.model is None:
            raise ValueError(f"the config.json of {self.checkpoint_uri} was not read yet")
        return self.model.config

    @property
    def checkpoint_uri(self) -> str:
        """Without a trailing slash; empty for a size that starts from random weights."""
        return self.checkpoint.uri.rstrip("/") if self.checkpoint is not None else ""

    @property
    def around(self) -> Around | None:
        """The prediction around whose answer its points lie; None: they lie on a grid."""
        return None if self.grid is None else self.grid.around

    @property
    def is_around_an_answer(self) -> bool:
        """Whether its points show if an answer holds, and are not fitted."""
        return self.around is not None

    @property
    def own_grid(self) -> Grid | None:
        """The grid that it has in place of the sweep's."""
        if self.grid is None or self.grid.batch_sizes is None or self.grid.learning_rates is None:
            return None
        return Grid(batch_sizes=self.grid.batch_sizes, learning_rates=self.grid.learning_rates)
