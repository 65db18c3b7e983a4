"""What makes the load: locust's users, arrivals, workloads, and the rows they write."""
