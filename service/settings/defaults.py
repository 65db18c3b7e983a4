"""Default values that more than one part of the program uses: the settings, the engine, its workers and queues."""

#: tokens of an answer to a request without a limit: long enough for code and thinking, and its KV pages leave room for
#: more requests than a forward of a GPU needs (docs/limits.md)
DEFAULT_MAX_TOKENS = 4096
#: waiting requests before 429
MAX_WAITING = 256
#: seconds that a step of the engine may take, or an exchange between its ranks
STEP_TIMEOUT_S = 60.0
#: requests that a replica decodes at once, on a CPU and on a GPU
MAX_RUNNING_CPU, MAX_RUNNING_GPU = 64, 256
#: rows of one forward on a CPU
MAX_ROWS_CPU = 256
#: tokens of a replica's KV cache on a CPU
KV_CACHE_TOKENS_CPU = 65_536
#: prompt tokens in a step that also decodes, on a CPU and on a GPU: a step with them takes a few times as long
#: (dev/lab/performance-log.md)
PREFILL_TOKENS_CPU, PREFILL_TOKENS_GPU = 64, 512
#: candidates for a draft in a large vocabulary
DRAFT_CANDIDATES = 32
