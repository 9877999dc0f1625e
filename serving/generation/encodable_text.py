"""Text that a model or a tool wrote, as text that can be sent."""


def encodable(text: str) -> str:
    """JSON can spell surrogates, which have no UTF-8 form: halves of a pair are joined, a lone one becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
