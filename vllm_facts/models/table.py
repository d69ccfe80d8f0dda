"""Well-known models, one line each: the facts in their `config.json`, and their parameters.

Transcribed from the models' own config files and cards. `-` is an
uncertain number that is left out. The order of the columns:

key           beginning of the name in lower case; several with commas
billions      parameters, 10**9; then of them for one token
layers        decoder layers; after a slash those with a KV cache, if other layers have a recurrent state
hidden, heads, kv heads, head dim
vocab         size; with a star if embedding and output are one matrix
experts       for one token / routed ones of a layer
max_len       max_position_embeddings
stored        quantization as published; `16bit` if there is none
"""

from dataclasses import dataclass

_TABLE = """
= LlamaForCausalLM
tinyllama-1.1b                     1.100 -     22  2048  32  4  64  32000   -     2048    16bit
llama-2-7b                         6.738 -     32  4096  32 32 128  32000   -     4096    16bit
codellama-7b                       6.738 -     32  4096  32 32 128  32016   -     16384   16bit
llama-2-13b                       13.016 -     40  5120  40 40 128  32000   -     4096    16bit
llama-2-70b                       68.977 -     80  8192  64  8 128  32000   -     4096    16bit
llama-3-8b                         8.030 -     32  4096  32  8 128 128256   -     8192    16bit
llama-3-70b                       70.554 -     80  8192  64  8 128 128256   -     8192    16bit
llama-3.1-8b                       8.030 -     32  4096  32  8 128 128256   -     131072  16bit
llama-3.1-nemotron-nano-8b         8.030 -     32  4096  32  8 128 128256   -     131072  16bit
deepseek-r1-distill-llama-8b       8.030 -     32  4096  32  8 128 128256   -     131072  16bit
llama-3.1-70b,llama-3.3-70b       70.554 -     80  8192  64  8 128 128256   -     131072  16bit
llama-3.1-nemotron-70b            70.554 -     80  8192  64  8 128 128256   -     131072  16bit
deepseek-r1-distill-llama-70b     70.554 -     80  8192  64  8 128 128256   -     131072  16bit
llama-3.1-405b                   405.853 -    126 16384 128  8 128 128256   -     131072  16bit
llama-3.2-1b                       1.236 -     16  2048  32  8  64 128256*  -     131072  16bit
llama-3.2-3b                       3.213 -     28  3072  24  8 128 128256*  -     131072  16bit
= Llama4ForConditionalGeneration
llama-4-scout-17b-16e            108.642 17.2  48  5120  40  8 128 202048   1/16  10485760 16bit
llama-4-scout                    108.642 17.2  48  5120  40  8 128 202048   1/16  10485760 16bit
llama-4-maverick-17b-128e        401.584 17.2  48  5120  40  8 128 202048   1/128 1048576 16bit
llama-4-maverick                 401.584 17.2  48  5120  40  8 128 202048   1/128 1048576 16bit
= OPTForCausalLM
opt-125m                           0.125 -     12   768  12 12  64  50272*  -     2048    16bit
= Qwen2ForCausalLM
qwen2.5-0.5b,qwen2.5-coder-0.5b    0.494 -     24   896  14  2  64 151936*  -     32768   16bit
qwen2.5-1.5b,qwen2.5-coder-1.5b    1.544 -     28  1536  12  2 128 151936*  -     32768   16bit
qwen2.5-3b,qwen2.5-coder-3b        3.086 -     36  2048  16  2 128 151936*  -     32768   16bit
qwen2.5-7b,qwen2.5-coder-7b        7.616 -     28  3584  28  4 128 152064   -     32768   16bit
qwen2.5-14b,qwen2.5-coder-14b     14.770 -     48  5120  40  8 128 152064   -     32768   16bit
qwen2.5-32b,qwen2.5-coder-32b     32.764 -     64  5120  40  8 128 152064   -     32768   16bit
qwen2.5-72b                       72.706 -     80  8192  64  8 128 152064   -     32768   16bit
qwq-32b                           32.764 -     64  5120  40  8 128 152064   -     -       16bit
deepseek-r1-distill-qwen-1.5b      1.777 -     28  1536  12  2 128 151936   -     131072  16bit
deepseek-r1-distill-qwen-7b        7.616 -     28  3584  28  4 128 152064   -     131072  16bit
deepseek-r1-distill-qwen-14b      14.770 -     48  5120  40  8 128 152064   -     131072  16bit
deepseek-r1-distill-qwen-32b      32.764 -     64  5120  40  8 128 152064   -     131072  16bit
= Qwen3ForCausalLM
qwen3-0.6b                         0.596 -     28  1024  16  8 128 151936*  -     40960   16bit
qwen3-1.7b                         1.721 -     28  2048  16  8 128 151936*  -     40960   16bit
qwen3-4b                           4.022 -     36  2560  32  8 128 151936*  -     40960   16bit
qwen3-8b                           8.191 -     36  4096  32  8 128 151936   -     40960   16bit
deepseek-r1-0528-qwen3-8b          8.191 -     36  4096  32  8 128 151936   -     131072  16bit
qwen3-14b                         14.768 -     40  5120  40  8 128 151936   -     40960   16bit
qwen3-32b                         32.762 -     64  5120  64  8 128 151936   -     40960   16bit
= Qwen3VLForConditionalGeneration
qwen3-vl-2b                        2.127 -     28  2048  16  8 128 151936*  -     262144  16bit
= Qwen3MoeForCausalLM
qwen3-30b-a3b                     30.532 3.35  48  2048  32  4 128 151936   8/128 40960   16bit
qwen3-coder-30b-a3b               30.532 3.35  48  2048  32  4 128 151936   8/128 262144  16bit
qwen3-235b-a22b                  235.094 22.2  94  4096  64  4 128 151936   8/128 40960   16bit
qwen3-coder-480b-a35b            480.155 35.5  62  6144  96  8 128 151936   8/160 262144  16bit
= Qwen3NextForCausalLM
qwen3-next-80b-a3b                79.7   3.9   48/12 2048 16 2 256 151936  10/512 262144  16bit
= Qwen3_5ForConditionalGeneration
qwen3.5-27b                       27.8   -     64/16 5120 24 4 256 248320   -     262144  16bit
= Qwen3_5MoeForConditionalGeneration
qwen3.5-35b-a3b,qwen3.6-35b-a3b   35.1   3.0   40/10 2048 16 2 256 248320   8/256 262144  16bit
qwen3.5-397b-a17b                397.0  17.0   60/15 4096 32 2 256 248320  10/512 262144  16bit
= MistralForCausalLM
mistral-7b                         7.248 -     32  4096  32  8 128  32768   -     32768   16bit
mistral-nemo                      12.248 -     40  5120  32  8 128 131072   -     -       16bit
mistral-small-24b                 23.572 -     40  5120  32  8 128 131072   -     32768   16bit
mistral-large                    122.610 -     88 12288  96  8 128  32768   -     -       16bit
= Mistral3ForConditionalGeneration
mistral-small-3.1-24b             24.011 -     40  5120  32  8 128 131072   -     131072  16bit
mistral-small-3.2-24b             24.011 -     40  5120  32  8 128 131072   -     131072  16bit
= MixtralForCausalLM
mixtral-8x7b                      46.703 12.88 32  4096  32  8 128  32000   2/8   32768   16bit
mixtral-8x22b                    140.621 39.15 56  6144  48  8 128  32768   2/8   65536   16bit
= DeepseekV2ForCausalLM latent=576
deepseek-v2-lite                  15.706 2.66  27  2048  16 16 192 102400   6/64  163840  16bit
deepseek-coder-v2-lite            15.706 2.66  27  2048  16 16 192 102400   6/64  163840  16bit
= DeepseekV3ForCausalLM latent=576
deepseek-v3,deepseek-r1,deepseek-v3.1  671.026 37.55 61 7168 128 128 192 129280 8/256 163840 fp8
kimi-k2                         1026.47 32.86  61  7168  64 64 192 163840   8/384 131072  fp8
kimi-k2-thinking                1026.47 32.86  61  7168  64 64 192 163840   8/384 262144  w4a16
= KimiK25ForConditionalGeneration latent=576
kimi-k2.5                       1026.9  32.86  61  7168  64 64 192 163840   8/384 262144  w4a16
= DeepseekV32ForCausalLM latent=576
deepseek-v3.2                    671.9  37.6   61  7168 128 128 192 129280  8/256 163840  fp8
= KimiLinearForCausalLM latent=576
kimi-linear-48b-a3b               49.1   3.0   27/7 2304 32 32 192 163840   8/256 1048576 16bit
= Gemma2ForCausalLM
gemma-2-2b                         2.614 -     26  2304   8  4 256 256000*  -     8192    16bit
gemma-2-9b                         9.242 -     42  3584  16  8 256 256000*  -     8192    16bit
gemma-2-27b                       27.227 -     46  4608  32 16 128 256000*  -     8192    16bit
= Gemma3ForCausalLM
gemma-3-1b                         1.000 -     26  1152   4  1 256 262144*  -     32768   16bit
= Gemma3ForConditionalGeneration
gemma-3-4b                         4.300 -     34  2560   8  4 256 262208*  -     131072  16bit
gemma-3-12b                       12.187 -     48  3840  16  8 256 262208*  -     131072  16bit
gemma-3-27b                       27.432 -     62  5376  32 16 128 262208*  -     131072  16bit
= Phi3ForCausalLM
phi-3-mini                         3.821 -     32  3072  32 32  96  32064   -     -       16bit
phi-3.5-mini                       3.821 -     32  3072  32 32  96  32064   -     131072  16bit
phi-4                             14.660 -     40  5120  40 10 128 100352   -     16384   16bit
phi-4-mini                         3.836 -     32  3072  24  8 128 200064*  -     131072  16bit
= GptOssForCausalLM
gpt-oss-20b                       20.915 3.61  24  2880  64  8  64 201088   4/32  131072  mxfp4
gpt-oss-120b                     116.829 5.13  36  2880  64  8  64 201088   4/128 131072  mxfp4
= NemotronHForCausalLM
nemotron-nano-9b-v2                8.89  -     56/4 4480 40  8 128 131072   -     131072  16bit
nemotron-nano-12b-v2              12.31  -     62/6 5120 40  8 128 131072   -     131072  16bit
nemotron-h-8b                      8.10  -     52/4 4096 32  8 128 131072   -     8192    16bit
nemotron-3-nano-30b-a3b           31.6   3.5   52/6 2688 32  2 128 131072   6/128 262144  16bit
= GraniteForCausalLM
granite-3.3-8b                     8.171 -     40  4096  32  8 128  49159*  -     131072  16bit
= GraniteMoeHybridForCausalLM
granite-4.0-micro                  3.403 -     40  2560  40  8  64 100352*  -     131072  16bit
granite-4.0-h-micro                3.191 -     40/4 2048 32  8  64 100352*  -     131072  16bit
granite-4.0-h-tiny                 6.939 1.0   40/4 1536 12  4 128 100352*  6/64  131072  16bit
granite-4.0-h-small               32.2   9.0   40/4 4096 32  8 128 100352*  10/72 131072  16bit
= JambaForCausalLM
ai21-jamba-1.5-mini,jamba-1.5-mini 51.57 12.1  32/4 4096 32  8 128  65536   2/16  262144  16bit
= Glm4MoeForCausalLM
glm-4.5-air                      106.9  12.0   46  4096  96  8 128 151552   8/128 131072  16bit
glm-4.5                          353.0  32.0   92  5120  96  8 128 151552   8/160 131072  16bit
glm-4.6,glm-4.7                  353.0  32.0   92  5120  96  8 128 151552   8/160 202752  16bit
= MiniMaxM2ForCausalLM
minimax-m2                       228.7  10.0   62  3072  48  8 128 200064   8/256 196608  fp8
"""

