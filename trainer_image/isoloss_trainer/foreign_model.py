"""Loads any transformers causal language model from a Hugging Face directory: safetensors only, no
remote code, no weights missing or left over, all of them finite."""

import inspect
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from isoloss_contract import model_settings
from isoloss_contract.json_text import RepeatedKey, read_json, why_unread
from isoloss_trainer import attention, block_scales
from isoloss_trainer.hub import directory
from isoloss_trainer.log import Log
from isoloss_trainer.loss import chunk_tokens
from isoloss_trainer.model import LanguageModel, differs, load_model_class, longest_sequence
from isoloss_trainer.shards import PATIENT
from isoloss_trainer.termination import (
    BadData,
    Interruption,
    OutOfMemory,
    in_words,
    is_out_of_memory,
)
from isoloss_trainer.world import World

FIELD = "checkpoint.uri"
LOCAL = "file://"
OF_A_TOKENIZER = (
    "tokenizer.*",
    "tokenizer_config.json",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)
"""Files of a checkpoint with a tokenizer of its own, of which tokenizer.json alone is read."""
WEIGHTS = "*.safetensors"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
FILES = ("*.json", WEIGHTS, *OF_A_TOKENIZER)
PROBE_TOKENS = 64
NUMBERS = ("F16", "BF16", "F32", "F64")
"""Types of weights, as safetensors names them; others are codes."""
COMPUTED = re.compile(
    r"\.(inv_freq|cos_cached|sin_cached|position_ids|masked_bias|causal_mask|_extra_state|attn(\.attention)?\.bias)$"
)
"""Masks, positions and scales of 8-bit training, which older or other code saved along with the weights."""
BESIDE_TEXT = re.compile(r"^(model\.)?(vision_model|vision_tower|multi_modal_projector)\.")
"""Weights of a model with a `text_config` that a text does not pass through."""
LAYER = re.compile(r"\.layers\.(\d+)\.")
OF_LATER_TOKENS = ".eh_proj.weight"
"""What a layer that predicts later tokens has and no other: it joins a token's embedding to the states before it."""
NAMED_WEIGHTS = 3
ROUNDED = 0.02
"""Relative difference of numbers that bfloat16 or float16 rounds."""


Fetched = Callable[[int], None]
"""Called with the bytes fetched so far, and may raise."""


def fetching(interruption: Interruption, log: Log) -> Fetched:
    """Logs how far a fetch is, and ends it when a stop is requested: it may take hours."""

    def fetched(size: int) -> None:
        log.progress("fetch", 0, 0, bytes=size)
        interruption.check()

    return fetched


def fetch_directory(uri: str, scratch: Path, fetched: Fetched = lambda _: None) -> Path:
    """A local folder with the checkpoint: the directory itself on a shared volume, else a copy of those of its files that
    match FILES, of weights those that are loaded. Raises BadData(NotACheckpoint), and what `fetched` raises between two
    parts of a file.
    """
    store, folder = directory(uri, FILES, PATIENT), scratch / "checkpoint"
    if store.uri.startswith(LOCAL):
        return Path(store.uri.removeprefix(LOCAL))
    # Files of another checkpoint would be read as part of this one.
    shutil.rmtree(folder, ignore_errors=True)
    size = 0

    def fetch(name: str) -> None:
        nonlocal size
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as target:
            for part in store.parts(name):
                size += target.write(part)
                fetched(size)

    names = store.names("")
    for name in names:
        if any(fnmatchcase(name, form) for form in FILES) and not fnmatchcase(name, WEIGHTS):
            fetch(name)
    for name in weight_files(folder, uri, lambda name: name in names or store.exists(name)):
        fetch(name)
    return folder


