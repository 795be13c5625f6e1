"""ridealong bench: a lesson, decode, interference, memory and start, each beside what it is compared with."""
