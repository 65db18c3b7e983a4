"""The routes' side of HTTP: schemas, validation, answers, streams, errors."""