def weight_files(folder: Path, uri: str, exists: Callable[[str], bool]) -> list[str]:
    """Which of the files that are there transformers loads the weights from: a single file, or those that the index names,
    which `folder` has if there is one.

    Raises BadData(NotACheckpoint) where that is not what the checkpoint is: where a single file would be taken in place of
    newer shards, an adapter be passed over, or a file be missing.
    """
    if not exists("config.json"):
        raise _not_a_checkpoint(f"{uri}: no config.json")
    if adapter := next(filter(exists, ADAPTERS), None):
        raise _not_a_checkpoint(
            f"{uri}: {adapter} is of an adapter, which would be ignored: merge it into the model (with peft: "
            "model.merge_and_unload().save_pretrained(FOLDER)), or remove it to measure the model without it"
        )
    shards = _indexed(folder / INDEX, uri) if exists(INDEX) else None
    if exists(SINGLE):
        if shards is not None and shards != [SINGLE]:
            raise _not_a_checkpoint(
                f"{uri}: both {SINGLE} and {INDEX}, which names other files, and transformers would take the first: remove "
                f"{SINGLE} if the shards are the checkpoint, else {INDEX}"
            )
        return [SINGLE]
    if shards is None:
        raise _not_a_checkpoint(
            f"{uri}: neither {SINGLE} nor {INDEX}: save_pretrained(FOLDER) writes one of them; docs/reference/checkpoints.md has "
            "other trainers' files"
        )
    if missing := next((name for name in shards if not exists(name)), None):
        raise _not_a_checkpoint(f"{uri}: no {missing}, which {INDEX} names")
    return shards


def _indexed(file: Path, uri: str) -> list[str]:
    """The files that an index names, in order. Raises BadData(NotACheckpoint) for one that transformers cannot read."""
    where = f"{uri}/{INDEX}"
    try:
        # As transformers does: no mark before it.
        index = read_json(file.read_text("utf-8"))
        shards = sorted(set(index["weight_map"].values()))
    except RepeatedKey as error:
        raise _not_a_checkpoint(f"{where}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_a_checkpoint(
            f"{where}: no weight_map with a file for each weight ({str(error)[:100]})"
        ) from error
    if not shards:
        raise _not_a_checkpoint(f"{where}: its weight_map is empty")
    if not isinstance(index.get("metadata"), dict):
        raise _not_a_checkpoint(
            f'{where}: no metadata, which transformers asks for: add "metadata": {{}}'
        )
    for name in shards:
        parts = name.split("/")
        if not fnmatchcase(name, WEIGHTS) or {"", ".", ".."}.intersection(parts):
            raise _not_a_checkpoint(f"{where}: {name} is not a .safetensors file of this folder")
    return shards


def _not_a_checkpoint(message: str) -> BadData:
    return BadData("NotACheckpoint", message, FIELD)


