"""Attention of rows over paged keys and values: the cache, the interface, its implementations."""

from service.model.attention.cache import PagedCache
from service.model.attention.interface import Attention, Capturable, Place, Prepared, Static
from service.model.attention.registry import AUTO, attention_for, resolve

__all__ = ["AUTO", "Attention", "Capturable", "PagedCache", "Place", "Prepared", "Static", "attention_for", "resolve"]