LENGTHS = {
    "qwen2.5-7b": 131072,
    "qwen2.5-14b": 131072,
    "qwen2.5-32b": 131072,
    "qwen2.5-72b": 131072,
    "qwen2.5-7b-instruct-1m": 1010000,
    "qwen2.5-14b-instruct-1m": 1010000,
    "qwen3-4b-instruct-2507": 262144,
    "qwen3-4b-thinking-2507": 262144,
    "qwen3-30b-a3b-instruct-2507": 262144,
    "qwen3-30b-a3b-thinking-2507": 262144,
    "qwen3-235b-a22b-instruct-2507": 262144,
    "qwen3-235b-a22b-thinking-2507": 262144,
    "kimi-k2-instruct-0905": 262144,
    "phi-3-mini-4k": 4096,
    "phi-3-mini-128k": 131072,
    "phi-4-reasoning": 32768,
}
"""max_len if it differs from the row. A key that is also a row applies to that exact name: the base model."""

LOADED = {
    "gpt-oss-20b": 0.704,  # 13.72 GiB: start-up logs of 0.19.0 on an A100 (myoceane.fr, April 2026)
    "gpt-oss-120b": 0.592,  # "Model loading took 64.38 GiB": vllm-project/vllm issue 33155 (0.14.1, H100)
    "kimi-k2-thinking": 0.58,  # 594 GB of files: the experts in 4 bit, the rest in 16
    "kimi-k2.5": 0.58,
}
"""Bytes of one parameter in GPU memory, if a start-up log shows more than the files' size (padding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model as published; the columns of the table."""

    key: str
    parameters: float
    active: float | None
    layers: int
    attention: int | None
    hidden: int
    heads: int
    kv: int
    dim: int
    vocab: int
    tied: bool
    experts: int | None
    top: int | None
    max_len: int | None
    stored: str
    architecture: str
    latent: int | None

    @property
    def apart(self) -> int:
        """Parameters of embedding and output: quantization leaves them in 16 bit."""
        return self.vocab * self.hidden * (1 if self.tied else 2)


