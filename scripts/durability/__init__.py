"""What `scripts/check_faults.py` and `scripts/soak.py` share: a server to disturb, and clients that come back."""
