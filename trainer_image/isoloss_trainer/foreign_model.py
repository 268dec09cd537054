"""Loads any transformers causal language model from a Hugging Face directory: safetensors only, no
code from elsewhere, nothing missing, nothing that is not a number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from isoloss.store import NotFound, Store
from isoloss_trainer import attention
from isoloss_trainer.loss import chunk_tokens
from isoloss_trainer.model import LanguageModel, load_model_class
from isoloss_trainer.termination import BadData

FIELD = "checkpoint.uri"
HUB = "hf://"
PROBE_TOKENS = 64


def fetch_directory(uri: str, scratch: Path) -> Path:
    """A local folder with the checkpoint: the place itself on a shared volume, else a copy.

    Only what is needed is copied: safetensors and JSON. Raises BadData(NotACheckpoint).
    """
    if uri.startswith(HUB):
        from huggingface_hub import snapshot_download

        name = uri.removeprefix(HUB)
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    store = Store(uri)
    names = [name for name in store.names("") if name.endswith((".json", ".safetensors"))]
    if "config.json" not in names:
        raise BadData("NotACheckpoint", f"{uri}: holds no config.json", FIELD)
    if not any(name.endswith(".safetensors") for name in names):
        raise BadData("NotACheckpoint", f"{uri}: holds no .safetensors file", FIELD)
    if uri.startswith("file://"):
        return Path(uri.removeprefix("file://"))
    folder = scratch / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            with (
                store.filesystem.open(
                    f"{store.filesystem._strip_protocol(uri)}/{name}", "rb"
                ) as source,
                (folder / name).open("wb") as target,
            ):
                shutil.copyfileobj(source, target, 16 * 2**20)
        except FileNotFoundError as error:
            raise NotFound(f"{uri}/{name}: not found") from error
    return folder


def load_network(folder: Path, uri: str, dtype: torch.dtype) -> Any:
    """The model in `folder`. Raises BadData naming `uri` where it is none or is broken."""
    import transformers

    model_type = _model_type(folder, uri)
    model_class = load_model_class(model_type)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        network, report = model_class.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # Whatever transformers or safetensors trip over is a property of the checkpoint.
        message = f"{uri}: {type(error).__name__}: {str(error)[:400]}"
        raise BadData("NotACheckpoint", message, FIELD) from error
    broken = sorted(
        {*report.get("missing_keys", ()), *map(str, report.get("mismatched_keys", ()))}
    )
    if broken:
        message = f"{uri}: {len(broken)} weights are missing or misshapen, first {broken[0]}"
        raise BadData("WeightsMissing", message, FIELD)
    for name, parameter in network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise BadData("NonFiniteWeights", f"{uri}: {name} is not finite", FIELD)
    return network


def load_weights(network: Any, uri: str, scratch: Path) -> None:
    """Give `network` the weights of the checkpoint at `uri`, in float32.

    Raises BadData(WeightsDiffer) unless name for name and shape for shape are the same.
    """
    theirs = load_network(fetch_directory(uri, scratch), uri, torch.float32)
    ours, given = network.state_dict(), theirs.state_dict()
    different = sorted(
        name
        for name in {*ours, *given}
        if name not in ours or name not in given or ours[name].shape != given[name].shape
    )
    if different or theirs.config.model_type != network.config.model_type:
        where = different[0] if different else "model_type"
        message = f"{uri}: is not of the shape that the point's model says, first {where}"
        raise BadData("WeightsDiffer", message, "initial_weights")
    network.load_state_dict(given)


def _model_type(folder: Path, uri: str) -> str:
    try:
        config = json.loads((folder / "config.json").read_bytes())
        kind = config["model_type"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        message = f"{uri}/config.json: {type(error).__name__}: {str(error)[:200]}"
        raise BadData("NotACheckpoint", message, FIELD) from error
    if "auto_map" in config:
        message = f"{uri}: needs code of its own (auto_map), which is never run"
        raise BadData("RemoteCodeRefused", message, FIELD)
    return str(kind)


class ForeignModel(LanguageModel):
    """A LanguageModel whose logits may be more than hidden states times a matrix (soft caps, scales):
    where a probe shows that, its own logits are used, one sequence at a time."""

    def __init__(self, network: Any, sequence_length: int) -> None:
        super().__init__(network, sequence_length)
        self._own_logits = False
        if self.config.model_type not in attention.FAMILIES:
            self._own_logits = not self._head_is_plain()

    @torch.no_grad()
    def _head_is_plain(self) -> bool:
        device = self.head.device
        probe = torch.arange(PROBE_TOKENS, device=device)[None] % self.head.shape[0]
        theirs = self.network(probe, use_cache=False).logits.float().flatten(0, 1)
        ours = (self.hidden(probe) @ self.head.T).float()
        return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-2, atol=1e-2)

    def token_losses(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Loss of every token, float32 [batch, S]."""
        if not self._own_logits:
            return super().token_losses(inputs, targets)
        rows = []
        for row, wanted in zip(inputs, targets, strict=True):
            logits = self.network(row[None], use_cache=False).logits[0]
            chunk = chunk_tokens(logits.shape[-1], row.device)
            parts = zip(logits.split(chunk), wanted.split(chunk), strict=True)
            losses = [
                torch.nn.functional.cross_entropy(part.float(), target, reduction="none")
                for part, target in parts
            ]
            rows.append(torch.cat(losses))
        return torch.stack(rows)