@dataclass
class Checkpoint:
    """What the files of a checkpoint say before any weight is read."""

    folder: Path
    uri: str
    described: Mapping[str, Any]
    """config.json."""

    @classmethod
    def of(cls, folder: Path, uri: str) -> "Checkpoint":
        """Raises BadData if config.json names no type of model, or one that needs remote code."""
        try:
            described = read_json((folder / "config.json").read_text("utf-8"))
        except FileNotFoundError as error:
            raise _not_a_checkpoint(f"{uri}: no config.json") from error
        except (ValueError, RecursionError, OSError) as error:
            why = why_unread(error)
            raise _not_a_checkpoint(
                f"{uri}/config.json: no JSON, or not all of it: {why}"
            ) from error
        kind = described.get("model_type") if isinstance(described, dict) else None
        if not isinstance(kind, str):
            raise _not_a_checkpoint(f"{uri}/config.json: names no model_type")
        if "auto_map" in described and not _is_native(kind):
            message = f"{uri}: {kind} needs remote code (auto_map), which is never run"
            raise BadData("RemoteCodeRefused", message, FIELD)
        _refuse_unknown(kind, uri)
        return cls(folder, uri, described)

    @property
    def of_text(self) -> Mapping[str, Any]:
        """Settings of the model that reads text."""
        text = self.described.get("text_config")
        return text if isinstance(text, dict) else self.described

    @cached_property
    def config(self) -> Any:
        """What transformers makes of config.json, but for how the machine that wrote it computed, and in which form models
        answer."""
        from transformers import AutoConfig

        # The type that it names need not be one of torch's: weights are read in the type that computes.
        options = {"local_files_only": True, "trust_remote_code": False, "dtype": torch.float32}
        config = AutoConfig.from_pretrained(self.folder, **options)
        config._attn_implementation = None
        for each in (config, config.get_text_config()):
            each.return_dict = True
        return config

    @property
    def model_class(self) -> Any:
        """That of causal language models; of models around one, such as Mistral 3, that are none by their name another."""
        causal, kind = load_model_class(), str(self.described["model_type"])
        from transformers import AutoModelForImageTextToText
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        is_around_one = kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and _is_native(kind)
        return AutoModelForImageTextToText if is_around_one else causal

    @cached_property
    def stored(self) -> dict[str, Any]:
        """What safetensors tells, without reading it, of each tensor that is loaded. Raises BadData(NotACheckpoint) as
        `weight_files`, and if two files have one name for different tensors, of which transformers takes the last,
        whatever the index says."""
        found: dict[str, Any] = {}
        former: dict[str, tuple[str, Any]] = {}
        for file in weight_files(
            self.folder, self.uri, lambda name: (self.folder / name).exists()
        ):
            tensors = self._opened(file)
            for name in tensors.keys():  # noqa: SIM118 (no mapping)
                other, theirs = former.setdefault(name, (file, tensors))
                if other != file and not torch.equal(
                    theirs.get_tensor(name), tensors.get_tensor(name)
                ):
                    raise _not_a_checkpoint(
                        f"{self.uri}: {name} is in {other} and, with other numbers, in {file}: take it out of the one that is "
                        "not meant"
                    )
                found[name] = tensors.get_slice(name)
        return found

    def _opened(self, file: str) -> Any:
        """Raises BadData(NotACheckpoint) with the file's name, of which the library says nothing."""
        try:
            return safe_open(self.folder / file, framework="pt")
        except SafetensorError as error:
            raise _not_a_checkpoint(
                f"{self.uri}/{file}: no safetensors file, or not all of it ({error}), as a pointer of Git LFS or a copy that was "
                "cut short: copy it again"
            ) from error


def _refuse_unknown(model_type: str, uri: str) -> None:
    import transformers

    if model_type not in transformers.CONFIG_MAPPING:
        raise _not_a_checkpoint(
            f"{uri}/config.json: model_type is {model_type}, which transformers {transformers.__version__}, the trainer's, does "
            "not have"
        )


def _is_native(model_type: str) -> bool:
    """Whether transformers itself has the model: many checkpoints name code from before it had."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    names = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return any(model_type in each for each in names)


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Any error of transformers or safetensors is about the checkpoint."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory("OutOfMemory", f"{uri}: {str(error)[:400]}", FIELD) from error
        raise _not_a_checkpoint(f"{uri}: transformers cannot use it: {in_words(error)}") from error


def check_config(folder: Path, uri: str, sequence_length: int) -> Checkpoint:
    """Raises BadData(NotACheckpoint) if transformers would read sequences of this length in another way than config.json
    says."""
    checkpoint = Checkpoint.of(folder, uri)
    with _named(uri):
        _refuse_encoders(checkpoint.config, uri)
        if why := contradiction(checkpoint.described, checkpoint.config, sequence_length):
            raise _not_a_checkpoint(f"{uri}/config.json: {why}")
    return checkpoint


def load_shapes(folder: Path, uri: str, dtype: torch.dtype, sequence_length: int) -> Any:
    """The model in `folder` without its weights, on the meta device. Raises BadData as check_config, and for weights that
    are no numbers."""
    checkpoint = check_config(folder, uri, sequence_length)
    with _named(uri), torch.device("meta"):
        network = checkpoint.model_class.from_config(
            checkpoint.config, dtype=dtype, trust_remote_code=False
        )
        if network.get_output_embeddings() is None:
            raise _bad_family(checkpoint.config, uri, "has no output matrix")
        if why := uncapped(network):
            raise _not_a_checkpoint(f"{uri}/config.json: {why}")
    with _named(uri):
        check_numbers(checkpoint)
    return network


def _refuse_encoders(config: Any, uri: str) -> None:
    """Encoders can be loaded as causal models, and then see the tokens that they are to predict."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if getattr(config.get_text_config(), "is_causal", True) is False:
        raise _bad_family(config, uri, "sees later tokens, since is_causal is false")
    encodes = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if encodes and not getattr(config, "is_decoder", False):
        raise _bad_family(config, uri, "is trained to fill in words, not to predict the next one")
    if getattr(config, "is_encoder_decoder", False):
        raise _bad_family(config, uri, "has an encoder, for which there is no input")


