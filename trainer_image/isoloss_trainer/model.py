"""Builds proxies from transformers config dictionaries, and counts their parameters."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from isoloss_contract.model_settings import LOGIT_CAPS
from isoloss_contract.records import ParameterCounts
from isoloss_trainer import attention, experts
from isoloss_trainer.loss import chunk_tokens, summed_loss, token_losses
from isoloss_trainer.termination import BadConfiguration, in_words, is_out_of_memory

FIELD = "model"
RANDOM = ("dropout", "pdrop", "layerdrop", "jitter")
"""Parts of the names of settings by which a model draws random numbers in training."""
PROBE_TOKENS = 16
JOINING = ("max_complex_pointwise_cat_inputs", "max_pointwise_cat_inputs")
"""Settings of torch's compiler, of newer versions: how many tensors it joins by computing every element as a part of each.
None: the gradient of experts' gate, which is joined from two, then takes a third of the time, 2 to 3% of a mixture's step."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
"""What configs call the tokens of the longest sequence that a model reads."""
CHOSEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""What configs call the experts of a token: of all families, of Aria, of Gemma 4."""
COUNTED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


class LanguageModel(nn.Module):
    """A transformers model split in two: a body that computes hidden states, and a head, the matrix of
    the chunked loss."""

    def __init__(self, network: Any, sequence_length: int) -> None:
        super().__init__()
        self.network = network
        self.config = network.config.get_text_config()
        # Others keep their own: soft caps are in no other, and some layers attend to nothing.
        if attention.is_plainly_causal(self.config, sequence_length):
            network.set_attn_implementation(attention.NAME)
        if self.config.model_type == "gpt_oss":
            network.set_attn_implementation(attention.WITH_SINKS)
        if experts.are_plain(network):
            network.set_experts_implementation(experts.NAME)
        experts.compute_sparsely(network)
        self._logit_factor = getattr(self.config, "logit_scale", None) or 1.0
        self._logit_factor /= getattr(self.config, "logits_scaling", None) or 1.0

    @property
    def body(self) -> Any:
        """From tokens to hidden states."""
        network = self.network
        # Llama 4 calls its body by another name than it says.
        return network.model if network.base_model is network else network.base_model

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks of the body that are alike, in order."""
        return layers_of(self.network)

    def prepare_layers(
        self, *, recompute: bool, compiled: bool, whole: bool = True, **options: Any
    ) -> None:
        """Decide how each layer computes its output and its gradients.

        `recompute`: keep its input alone for the backward pass, and compute the layer again there. `compiled`: for
        one fixed shape, as one graph if `whole`; `options` are torch.compile's, by default those for an accelerator.
        What puts its weights together is around all that.
        """
        for layer in self.layers:
            forward = type(layer).forward.__get__(layer)
            if recompute:
                forward = _recomputed(forward)
            if compiled:
                found = options or {"options": compiler_options()}
                forward = torch.compile(forward, dynamic=False, fullgraph=whole, **found)
            layer.forward = forward

    @property
    def head(self) -> torch.Tensor:
        """The output matrix [vocabulary, width]."""
        weight: torch.Tensor = self.network.get_output_embeddings().weight
        return weight

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """Final hidden states [tokens, width] of `inputs` [batch, S], times the factor of their logits if there is one."""
        states: torch.Tensor = self.body(inputs, use_cache=False).last_hidden_state
        states = states.flatten(0, 1)
        return states if self._logit_factor == 1.0 else states * self._logit_factor

    def changes_logits(self, probe: torch.Tensor, theirs: torch.Tensor) -> bool:
        """Whether the network's logits, `theirs` [tokens, vocabulary] of `probe`, are more than hidden states times the
        head: capped, scaled in a way that is not known here, or with a bias, which is zero before it is trained."""
        ours = (self.hidden(probe).to(self.head.device) @ self.head.T).float().to(theirs.device)
        biased = getattr(self.network.get_output_embeddings(), "bias", None) is not None
        capped = any(getattr(self.config, name, None) for name in LOGIT_CAPS)
        alike = theirs.shape == ours.shape and not bool(differs(theirs, ours).any())
        return biased or capped or not alike

    def summed_loss(
        self, inputs: torch.Tensor, targets: torch.Tensor, scale: float, z_loss: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`scale` times the summed loss and offset of [batch, S] tokens, for training (loss.py)."""
        chunk = chunk_tokens(self.head.shape[0], inputs.device)
        hidden = self.hidden(inputs)
        return summed_loss(hidden, self.head, targets.flatten(), scale, chunk, z_loss)

    def token_losses(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Loss of every token, float32 [batch, S], on the head's device: layers may be on several."""
        head = self.head
        chunk = chunk_tokens(head.shape[0], head.device)
        states = self.hidden(inputs).to(head.device)
        losses = token_losses(states, head, targets.flatten().to(head.device), chunk)
        return losses.view(targets.shape)


def compiler_options() -> dict[str, int]:
    """Of torch.compile, for layers on an accelerator."""
    import torch._inductor.config

    return {name: 0 for name in JOINING if hasattr(torch._inductor.config, name)}


def differs(logits: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Whether those of a token [tokens, vocabulary] differ by more than bfloat16 rounds away [tokens]."""
    allowed = 1e-2 * (logits.std() + logits.abs())
    return ((logits - others).abs() > allowed).any(-1)


def layers_of(network: Any) -> list[nn.Module]:
    """The blocks of a transformers model that are alike, in order."""
    kinds = set(network._no_split_modules or ())
    return [
        module
        for module in network.modules()
        if any(base.__name__ in kinds for base in type(module).__mro__)
    ]


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*inputs: Any, **options: Any) -> Any:
        return checkpoint(
            forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options
        )

    return compute


def build_network(config: dict[str, Any], *, seed: int | None = None) -> Any:
    """A transformers model with random float32 weights that depend on `seed` alone.

    Raises BadConfiguration if transformers refuses the dictionary. Use no seed under
    `torch.device("meta")`, where there are shapes only.
    """
    model_class = load_model_class()
    parsed = model_config(config)
    if seed is not None:
        torch.manual_seed(seed)
    try:
        return model_class.from_config(parsed, dtype=torch.float32)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Every model class validates its config in its own way.
        raise BadConfiguration("BadModel", in_words(error), FIELD) from error


def build_shapes(config: dict[str, Any]) -> Any:
    """As build_network, without weights: parameters are on the meta device, buffers are not."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        network = build_network(config)
    # Each parameter was replaced as it was assigned, also if another was meant.
    network.tie_weights()
    return network


def load_model_class() -> Any:
    """transformers' AutoModelForCausalLM, which takes seconds to import, with our attention and experts."""
    from transformers import AutoModelForCausalLM

    attention.register()
    experts.register()
    return AutoModelForCausalLM


def model_config(config: dict[str, Any]) -> Any:
    """The transformers config of a dictionary; remote code is never run."""
    load_model_class()
    from transformers import AutoConfig

    options = {name: _number(each) for name, each in config.items()}
    kind = options.pop("model_type", None)
    if not isinstance(kind, str):
        raise BadConfiguration("BadModel", "model_type is missing", f"{FIELD}.model_type")
    if "auto_map" in options:
        raise BadConfiguration("BadModel", "auto_map (remote code) is refused", FIELD)
    try:
        parsed = AutoConfig.for_model(kind, **options)
    except Exception as error:
        raise BadConfiguration("BadModel", in_words(error), FIELD) from error
    # The embedding of a padding token is never trained, nor that of an end token with the same id.
    parsed.pad_token_id = None
    parsed.use_cache = False
    return parsed


def _number(value: Any) -> Any:
    """What transformers reads for a value of a config.json: {"__float__": "Infinity"} is a number."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"} and value["__float__"] in (
            "Infinity",
            "-Infinity",
            "NaN",
        ):
            return float(value["__float__"])
        return {name: _number(each) for name, each in value.items()}
    return [_number(each) for each in value] if isinstance(value, list) else value


def longest_sequence(config: Any) -> tuple[str, int | None]:
    """The setting that says how many tokens a model reads at once, and what it says; None if nothing does."""
    for name in POSITIONS:
        found = getattr(config, name, None)
        if found is not None:
            return name, found
    return POSITIONS[0], None


def check_fits(config: Any, *, vocabulary: int, sequence_length: int) -> None:
    """Raises BadConfiguration if the model cannot read sequences of the data."""
    if config.vocab_size < vocabulary:
        raise BadConfiguration(
            "VocabularyTooSmall",
            f"the model's vocabulary of {config.vocab_size} is smaller than the tokenizer's "
            f"{vocabulary}",
            f"{FIELD}.vocab_size",
        )
    name, longest = longest_sequence(config)
    if longest is not None and longest < sequence_length:
        raise BadConfiguration(
            "SequenceTooLong",
            f"{name} {longest} is below the sequence length {sequence_length}",
            f"{FIELD}.{name}",
        )
    heads = getattr(config, "num_attention_heads", None)
    groups = getattr(config, "num_key_value_heads", None)
    if heads and isinstance(groups, int) and groups and heads % groups:
        message = f"{heads} attention heads do not divide into {groups} key/value heads"
        raise BadConfiguration("BadModel", message, f"{FIELD}.num_key_value_heads")


def check_trains_reproducibly(config: Any) -> None:
    """Raises BadConfiguration for a model that draws random numbers in training, as for dropout."""
    for name, value in {**config.to_dict(), **config.get_text_config().to_dict()}.items():
        if any(part in name for part in RANDOM) and isinstance(value, int | float) and value:
            message = f"{name} must be 0: a run must be reproducible from its seed and step alone"
            raise BadConfiguration("DropoutRefused", message, f"{FIELD}.{name}")


def check_counts(config: Any) -> None:
    """Raises BadConfiguration for a family without the numbers that training counts FLOPs and memory by."""
    if missing := [name for name in COUNTED if not hasattr(config, name)]:
        message = f"a model of type {config.model_type} cannot be trained: it has no {missing[0]}"
        raise BadConfiguration("BadModel", message, f"{FIELD}.model_type")


@torch.no_grad()
def check_computes(network: Any, sequence_length: int) -> None:
    """Raises BadConfiguration for a family whose logits are not what training takes them for, so that it would train
    another model, or that cannot be computed or balanced. `network` has its weights."""
    kind = network.config.model_type
    if kind in attention.FAMILIES:
        return
    model, training = LanguageModel(network, sequence_length), network.training
    probe = torch.arange(min(PROBE_TOKENS, sequence_length))[None] % model.head.shape[0]
    hooks = [
        router.register_forward_hook(_check_routing)
        for router in experts.routers_of(network).values()
    ]
    network.eval()
    try:
        theirs = network(probe, use_cache=False).logits.float().flatten(0, 1)
        changes = model.changes_logits(probe, theirs)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        message = f"a model of type {kind} cannot be trained: {in_words(error)}"
        raise BadConfiguration("BadModel", message[:600], f"{FIELD}.model_type") from error
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    if changes:
        message = (
            f"a model of type {kind} cannot be trained: it scales, caps or shifts its logits, which training takes as "
            "hidden states times a matrix"
        )
        raise BadConfiguration("BadModel", message, f"{FIELD}.model_type")


def _check_routing(_router: Any, _inputs: Any, outputs: Any) -> None:
    """Balance needs to know them (experts.py)."""
    if not isinstance(outputs, tuple) or len(outputs) != 3:
        raise TypeError("its routers do not return logits, weights and the chosen experts")


def count_parameters(network: Any) -> ParameterCounts:
    """Count by part. Experts are recognised by their stacked, three-dimensional matrices; what a multimodal model has
    beside its text decoder, and the tables it looks positions up in, take part in no matrix product of a text."""
    head = network.get_output_embeddings().weight
    embedding = network.get_input_embeddings().weight
    config = network.config.get_text_config()
    unused = {id(parameter) for parameter in _beside_products(network)}
    total = active = other = 0
    for name, parameter in network.named_parameters():
        if parameter is head or parameter is embedding:
            continue
        if id(parameter) in unused:
            other += parameter.numel()
        elif ".experts." in name and parameter.dim() == 3:
            total += parameter.numel()
            chosen = next(found for name in CHOSEN if (found := getattr(config, name, None)))
            active += parameter.numel() // parameter.shape[0] * chosen
        elif parameter.dim() >= 2 and "embed" not in name and not name.endswith("bias"):
            total += parameter.numel()
            active += parameter.numel()
        else:
            other += parameter.numel()
    return ParameterCounts(
        body_active=active,
        body_total=total,
        head=head.numel(),
        embedding=0 if embedding is head else embedding.numel(),
        other=other,
    )


def _beside_products(network: Any) -> Iterator[torch.Tensor]:
    """Of look-up tables, whatever they are called, and of towers that a text does not pass through."""
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            yield module.weight
    if network.config.get_text_config() is not network.config:
        of_text = {id(parameter) for parameter in network.get_decoder().parameters()}
        yield from (p for p in network.parameters() if id(p) not in of_text)
