"""A process of its own that trains a small model of transformers: ``python -m benchmarks.model_worker MODEL BACKEND
THREADS``, without a backend its name empty.

A line on its input asks for steps: "first" for the seconds of the very first and three steps' losses, "step" for the
seconds of one more. A line on its output answers, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS = 3  # whose losses are compared
BATCH, LENGTH, VOCABULARY = 8, 64, 1000
HIDDEN, LAYERS, HEADS = 128, 4, 4
TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    kept = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = ViTConfig(**sizes, **kept, intermediate_size=4 * HIDDEN, image_size=64, patch_size=8, num_labels=10)
    return ViTForImageClassification(config)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": LENGTH, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
    return GPT2LMHeadModel(GPT2Config(**TOKENS, **sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": HIDDEN, "intermediate_size": 3 * HIDDEN, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2, "max_position_embeddings": LENGTH}
    return LlamaForCausalLM(LlamaConfig(**TOKENS, **sizes, **heads))


# Without dropout, whose random numbers Inductor draws otherwise than eager code.
MODELS: dict[str, Callable[[], nn.Module]] = {"ViT": vit, "GPT-2": gpt2, "Llama": llama}


def batch(name: str) -> dict[str, torch.Tensor]:
    if name == "ViT":
        return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.randint(10, (BATCH,))}
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


class Training:
    """A model, its optimizer and one batch that it learns again and again."""

    def __init__(self, model: nn.Module, inputs: dict[str, torch.Tensor], backend: str):
        self.model, self.inputs, self.backend = model.train(), inputs, backend
        self.call: Callable[..., Any] | None = None
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self) -> float:
        if self.call is None:
            self.call = torch.compile(self.model, backend=self.backend) if self.backend else self.model
        self.optimizer.zero_grad()
        loss = self.call(**self.inputs).loss
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def first(self) -> dict[str, Any]:
        start = time.perf_counter()
        losses = [self.step()]
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "losses": losses + [self.step() for _ in range(STEPS - 1)]}

    def timed_step(self) -> float:
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start


def main() -> None:
    name, backend, threads = sys.argv[1:]
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    training = Training(MODELS[name](), batch(name), backend)
    for line in sys.stdin:
        print(json.dumps(training.first() if line.strip() == "first" else training.timed_step()), flush=True)


if __name__ == "__main__":
    main()
