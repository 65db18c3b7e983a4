"""Many replicas without a model: how far the rest of the service carries.

`python -m loadtest.fleet --replicas 64` starts Ray and the real ingresses on this machine, and behind them replicas
that answer from a clock with measured step times. It prints one line of JSON.
"""