def _bad_family(config: Any, uri: str, why: str) -> BadData:
    return _not_a_checkpoint(f"{uri}: a model of type {config.model_type} {why}")


def check_numbers(checkpoint: Checkpoint) -> None:
    """Raises BadData(NotACheckpoint) that names a weight in few bits without its meaning, whose codes transformers would
    take for the numbers, or scales that do not fit, of which it tells its log alone. Masks are in integers, too."""
    described, stored = checkpoint.described, checkpoint.stored
    in_blocks = block_scales.is_in_blocks(described)
    if "quantization_config" in described and not in_blocks:
        return
    block = block_scales.block_size(described) if in_blocks else None
    for name, each in stored.items():
        if not name.endswith("weight"):
            continue
        scales = stored.get(f"{name.removesuffix('.weight')}{block_scales.SCALES}")
        kind = each.get_dtype()
        if in_blocks and scales is not None:
            try:
                block_scales.steps(each.get_shape(), scales.get_shape(), block)
            except ValueError as error:
                raise _not_a_checkpoint(f"{checkpoint.uri}: {name}: {error}") from error
        elif kind not in NUMBERS:
            lacks = (
                "no file has its scales" if in_blocks else "config.json has no quantization_config"
            )
            raise _not_a_checkpoint(f"{checkpoint.uri}: {name} is in {kind}, and {lacks}")


def load_network(
    folder: Path, uri: str, dtype: torch.dtype, device_map: dict[str, int] | None = None
) -> Any:
    """The model in `folder`, on the accelerators of `device_map` (module names to numbers) or the CPU.

    Raises BadData naming `uri` if it is not a checkpoint or broken, OutOfMemory if it does not fit.
    """
    import transformers

    checkpoint = Checkpoint.of(folder, uri)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with _named(uri), _as_numbers(checkpoint) as config:
        network, report = checkpoint.model_class.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map=device_map,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused here, by name
        )
    _refuse_incomplete(report, uri)
    _refuse_unexpected(report, checkpoint, network)
    _refuse_other_positions(checkpoint, network)
    _refuse_untied(network, uri)
    if block_scales.is_in_blocks(checkpoint.described):
        # What is not in blocks keeps the type that it is stored in.
        for parameter in network.parameters():
            parameter.data = parameter.data.to(dtype)
    for name, parameter in network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadData("NonFiniteWeights", f"{uri}: {name} is not finite", FIELD)
    return network


@contextmanager
def _as_numbers(checkpoint: Checkpoint) -> Iterator[Any]:
    """The configuration to load a checkpoint by: weights that have scales of blocks, as the numbers that they stand for on
    every machine."""
    check_numbers(checkpoint)
    described, config = checkpoint.described, checkpoint.config
    if block_scales.is_in_blocks(described):
        config.quantization_config = {**described["quantization_config"], "dequantize": True}
        with block_scales.dequantizing(block_scales.block_size(described)):
            yield config
        return
    try:
        yield config
    except ImportError as error:
        why = model_settings.quantization_refusal(described)
        if why is None:
            raise
        raise _not_a_checkpoint(f"{checkpoint.uri}: {why}") from error


