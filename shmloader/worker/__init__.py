"""
What runs in a worker process.

`serve.py` takes orders from the desk and writes answers, for any client. The DataLoader's client is
`client.py`, which the trainer starts, and `replacement.py`, which takes a dead one's place. A
client fetches (`seeds.py`, `ahead.py` and `fetch_threads.py`) and collates into the slot
(`collate.py`). It notes with each answer where it is (`snapshot.py`, `generator_states.py`,
`restoring.py`), and leaves when it has grown too much (`growth.py`).
"""
