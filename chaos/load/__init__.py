"""The open-loop load: pure seeded plans, and a client that carries them out and never retries."""
