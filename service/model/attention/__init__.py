"""Attention of rows over paged keys and values: the cache, the interface, its implementations."""

from service.model.attention.cache import PagedCache
from service.model.attention.interface import Attention, Place, Prepared
from service.model.attention.registry import AUTO, attention_for, resolve

__all__ = ["AUTO", "Attention", "PagedCache", "Place", "Prepared", "attention_for", "resolve"]
