"""HTTP: who asks, how much is taken, what is refused and how, and every route that no dialect has."""
