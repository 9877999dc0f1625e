"""What looks at a text: each judge in a file of its own, behind `judge.Judge`."""
