"""Attention of rows over paged keys and values: the cache, the backends' protocol, the backends."""

from service.model.attention.interface import AttentionBackend, AttentionForward, PagedCache
from service.model.attention.pages import PAGE_FORMS, page_bytes, round_heads
from service.model.attention.registry import ATTENTION_BACKENDS, AUTO, attention_backend, resolve_backend
from service.model.attention.shared_prefix import RowKv
from service.model.attention.triton import TritonBackend

__all__ = [
    "ATTENTION_BACKENDS",
    "AUTO",
    "PAGE_FORMS",
    "AttentionBackend",
    "AttentionForward",
    "PagedCache",
    "RowKv",
    "TritonBackend",
    "attention_backend",
    "page_bytes",
    "resolve_backend",
    "round_heads",
]
