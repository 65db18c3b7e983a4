"""Attention of rows over paged keys and values: the cache, the interface, its implementations."""

from service.model.attention.cache import PagedCache
from service.model.attention.interface import AttentionBackend, AttentionForward, GraphAttention, GraphCapable, RowKv
from service.model.attention.registry import AUTO, attention_backend, resolve_backend

__all__ = [
    "AUTO",
    "AttentionBackend",
    "AttentionForward",
    "GraphAttention",
    "GraphCapable",
    "PagedCache",
    "RowKv",
    "attention_backend",
    "resolve_backend",
]
