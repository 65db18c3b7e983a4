"""What a new device is measured by, in three stages: correctness, speed, peers. `make gpu` runs them.

It needs torch, transformers, tokenizers and safetensors; nothing of the service.
"""
