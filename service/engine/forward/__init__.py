"""One forward over the rows of many requests: tensors in, predictions out."""
