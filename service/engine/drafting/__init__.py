"""How much to draft: what forwards cost, how often drafts come true, and what pays."""
