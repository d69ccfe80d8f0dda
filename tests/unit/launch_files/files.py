"""Files as people write them, one of each kind, for the readers and for `flettner lint -f`."""

from flettner.vllm_facts.launch_files.launch import Launch

COMPOSE = """\
# two servers and a proxy
x-gpu: &gpu
  deploy:
    resources:
      reservations:
        devices:
          - driver: nvidia
            count: 2
            capabilities: [gpu]

services:
  proxy: {image: nginx}
  chat:   # the large one
    <<: *gpu
    image: vllm/vllm-openai:v0.32.0
    environment:
      - VLLM_USE_V1=1   # from the old days
      - HF_TOKEN=${HF_TOKEN}
    command:
      - --model=Qwen/Qwen3-8B   # pinned
      # keep this comment
      - --swap-space
      - "4"
      - --max-num-seqs
      - 64
  embed:
    image: vllm/vllm-openai:latest
    env_file: .env
    environment: {CUDA_VISIBLE_DEVICES: "1"}
    command: >
      --model BAAI/bge-m3
      --swap-space 4
      --max-num-seqs 64
"""

DEPLOYMENT = """\
apiVersion: v1
kind: Service
metadata: {name: mistral}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: mistral
spec:
  template:
    spec:
      containers:
        - name: server
          image: vllm/vllm-openai:v0.32.0
          command: ["/bin/sh", "-c"]
          args: [
            "vllm serve mistralai/Mistral-7B-Instruct-v0.3 --swap-space 4 --enable-prefix-caching"
          ]
          env:
            - name: HUGGING_FACE_HUB_TOKEN
              valueFrom: {secretKeyRef: {name: hf, key: token}}
            - name: MODE
              value: fast
          resources:
            limits:
              nvidia.com/gpu: "1"
        - name: sidecar
          image: busybox
          args: ["sleep", "1d"]
"""

LEADER_WORKER_SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: docker.io/vllm/vllm-openai:v0.32.0
            env:
              - {name: MODEL, value: org/model}
            command:
              - sh
              - -c
              - |
                # the leader starts Ray first
                bash multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);
                python3 -m vllm.entrypoints.openai.api_server --port 8080 \\
                  --model $(MODEL) \\
                  --swap-space 4 \\
                  --tensor-parallel-size 8
            resources: {limits: {nvidia.com/gpu: 8}}
"""

VALUES = """\
servingEngineSpec:
  modelSpec:
    - name: "llama3"
      repository: "vllm/vllm-openai"
      tag: "v0.32.0"
      modelURL: "meta-llama/Llama-3.1-8B-Instruct"
      requestGPU: 1
      vllmConfig:
        enablePrefixCaching: true
        maxModelLen: 4096
        dtype: "bfloat16"   # the model's own
        extraArgs: ["--enforce-eager", "--max-num-seqs", "64"]
"""

UNIT = """\
[Unit]
Description=vLLM

[Service]
Environment="MODEL=org/model" VLLM_USE_V1=1
EnvironmentFile=-/etc/vllm.env
ExecStart=-/opt/venv/bin/vllm serve ${MODEL} \\
  --swap-space 4 \\
  # a comment between the lines
  --max-num-seqs 64
Restart=always
"""

SCRIPT = """\
#!/bin/bash
# don't start it twice
set -e
export HF_HOME=/srv/hf VLLM_USE_V1=1
MODEL="Qwen/Qwen3-8B"
ARGS=(
  --max-num-seqs "$SEQS"
  --swap-space 4
)
if [ -n "$DEBUG" ]; then EXTRA="--enforce-eager"; fi
cat > note.txt <<END
vllm serve is-never-started
END
echo "vllm serve is-only-printed"
cd /srv && CUDA_VISIBLE_DEVICES=0,1 vllm serve "$MODEL" \\
  --tensor-parallel-size 2 \\
  "${ARGS[@]}" $EXTRA --port $PORT > server.log 2>&1 &
"""

FLAGS = """\
# for the chat service
--model org/model
--swap-space 4
--max-num-seqs 64
"""

FILES = {
    "compose.yaml": COMPOSE,
    "deployment.yaml": DEPLOYMENT,
    "lws.yaml": LEADER_WORKER_SET,
    "values.yaml": VALUES,
    "vllm.service": UNIT,
    "run.sh": SCRIPT,
    "flags.txt": FLAGS,
}


def words(launch: Launch) -> str:
    return " ".join(word.text for word in launch.words)