def _refuse_incomplete(report: Mapping[str, Any], uri: str) -> None:
    """Raises BadData(WeightsMissing) for what transformers would draw at random."""
    if shapes := sorted(report.get("mismatched_keys", ())):
        name, theirs, ours = shapes[0]
        message = (
            f"{uri}: {len(shapes)} of the weights have another shape than config.json gives them: {name} is "
            f"{list(theirs)}, and {list(ours)} by config.json"
        )
        raise BadData("WeightsMissing", message, FIELD)
    if missing := sorted(report.get("missing_keys", ())):
        unknown = sorted(report.get("unexpected_keys", ()))
        instead = f"; the files have {unknown[0]} and others instead" if unknown else ""
        if missing == ["lm_head.weight"]:
            instead = "; if the model has the embeddings in its place, set tie_word_embeddings to true in config.json"
        message = f"{uri}: {len(missing)} weights are missing, first {missing[0]}{instead}"
        raise BadData("WeightsMissing", message, FIELD)


def _refuse_unexpected(report: Mapping[str, Any], checkpoint: Checkpoint, network: Any) -> None:
    """Raises BadData for weights that the model has no place for, and that mean something."""
    uri, described = checkpoint.uri, checkpoint.described
    last = max((_layer_of(name) for name, _ in network.named_parameters()), default=-1)
    # transformers itself leaves out layers behind the last at a family's published depths alone, whatever they are.
    behind = [name for name in checkpoint.stored if 0 <= last < _layer_of(name)]
    later = _of_later_tokens(checkpoint.of_text, behind)
    beside_text = BESIDE_TEXT if "text_config" in described else COMPUTED
    unknown = {
        name
        for name in (*behind, *report.get("unexpected_keys", ()))
        if not (COMPUTED.search(name) or beside_text.search(name) or _layer_of(name) in later)
    }
    if not unknown:
        return
    # With code of its own it may be another model under a known name: its weights show it.
    remote = "auto_map" in described
    named = "config.json names remote code (auto_map), which is never run; " if remote else ""
    first = sorted(unknown)[:NAMED_WEIGHTS]
    message = (
        f"{uri}: {named}the model that config.json describes has no place for {len(unknown)} of the weights "
        f"({', '.join(first)}{', …' if len(unknown) > NAMED_WEIGHTS else ''}): without them it would be another model than "
        "the one that was trained"
    )
    if further := sorted({_layer_of(name) for name in unknown.intersection(behind)}):
        count = checkpoint.of_text.get("num_hidden_layers")
        message += (
            f". num_hidden_layers is {count}, and the files have layer {further[0]}, too: correct num_hidden_layers, or "
            "write num_nextn_predict_layers if such layers predict later tokens"
        )
    raise BadData("RemoteCodeRefused" if remote else "WeightsUnexpected", message, FIELD)


def _layer_of(name: str) -> int:
    """The number of the layer that has this weight; -1: none has it."""
    layer = LAYER.search(name)
    return int(layer[1]) if layer else -1


def _of_later_tokens(settings: Mapping[str, Any], behind: Iterable[str]) -> set[int]:
    """Which layers, of these weights `behind` the last one, predict later tokens: those that config.json counts, and those
    that have what no other layer has."""
    first, count = settings.get("num_hidden_layers"), settings.get("num_nextn_predict_layers")
    counted: Iterable[int] = ()
    if isinstance(first, int) and isinstance(count, int):
        counted = range(first, first + count)
    return {*counted, *(_layer_of(name) for name in behind if name.endswith(OF_LATER_TOKENS))}


def _refuse_other_positions(checkpoint: Checkpoint, network: Any) -> None:
    """Raises BadData(NotACheckpoint) if rotary frequencies that older code saved along are of another base than config.json
    says, by which they are computed again."""
    computed = [each for name, each in network.named_buffers() if name.endswith(".inv_freq")]
    rope = getattr(network.config.get_text_config(), "rope_parameters", None) or {}
    if len(computed) != 1 or rope.get("rope_type") != "default":
        return
    ours = computed[0].double().cpu()
    for name, each in checkpoint.stored.items():
        if not name.endswith(".inv_freq") or each.get_shape() != list(ours.shape):
            continue
        theirs = each[:].double()
        if not torch.allclose(theirs, ours, rtol=ROUNDED):
            base = float(theirs[1] / theirs[0]) ** -len(theirs)
            raise _not_a_checkpoint(
                f"{checkpoint.uri}: {name} is of rotary positions of base {base:.4g}, and config.json says {rope['rope_theta']:.4g}: "
                "correct rope_theta"
            )


