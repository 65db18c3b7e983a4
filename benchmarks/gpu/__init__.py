"""What a new device is measured by, in three stages: correctness, speed, peers. `make gpu` runs them.

It needs what the engine needs, no Ray and no HTTP server.
"""
