"""The models of torchtitan and litgpt, as their packages have them, in the shapes of our presets.

They are no dependencies of ours: litgpt asks for an older huggingface-hub than transformers does. Without their own
dependencies, into a folder of their own, both import with ours:

    pip install --no-deps --target .bench/rivals torchtitan==0.3.0 torchdata torch_checkpointing spmd_types==0.2.3 \
        einops tyro docstring-parser typeguard litgpt==0.5.13 lightning lightning-utilities torchmetrics pytorch-lightning
    PYTHONPATH=.bench/rivals make bench-trainer

Checked on a CPU with torch 2.15: litgpt trains there. torchtitan's language models attend by flex or varlen alone, which
have no backward pass on a CPU.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

Config = Mapping[str, Any]
"""A transformers config of a Llama."""


def why_not(package: str, config: Config, *, on_cpu: bool) -> str:
    """Why a package takes no part; "" if it does."""
    if config["model_type"] != "llama":
        return "dense shapes alone"
    if package == "torchtitan" and on_cpu:
        return "needs a GPU"
    return "" if find_spec(package) else "not installed: see benchmarks/packaged_rivals.py"


def litgpt_model(config: Config, length: int) -> nn.Module:
    """Untied float32 weights; the model takes tokens [batch, S] and returns logits."""
    from litgpt.config import Config as Shape
    from litgpt.model import GPT

    model: nn.Module = GPT(
        Shape(
            block_size=length,
            vocab_size=config["vocab_size"],
            padded_vocab_size=config["vocab_size"],
            n_layer=config["num_hidden_layers"],
            n_embd=config["hidden_size"],
            n_head=config["num_attention_heads"],
            n_query_groups=config["num_key_value_heads"],
            head_size=config["head_dim"],
            intermediate_size=config["intermediate_size"],
            mlp_class_name="LLaMAMLP",
            norm_class_name="RMSNorm",
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
        )
    )
    return model


def torchtitan_model(config: Config, length: int) -> nn.Module:
    """As its own Llama 3 is built, with flex attention."""
    from torchtitan.models import llama3

    width, vocabulary = config["hidden_size"], config["vocab_size"]
    heads = config["num_attention_heads"]
    if width // heads != config["head_dim"]:
        raise ValueError(f"torchtitan's heads are {width // heads} wide, not {config['head_dim']}")
    model: nn.Module = llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocabulary,
        tok_embeddings=llama3.Embedding.Config(
            num_embeddings=vocabulary, embedding_dim=width, param_init=llama3._EMBEDDING_INIT
        ),
        norm=llama3.RMSNorm.Config(normalized_shape=width, param_init=llama3._NORM_INIT),
        lm_head=llama3.Linear.Config(
            in_features=width,
            out_features=vocabulary,
            param_init=llama3._output_linear_init(width),
        ),
        layers=llama3._build_llama3_layers(
            n_layers=config["num_hidden_layers"],
            dim=width,
            n_heads=heads,
            n_kv_heads=config["num_key_value_heads"],
            hidden_dim=config["intermediate_size"],
            rope=llama3.ComplexRoPE.Config(dim=config["head_dim"], max_seq_len=length),
            attn_backend="flex",
        ),
    ).build()
    return model


class Packaged(nn.Module):
    """A package's model with its mean loss in float32, in its package's way of mixed precision and compiling."""

    def __init__(self, package: str, config: Config, length: int, device: torch.device) -> None:
        super().__init__()
        self.package, self.on_cpu = package, device.type == "cpu"
        self.loss = cross_entropy if self.on_cpu else torch.compile(cross_entropy)
        with device:
            if package == "litgpt":
                self.model = litgpt_model(config, length)
            else:
                self.model = torchtitan_model(config, length)
                self.model.init_states(buffer_device=device)  # type: ignore[operator]
        if package == "litgpt" and not self.on_cpu:
            self.model.compile()

    def shard(self, mesh: DeviceMesh) -> None:
        """torchtitan's: each layer compiled, and computing in bfloat16 by FSDP2."""
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in self.model.layers.values():  # type: ignore[operator]
            layer.compile(fullgraph=True)
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Of tokens [batch, S]."""
        logits = self._logits(inputs)
        return self.loss(logits.flatten(0, 1).float(), targets.flatten())

    def _logits(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.package == "torchtitan":
            positions = torch.arange(inputs.shape[1], device=inputs.device).expand(inputs.shape)
            masks = self.model.get_attention_masks(positions)  # type: ignore[operator]
            arguments = [inputs, positions, masks]
        else:
            arguments = [inputs]
        mixed = self.package == "litgpt" and not self.on_cpu
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=mixed):
            found: torch.Tensor = self.model(*arguments)
        return found
