"""A cluster of several nodes on this machine: what scaling does, and what a lost node costs.

Each script deploys deploy/serve.yaml as a user would, with other arguments, and prints one line of JSON.
"""
