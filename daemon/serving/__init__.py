"""A turn on the lane's thread, from its order to its record."""
