"""Widely served models, under the names of their makers and of those who quantize them."""

from flettner.vllm_facts.models.lookup import find_model

NAMES = """
meta-llama/Llama-3.1-8B-Instruct
meta-llama/Llama-3.3-70B-Instruct
meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8
meta-llama/Llama-2-7b-chat-hf
Qwen/Qwen1.5-72B-Chat
Qwen/Qwen2-VL-7B-Instruct-AWQ
Qwen/Qwen2.5-72B-Instruct-AWQ
Qwen/Qwen2.5-VL-3B-Instruct
Qwen/Qwen2.5-Coder-32B-Instruct-GPTQ-Int4
Qwen/Qwen2-Audio-7B-Instruct
Qwen/Qwen3-30B-A3B-Thinking-2507-FP8
Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8
Qwen/Qwen3-Coder-Next-FP8
Qwen/Qwen3-VL-8B-Instruct
Qwen/Qwen3-Embedding-0.6B
Qwen/Qwen3-ASR-1.7B
Qwen/Qwen3.5-9B
Qwen/Qwen3.6-35B-A3B
deepseek-ai/DeepSeek-V3-0324
deepseek-ai/DeepSeek-V3.1-Terminus
deepseek-ai/DeepSeek-V3.2-Speciale
deepseek-ai/DeepSeek-V4-Pro
deepseek-ai/DeepSeek-V2.5-1210
deepseek-ai/DeepSeek-R1-Distill-Qwen-32B
deepseek-ai/DeepSeek-R1-0528-Qwen3-8B
deepseek-ai/DeepSeek-OCR-2
deepseek-ai/deepseek-coder-6.7b-instruct
mistralai/Mistral-7B-Instruct-v0.2
mistralai/Mixtral-8x22B-Instruct-v0.1
mistralai/Mistral-Small-24B-Instruct-2501
mistralai/Mistral-Large-Instruct-2411
mistralai/Ministral-8B-Instruct-2410
mistralai/Devstral-Small-2507
mistralai/Devstral-2-123B-Instruct-2512
mistralai/Pixtral-12B-2409
mistralai/Codestral-22B-v0.1
mistralai/Mistral-Small-4-119B-2603
google/gemma-2b-it
google/gemma-3-12b-it-qat-q4_0-unquantized
google/gemma-3-270m-it
google/gemma-4-31B-it
google/gemma-4-E4B-it
google/gemma-4-12B-it
google/medgemma-4b-it
microsoft/phi-4
microsoft/Phi-4-multimodal-instruct
microsoft/Phi-3-mini-4k-instruct
microsoft/Phi-3.5-MoE-instruct
microsoft/Phi-tiny-MoE-instruct
zai-org/GLM-4.5V
zai-org/GLM-4.6V-Flash
zai-org/GLM-4.7-Flash
zai-org/GLM-5.1
THUDM/glm-4-9b-chat
THUDM/GLM-4.1V-9B-Thinking
openai/gpt-oss-20b
openai/whisper-large-v3
moonshotai/Kimi-K2-Instruct-0905
moonshotai/Kimi-K2.5
moonshotai/Kimi-K3
moonshotai/Kimi-Linear-48B-A3B-Instruct
MiniMaxAI/MiniMax-M1-80k
MiniMaxAI/MiniMax-M3
nvidia/Llama-3_3-Nemotron-Super-49B-v1_5
nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8
nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-FP8
nvidia/Qwen3-32B-NVFP4
nvidia/Llama-4-Scout-17B-16E-Instruct-FP8
ibm-granite/granite-4.0-h-tiny
tiiuae/falcon-7b-instruct
tiiuae/Falcon-H1-34B-Instruct
01-ai/Yi-1.5-9B-Chat
internlm/internlm3-8b-instruct
OpenGVLab/InternVL3-78B-AWQ
OpenGVLab/InternVL3_5-38B
CohereForAI/c4ai-command-r-v01
CohereLabs/aya-expanse-32b
NousResearch/Hermes-4-405B-FP8
HuggingFaceTB/SmolLM2-1.7B-Instruct
allenai/Olmo-3-7B-Think
allenai/OLMoE-1B-7B-0924-Instruct
LGAI-EXAONE/EXAONE-3.5-32B-Instruct
LGAI-EXAONE/K-EXAONE-236B-A23B
bigcode/starcoder
llava-hf/llava-v1.6-mistral-7b-hf
baichuan-inc/Baichuan2-13B-Chat
baidu/ERNIE-4.5-21B-A3B-PT
baidu/ERNIE-4.5-VL-28B-A3B-Thinking
tencent/Hunyuan-7B-Instruct
ByteDance-Seed/UI-TARS-1.5-7B
stepfun-ai/Step-3.5-Flash
upstage/Solar-Open-100B
facebook/opt-125m
BAAI/bge-m3
BAAI/bge-reranker-v2-m3
intfloat/multilingual-e5-large
Alibaba-NLP/gte-multilingual-base
sentence-transformers/all-MiniLM-L6-v2
Snowflake/snowflake-arctic-embed-l-v2.0
RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic
RedHatAI/Mistral-Small-3.2-24B-Instruct-2506-FP8
neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8
unsloth/Llama-3.2-3B-Instruct-bnb-4bit
unsloth/gemma-3-12b-it-unsloth-bnb-4bit
unsloth/Qwen3-30B-A3B-GGUF
hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4
TheBloke/Llama-2-13B-chat-GPTQ
TheBloke/deepseek-coder-33B-instruct-AWQ
TheBloke/zephyr-7B-beta-AWQ
TheBloke/OpenHermes-2.5-Mistral-7B-AWQ
cpatonn/GLM-4.5-Air-AWQ-4bit
cpatonn/Qwen3-Next-80B-A3B-Instruct-AWQ-4bit
QuantTrio/GLM-4.6-GPTQ-Int4-Int8Mix
QuantTrio/Qwen3-VL-30B-A3B-Instruct-AWQ
cognitivecomputations/DeepSeek-R1-AWQ
casperhansen/llama-3-70b-instruct-awq
solidrust/Hermes-3-Llama-3.1-8B-AWQ
Orion-zhen/Qwen3-14B-AWQ
Intel/Qwen3-30B-A3B-Instruct-2507-int4-AutoRound
kaitchup/Phi-4-AutoRound-GPTQ-4bit
shuyuej/Llama-3.3-70B-Instruct-GPTQ
bartowski/Llama-3.3-70B-Instruct-GGUF
HuggingFaceH4/zephyr-7b-beta
lmsys/vicuna-13b-v1.5
databricks/dbrx-instruct
EleutherAI/gpt-j-6b
bigscience/bloom-7b1
stabilityai/stablelm-2-1_6b-chat
openbmb/MiniCPM-o-2_6
XiaomiMiMo/MiMo-V2-Flash
inclusionAI/Ling-1T-FP8
rednote-hilab/dots.llm1.inst
PaddlePaddle/PaddleOCR-VL
allenai/olmOCR-7B-0825-FP8
arcee-ai/AFM-4.5B
LiquidAI/LFM2-8B-A1B
Salesforce/xLAM-2-32b-fc-r
agentica-org/DeepCoder-14B-Preview
PrimeIntellect/INTELLECT-3
huihui-ai/Llama-3.3-70B-Instruct-abliterated
NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO
tokyotech-llm/Llama-3.3-Swallow-70B-Instruct-v0.4
meituan-longcat/LongCat-Flash-Chat
state-spaces/mamba-2.8b-hf
kakaocorp/kanana-1.5-8b-instruct-2505
sarvamai/sarvam-m
BSC-LT/salamandra-7b-instruct
DeepGlint-AI/LLaVA-OneVision-1.5-8B-Instruct
nvidia/Nemotron-Cascade-2-30B-A3B
nvidia/Cosmos-Reason2-8B
arcee-ai/Trinity-Mini
arcee-ai/Trinity-Large-Thinking-FP8
ibm-granite/granite-4.1-8b
ServiceNow-AI/Apriel-1.6-15b-Thinker
AIDC-AI/Ovis2.5-9B
jinaai/jina-reranker-v3
"""


def test_widely_served_models_are_known_without_a_config() -> None:
    assert [name for name in NAMES.split() if find_model(name) is None] == []


def test_known_models_have_the_numbers_that_decide_a_layout() -> None:
    lacking = [
        name
        for name in NAMES.split()
        if (model := find_model(name))
        and not (model.parameters and model.layers and model.hidden_size and model.heads)
        and not model.hybrid
    ]
    assert lacking == []
