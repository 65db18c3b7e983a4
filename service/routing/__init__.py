"""The choice of a replica: the one whose prefix cache has most of the prompt, unless that replica is overloaded."""
