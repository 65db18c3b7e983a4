"""OpenAI's POST /v1/responses for clients that keep their conversations themselves. Nothing is stored."""
