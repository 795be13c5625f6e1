"""From signals to lessons to committed steps, and the adapters they make."""
