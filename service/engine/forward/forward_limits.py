"""Limits of a forward. The runner obeys them, `engine/memory_plan.py` plans memory with them. Without torch."""

#: Logits that exist at once: 2^28 are 1 GiB in fp32, some 1,700 positions of a vocabulary of 151,936. Sampling with
#: noise makes six more copies (measured), so that a quarter of them takes 1.6 GiB.
MAX_LOGITS, MAX_SAMPLED_LOGITS = 2**28, 2**26

#: The sizes of graphs, in rows. Above 64, at most an eighth of the rows is padding.
GRAPH_ROWS: tuple[int, ...] = (
    1,
    2,
    4,
    *range(8, 64, 8),
    *range(64, 128, 16),
    *range(128, 256, 32),
    *range(256, 512, 64),
    512,
)
