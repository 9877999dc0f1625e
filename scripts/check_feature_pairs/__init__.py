"""Every pair of the engine's features gives the tokens that a plain engine gives: a table, and what it is made from."""
