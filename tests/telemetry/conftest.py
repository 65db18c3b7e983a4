"""Tests of logs leave the loggers as they were."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    logger = logging.getLogger("service")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in set(logger.handlers) - set(before[0]):
        handler.close()
    logger.handlers[:], logger.level, logger.propagate = before
