"""Calls of client libraries, one module for each; each call raises where the server does not do as the library expects.

A module imports its library where it is called, so that one which is not installed stops no other.
"""
