"""Compares the behaviour, not the speed, of OpenAI-compatible servers with the same questions to each."""
