"""A service that is killed at every point where it touches the disk, and what must be true of what it left."""
