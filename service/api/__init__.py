"""The HTTP APIs: bodies in, requests out, answers of each API. `gateway` serves them."""
