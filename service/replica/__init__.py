"""The code of a replica process: the engine behind plain data, the model card and the metrics."""
