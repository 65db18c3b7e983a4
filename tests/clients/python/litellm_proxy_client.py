# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["litellm[proxy]==1.108.7"]
# ///
"""LiteLLM's proxy with `drop_params`, as many use it for models of their own."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request

from parts import DEMO, KEY, LONG, MESSAGES, MODEL, STORY, fails, run

CONFIG = f"""
model_list:
  - model_name: demo
    litellm_params: {{model: openai/{MODEL}, api_base: {DEMO}v1, api_key: {KEY}}}
litellm_settings: {{drop_params: true, num_retries: 0}}
general_settings: {{master_key: sk-none}}
"""


def post(path, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-none"}
    request = urllib.request.Request(url + path, json.dumps({"model": "demo", **body}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
    file.write(CONFIG)
command = ["litellm", "--config", file.name, "--host", "127.0.0.1", "--port", str(port)]
proxy = subprocess.Popen(command, stdout=2, env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
url = f"http://127.0.0.1:{port}"
for _ in range(120):
    try:
        urllib.request.urlopen(f"{url}/health/liveliness", timeout=5)
        break
    except OSError:
        time.sleep(0.5)
LONG_CHAT = {"messages": [{"role": "user", "content": LONG}]}
CHAT = {"messages": MESSAGES}
run(
    at_end=proxy.kill,
    chat=lambda: "6" in post("/v1/chat/completions", CHAT)["choices"][0]["message"]["content"],
    anthropic=lambda: "6" in post("/v1/messages", {**CHAT, "max_tokens": 100})["content"][0]["text"],
    responses=lambda: post("/v1/responses", {"input": STORY})["status"] == "completed",
    a_refusal=lambda: fails(lambda: post("/v1/chat/completions", LONG_CHAT), "HTTPError").code == 400,
)
