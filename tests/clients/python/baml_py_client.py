# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "baml-py==0.226.3",
#     "pydantic>=2,<3",
# ]
# ///
"""BAML: `provider "openai-generic"` or `provider "anthropic"` with a `base_url`. `baml-cli` writes the client."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from parts import DEMO, KEY, LONG, MODEL, STORY, fails, part, run

STRUCTURED = """response_format {
  type "json_schema"
  json_schema {
    name "Name"
    schema {
      type "object"
      properties {
        name {
          enum ["Tom", "Ann"]
        }
      }
      required ["name"]
    }
  }
}"""


def client(name, provider, base_url, more=""):
    return f"""
client<llm> {name} {{
  provider "{provider}"
  options {{
    base_url "{base_url}"
    api_key "{KEY}"
    model "{MODEL}"
    {more}
  }}
}}"""


def function(name, answer, client):
    return f"""
function {name}(story: string) -> {answer} {{
  client {client}
  prompt #"{{{{ _.role("user") }}}}{{{{ story }}}}"#
}}"""


SOURCE = [
    """
generator target {
  output_type "python/pydantic"
  output_dir ".."
  version "0.226.3"
  default_client_mode sync
}
class Name {
  name "Tom" | "Ann"
}""",
    client("Chat", "openai-generic", f"{DEMO}v1"),
    client("Responses", "openai-responses", f"{DEMO}v1"),
    client("Messages", "anthropic", DEMO),
    client("Structured", "openai-generic", f"{DEMO}v1", STRUCTURED),
    function("Tell", "string", "Chat"),
    function("Extract", "Name", "Structured"),
]

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)
(folder / "baml_src").mkdir()
(folder / "baml_src" / "main.baml").write_text("".join(SOURCE), "utf-8")
os.environ["BAML_LOG"] = "error"
command = [Path(sys.executable).with_name("baml-cli"), "generate", "--from", folder / "baml_src"]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
sys.path.insert(0, str(folder))
from baml_client import b  # noqa: E402 - it is written above


@part
def chat():
    assert "6" in b.Tell(STORY)


@part
def messages():
    assert "6" in b.Tell(STORY, {"client": "Messages"})


@part
def responses():
    assert "6" in b.Tell(STORY, {"client": "Responses"})


@part
def stream():
    pieces = b.stream.Tell(STORY)
    assert list(pieces)
    assert "6" in pieces.get_final_response()


@part
def structured():
    assert b.Extract(STORY).name in ("Tom", "Ann")


@part
def a_refusal():
    assert fails(lambda: b.Tell(LONG), "BamlClientHttpError").status_code == 400


run(temporary.cleanup)
