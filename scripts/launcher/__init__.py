"""Starts a deployment on one host or several, after asking each whether it can. See scripts/launch_gpu, launch_tpu_pod.

__main__.py   flags; then ask, check, start, wait
hosts.py      how a command reaches a host: this machine, ssh, or gcloud for a TPU slice
commands.py   what is run where
probe.py      runs on a host: what it has
checks.py     what all of them have -> what stands in the way
replica.py    the running processes: logs by host, and one end for all
attached.py   runs on a host: weft, for as long as the launcher lives
"""
