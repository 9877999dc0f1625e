"""The status page: what the server does now, to be looked at. `board.py` looks, once a second; `page/` draws."""
