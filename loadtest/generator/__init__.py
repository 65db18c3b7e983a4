"""The load generator: locust's users, arrivals, workloads, and the rows that they write."""
