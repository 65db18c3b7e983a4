"""How other OpenAI-compatible servers behave: the same questions to each. Behaviour, not speed."""
