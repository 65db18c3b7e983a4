"""Tests of a cluster of several nodes on this machine: scaling, and the loss of a node.

Each script deploys deploy/serve.yaml as a user would, with its own arguments, and prints one line of JSON.
"""
