"""Which replica a request goes to: the one whose prefix cache has most of it, unless that one is overloaded."""
