"""Makes a random Llama of 3.4 million parameters, small enough for vLLM on a CPU: tiny_model.py OUT

Its answers are random, but it loads, batches, fills its KV cache and queues like a real model. Run this
script with the interpreter that has vLLM: it needs torch, transformers and tokenizers. Does nothing if OUT is
complete.
"""
# ruff: noqa: INP001  a script, not part of a package

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def english() -> Iterator[str]:
    """Return a text to learn words from that is on every machine: the prose in Python's own library."""
    library = Path(sysconfig.get_path("stdlib"))
    for name in (
        "argparse",
        "datetime",
        "decimal",
        "doctest",
        "inspect",
        "pickletools",
        "statistics",
        "typing",
    ):
        yield (library / f"{name}.py").read_text(encoding="utf-8")


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(english(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, **SPECIAL)
    fast.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    return fast


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    if (out / "model.safetensors").is_file():
        sys.exit()
    # Beside its place first, and the weights last: two who make it at once, or a crash, leave it whole.
    draft = out.with_name(f"{out.name}.{os.getpid()}")
    tokenizer().save_pretrained(draft)
    model().save_pretrained(draft)
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(draft.iterdir(), key=lambda file: file.name == "model.safetensors"):
        file.replace(out / file.name)
    draft.rmdir()
