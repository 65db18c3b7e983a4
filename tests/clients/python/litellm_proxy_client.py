# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "litellm[proxy]==1.108.7",
# ]
# ///
"""LiteLLM's proxy with `drop_params`, as many use it for models of their own."""

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from parts import DEMO, KEY, LONG, MESSAGES, MODEL, STORY, part, run

CONFIG = f"""
model_list:
  - model_name: demo
    litellm_params: {{model: openai/{MODEL}, api_base: {DEMO}v1, api_key: {KEY}}}
litellm_settings: {{drop_params: true, num_retries: 0}}
general_settings: {{master_key: sk-none}}
"""


def post(url, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-none"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


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
OPTIONS = {"model": "demo", "messages": MESSAGES}


@part
def chat():
    status, answer = post(f"{url}/v1/chat/completions", OPTIONS)
    assert status == 200
    assert "6" in answer["choices"][0]["message"]["content"]


@part
def anthropic():
    status, answer = post(f"{url}/v1/messages", {**OPTIONS, "max_tokens": 100})
    assert status == 200
    assert "6" in answer["content"][0]["text"]


@part
def responses():
    status, answer = post(f"{url}/v1/responses", {"model": "demo", "input": STORY})
    assert status == 200
    assert answer["status"] == "completed"


@part
def a_refusal():
    status, answer = post(f"{url}/v1/chat/completions", {**OPTIONS, "messages": [{"role": "user", "content": LONG}]})
    assert status == 400, (status, answer)


run(at_end=proxy.kill)
