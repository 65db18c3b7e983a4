"""What HTTP, Ray and the queue cost beside the engine alone."""