def _refuse_untied(network: Any, uri: str) -> None:
    """Raises BadData(NotACheckpoint) for a matrix that config.json ties to another, and whose file has numbers of its own:
    transformers 5 takes these, transformers 4 those of the other matrix."""
    if not getattr(network.config.get_text_config(), "tie_word_embeddings", True):
        # Mistral 3 around images ties by default, and its text decoder does not: both versions take the file's.
        return
    weights = dict(network.named_parameters(remove_duplicate=False))
    if found := untied(network, weights):
        raise _not_a_checkpoint(
            f"{uri}: {found[0]} is not {found[1]}, to which config.json ties it: set tie_word_embeddings to false there if it "
            f"was trained as a matrix of its own, else take {found[0]} out of the files"
        )


def untied(network: Any, weights: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
    """Two of the `weights` that `network` takes for one, and that differ; None if there are none."""
    for name, other in network.get_expanded_tied_weights_keys(all_submodels=True).items():
        ours, theirs = weights.get(name), weights.get(other)
        if ours is None or theirs is None or ours is theirs:
            continue
        if not torch.equal(ours, theirs.to(ours.device)):
            return name, other
    return None


def load_weights(
    network: Any,
    uri: str,
    scratch: Path,
    world: World,
    fetched: Fetched = lambda _: None,
    check: Callable[[Path], None] = lambda _: None,
) -> None:
    """Give `network`, whose own may be on the meta device, the weights of the checkpoint at `uri` in rank 0, in the
    type that they are kept in. Raises BadData(WeightsDiffer) unless all names and shapes match, and ties hold, in
    every process, and what `fetched`, and `check` of its folder, raise there.
    """

    def take() -> None:
        folder = fetch_directory(uri, scratch, fetched)
        check(folder)
        _take_weights(network, folder, uri)

    world.of_first(take)


def _take_weights(network: Any, folder: Path, uri: str) -> None:
    kinds = {each.get_dtype() for each in Checkpoint.of(folder, uri).stored.values()}
    # Half the host's memory if all tensors are bfloat16; float32 holds any.
    dtype = torch.bfloat16 if kinds == {"BF16"} else torch.float32
    theirs = load_network(folder, uri, dtype)
    given = _of_text(theirs)
    # Buffers are not weights: they are computed with, and the balance of experts changes them, as they are.
    buffers = {name for name, _ in network.named_buffers()}
    kept = {name: t.float() if name in buffers else t for name, t in given.items()}
    why = ""
    if theirs.config.get_text_config().model_type != network.config.model_type:
        why = "in model_type"
    elif found := untied(network, given):
        why = (
            f"in that {found[0]} is not {found[1]}, to which config.json ties it; if it is meant to be another, set "
            "tie_word_embeddings to false there"
        )
    else:
        try:
            network.load_state_dict(kept, assign=True)
        except RuntimeError as error:
            why = f"in names or shapes of weights: {str(error)[:400]}"
    if why:
        message = f"{uri}: differs from the point's model {why}"
        raise BadData("WeightsDiffer", message, "initial_weights")
    network.tie_weights()


def _of_text(network: Any) -> dict[str, torch.Tensor]:
    """The weights of a model; of one that reads more than text those of its decoder, as that alone names them."""
    if network.config.get_text_config() is network.config:
        return dict(network.state_dict())
    decoder = network.get_decoder().state_dict()
    head = network.get_output_embeddings().state_dict()
    return {
        **{f"model.{name}": each for name, each in decoder.items()},
        **{f"lm_head.{name}": each for name, each in head.items()},
    }


class ForeignModel(LanguageModel):
    """A LanguageModel whose logits may be more than hidden states times a matrix (soft caps, scales):
    if config or a probe shows that, its own logits are used, one sequence at a time."""

    def __init__(self, network: Any, longest: int, uri: str = "") -> None:
        """`longest`: tokens of the longest sequence that it will read. Raises BadData, which names `uri`, if the
        model cannot compute, or sees later tokens than it should."""
        super().__init__(network, longest)
        self.first_tokens: tuple[int, ...] = ()
        """Put before every sequence, as some checkpoints have seen it all through their training."""
        self._own_logits = False
        if not self.head.is_meta:
            with _named(f"{uri} ({self.config.model_type})"), torch.no_grad():
                self._probe(uri)

    def _probe(self, uri: str) -> None:
        device = self.network.get_input_embeddings().weight.device
        size = min(PROBE_TOKENS, self.longest_input)
        half = size // 2
        probe = torch.arange(size, device=device)[None] % self.head.shape[0]
        if self.config.model_type in attention.FAMILIES:
            self.hidden(probe)  # raises if settings do not fit one another
            return
        theirs = self.network(probe, use_cache=False).logits.float().flatten(0, 1)
        self._own_logits = self.changes_logits(probe, theirs)
        later = (probe[:, half:] + size) % self.head.shape[0]
        changed = torch.cat([probe[:, :half], later], 1)
        again = self.network(changed, use_cache=False).logits.float().flatten(0, 1)
        # A router may send a token to another expert if two are nearly as good.
        if differs(theirs[:half], again[:half]).float().mean() > 0.5:
            raise _bad_family(self.config, uri, "sees later tokens than the one it predicts from")

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """As LanguageModel.hidden, in the head's type: states of some families are float32 beside other weights."""
        return super().hidden(inputs).to(self.head.dtype)

    @property
    def longest_input(self) -> int:
        """Tokens that the checkpoint takes at once; a very large number if its positions have no end."""
        _, limit = longest_sequence(self.config)
        return int(limit) if limit and limit > 0 else 2**31

    def token_losses(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Loss of every token, float32 [batch, S]."""
        first = torch.tensor(self.first_tokens, dtype=inputs.dtype, device=inputs.device)
        room = self.longest_input - inputs.shape[1]
        if room < len(first):  # the first input is context alone
            first, inputs = first[: room + 1], inputs[:, 1:]
        inputs = torch.cat([first.expand(len(inputs), -1), inputs], 1)
        # What the first tokens are followed by is context, not a target.
        context = inputs.shape[1] - targets.shape[1]
        filled = torch.cat([inputs[:, 1 : context + 1], targets], 1)
        return self._losses(inputs, filled)[:, context:]

    def _losses(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not self._own_logits:
            return super().token_losses(inputs, targets)
        rows = []
        for row, wanted in zip(inputs, targets, strict=True):
            logits = self.network(row[None], use_cache=False).logits[0]
            chunk = chunk_tokens(logits.shape[-1], row.device)
            wanted = wanted.to(logits.device)
            parts = zip(logits.split(chunk), wanted.split(chunk), strict=True)
            losses = [
                torch.nn.functional.cross_entropy(part.float(), target, reduction="none")
                for part, target in parts
            ]
            rows.append(torch.cat(losses))
        return torch.stack(rows)


# ------------------------------------------------- what config.json says that transformers does not read
# transformers takes a setting that it does not know without a word and computes with its default: another model than the one
# that was trained, with a loss that looks like any other.


SYNONYMS: Final[tuple[tuple[str, ...], ...]] = (
    ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "norm_epsilon"),
    ("hidden_act", "hidden_activation", "activation_function"),
    ("rope_theta", "rotary_emb_base", "rotary_base", "rope_base"),
    ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "num_selected_experts"),
)  # fmt: skip
"""Names of one setting, of which each family reads one or two."""
ONLY: Final = {
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    "glm4_moe": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}
"""Settings that transformers takes for granted, and the value that it computes with."""


def contradiction(described: Mapping[str, Any], config: Any, sequence_length: int) -> str | None:
    """Why transformers would build another model than the one that config.json describes, for sequences of so many tokens;
    None if nothing shows it.

    `described`: config.json; `config`: what transformers makes of it.
    """
    text = described.get("text_config")
    settings, read = text if isinstance(text, dict) else described, config.get_text_config()
    found = _other_architecture(described, config) or _rope(settings, read)
    return found or next(_unread(settings, read, sequence_length), None)


def uncapped(network: Any) -> str | None:
    """Why a model around the one of its text_config, which reads images too, computes other logits than that one; None if it
    does not. Its own class has to name a cap on logits."""
    text = network.config.get_text_config()
    if text is network.config:
        return None
    source = inspect.getsource(type(network))
    for name in model_settings.LOGIT_CAPS:
        cap = getattr(text, name, None)
        if cap and name not in source:
            kind = type(network).__name__
            return f"{name} is {json.dumps(cap)} in text_config, and transformers' {kind} caps nothing: give the text's model alone"
    return None


def _other_architecture(described: Mapping[str, Any], config: Any) -> str | None:
    from transformers.models.auto.configuration_auto import model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, found = config.model_type, described.get("architectures")
    named = found if isinstance(found, list) else []
    families = {
        model_type_to_module_name(theirs)
        for theirs, model in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
        if model in named
    }
    if not families or model_type_to_module_name(kind) in families:
        return None
    return (
        f"architectures names {named[0]}, and model_type is {kind}, by which the weights would be read: correct the one that "
        "is wrong"
    )


def _rope(settings: Mapping[str, Any], config: Any) -> str | None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if kind not in (*ROPE_INIT_FUNCTIONS, "default", None):
        return f"transformers has no rope_type {kind!r}: it has {', '.join(ROPE_INIT_FUNCTIONS)}"
    return model_settings.rope_contradiction(settings) or _base(settings, config)


def _base(settings: Mapping[str, Any], config: Any) -> str | None:
    """The base of rotary positions where transformers reads another one for some layers, or for all."""
    theta, read = settings.get("rope_theta"), getattr(config, "rope_parameters", None) or {}
    has_two = isinstance(getattr(config, "default_theta", None), dict)
    if theta is None or settings.get("rope_parameters") or has_two:
        return None
    for layers, each in ({"all layers": read} if "rope_theta" in read else read).items():
        if (base := each.get("rope_theta")) != theta:
            return (
                f"rope_theta is {theta}, and transformers' {config.model_type} reads {base} for {layers}: write rope_parameters, "
                "with a rope_theta and a rope_type for each kind of layer"
            )
    return None


def _unread(settings: Mapping[str, Any], config: Any, sequence_length: int) -> Iterator[str]:
    """Settings that change what a model computes, and that the source of this one does not name."""
    kind, source = config.model_type, _source(config)
    rope, part = settings.get("rope_parameters"), "partial_rotary_factor"
    if isinstance(rope, dict) and part in rope:
        settings = {part: rope[part], **settings}
    stated = {name: each for name, each in settings.items() if each is not None}
    unread = {name for name in stated if name not in source}
    for names in SYNONYMS:
        # Generic code reads rope_theta.
        read = next((name for name in names if name in source or name == "rope_theta"), None)
        if read is None:
            continue
        unread.difference_update(names)
        given = {name: stated[name] for name in names if name in stated}
        value = _value(config, read)
        if given and value is not None and value not in given.values():
            name = min(given)
            yield (
                f"{name} is {json.dumps(given[name])}, which transformers' model of type {kind} does not read: it reads {read}, "
                f"which would be {json.dumps(value)}. Rename it"
            )
    for name in sorted(unread):
        if model_settings.has_effect(name, settings, sequence_length):
            yield model_settings.unread(name, settings[name], kind)
    for name, value in ONLY.get(kind, {}).items():
        if settings.get(name) not in (None, value):
            yield f"{name} is {json.dumps(settings[name])}, and transformers' model of type {kind} computes with {json.dumps(value)} alone"


def _source(config: Any) -> str:
    """Of a family's configuration and of its model, which some families take from another one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    home = type(config).__module__
    own = home.replace(".configuration_", ".modeling_")
    model = own if find_spec(own) else MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__module__
    return "".join(inspect.getsource(import_module(name)) for name in (home, model))


def _value(config: Any, name: str) -> Any:
    found = getattr(config, name, None)
    return (getattr(config, "rope_parameters", None) or {}).get(name) if found is None else found
