"""What is wrong with a checkpoint, said before anything is served."""


class CheckpointError(Exception):
    """Names the file, the field or the tensor, what was found and what would be right."""
