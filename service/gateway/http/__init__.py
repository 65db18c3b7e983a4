"""What the routes need of HTTP: schemas, validation, answers, streams, errors."""
