"""All that a new device should be asked, in three stages: correctness, speed, peers. `make gpu` runs them.

It needs torch, transformers, tokenizers and safetensors; nothing of the service.
"""