def _rows() -> dict[str, ModelRow]:
    found: dict[str, ModelRow] = {}
    architecture, latent = "", None
    for line in _TABLE.strip().splitlines():
        if line.startswith("="):
            _, architecture, *more = line.split()
            latent = int(more[0].removeprefix("latent=")) if more else None
            continue
        for key in line.split()[0].split(","):
            found[key] = _row(key, line.split()[1:], architecture, latent)
    return found


def _row(key: str, columns: list[str], architecture: str, latent: int | None) -> ModelRow:
    billions, active, layers, hidden, heads, kv, dim, vocab, experts, max_len, stored = columns
    all_layers, _, attention = layers.partition("/")
    top, _, routed = experts.partition("/")
    return ModelRow(
        key=key,
        parameters=round(float(billions) * 1e3) * 1e6,
        active=None if active == "-" else round(float(active) * 1e3) * 1e6,
        layers=int(all_layers),
        attention=int(attention) if attention else None,
        hidden=int(hidden),
        heads=int(heads),
        kv=int(kv),
        dim=int(dim),
        vocab=int(vocab.removesuffix("*")),
        tied=vocab.endswith("*"),
        experts=int(routed) if routed else None,
        top=int(top) if routed else None,
        max_len=None if max_len == "-" else int(max_len),
        stored="" if stored == "16bit" else stored,
        architecture=architecture,
        latent=latent,
    )


ROWS = _rows()
