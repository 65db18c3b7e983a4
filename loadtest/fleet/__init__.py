"""Many replicas without a model, to find the limits of the rest of the service.

`python -m loadtest.fleet --replicas 64` starts Ray and the real ingresses on this machine. Behind them are replicas
that simulate decoding with measured step times. It prints one line of JSON.
"""
