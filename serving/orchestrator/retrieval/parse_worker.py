"""The process that reads files whose makers are not trusted: requests on stdin, answers on stdout, each a length of
four bytes and JSON.

It is started as a bare script (see `parse_process.py`), imports nothing of weft, and has limits of its own on memory,
CPU time, files and what it may write.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

NAMED = {".html": "html", ".htm": "html", ".xhtml": "html"}
MAGIC = {
    b"%PDF-": "pdf",
    b"\x89PNG\r\n\x1a\n": "image",
    b"\xff\xd8\xff": "image",
    b"GIF87a": "image",
    b"GIF89a": "image",
    b"II*\x00": "image",
    b"MM\x00*": "image",
    b"PK\x03\x04": "an archive",
    b"\x1f\x8b": "an archive",
    b"7z\xbc\xaf": "an archive",
    b"\xd0\xcf\x11\xe0": "an old Office file",
    b"\x7fELF": "a program",
}
WITH_EXTRA = "read only where weft is installed with its extra: pip install weft[ocr]"
READABLE = "text, Markdown, HTML, PDF and images are read"
UNSEEN = frozenset(("script", "style", "noscript", "template", "svg", "math", "head", "iframe", "object", "select"))
BLOCKS = frozenset(
    "address article aside blockquote body dd details dialog div dl dt fieldset figcaption figure footer form h1 h2 h3 "
    "h4 h5 h6 header hr html li main nav ol p pre section summary table tbody tfoot thead tr ul".split()
)
APART = frozenset("article blockquote figure h1 h2 h3 h4 h5 h6 ol p pre section table ul".split())  # by an empty line
MOST_PIXELS = 40_000_000
# The cores are the engine's; and threads that wait for each other would spend this process's seconds.
ONE_THREAD = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}


class UnreadableError(Exception):
    """`code` is OpenAI's: unsupported_file, or invalid_file."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Limits:
    most_chars: int
    most_pages: int


@dataclass(frozen=True)
class Read:
    text: str
    page_starts: list[int]


def kind_of(path: Path, name: str) -> str:
    with path.open("rb") as file:
        head = file.read(2048)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image"
    if head[:2] == b"BM" and b"\0" in head[:32]:
        return "image"
    for magic, kind in MAGIC.items():
        if head.startswith(magic):
            return kind
    if b"%PDF-" in head[:1024]:
        return "pdf"
    named = NAMED.get(Path(name).suffix.lower())
    begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:14].lower()
    return named or ("html" if begins.startswith((b"<!doctype html", b"<html")) else "text")


def read_text(path: Path, limits: Limits) -> Read:
    return Read(decoded(path.read_bytes(), limits), [])


def decoded(data: bytes, limits: Limits) -> str:
    """UTF-8, or UTF-16 with its mark; line ends stay as they are."""
    coding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(coding)
    except UnicodeDecodeError as error:
        raise UnreadableError(
            "unsupported_file", f"it is not text in UTF-8 (byte {error.start}), nor of a kind that is known: {READABLE}"
        ) from None
    if "\x00" in text:
        raise UnreadableError("unsupported_file", f"it has NUL characters, so it is no text: {READABLE}")
    return bounded(text, limits)


def bounded(text: str, limits: Limits) -> str:
    if len(text) > limits.most_chars:
        raise UnreadableError("invalid_file", f"it has more than {limits.most_chars} characters of text")
    return text


def read_html(path: Path, limits: Limits) -> Read:
    import lxml.etree

    data = path.read_bytes()
    # Else the page names its own encoding, or libxml2 guesses it.
    encoding = "utf-8" if _is_utf8(data) else None
    parser = lxml.etree.HTMLParser(
        no_network=True, huge_tree=False, remove_comments=True, remove_pis=True, encoding=encoding
    )
    try:
        root = lxml.etree.fromstring(data, parser)
    except (lxml.etree.LxmlError, ValueError) as error:
        raise UnreadableError("invalid_file", f"it is not HTML that can be read: {error}") from None
    if root is None:
        raise UnreadableError("invalid_file", "it has no text")
    lines = _Lines()
    for piece in _html_pieces(root, lxml.etree.iterwalk):
        lines.add(*piece)
    return Read(bounded(lines.text(), limits), [])


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _html_pieces(root: Any, iterwalk: Callable[..., Any]) -> Iterator[tuple[str, int, bool]]:
    """(text, line ends before it, as it is)."""
    unseen, kept = 0, 0
    for event, element in iterwalk(root, events=("start", "end")):
        tag = element.tag if isinstance(element.tag, str) else ""
        ends = 2 if tag in APART else int(tag in BLOCKS or tag == "br")
        if event == "start":
            unseen += tag in UNSEEN
            kept += tag == "pre"
            if not unseen:
                yield element.text or "", ends, bool(kept)
                continue
        else:
            was_unseen = unseen > 0
            unseen -= tag in UNSEEN
            kept -= tag == "pre"
            if not was_unseen:
                yield " " if tag in ("td", "th") else "", 0 if tag == "br" else ends, False
        if event == "end" and not unseen:
            yield element.tail or "", 0, bool(kept)


class _Lines:
    """Pieces of a page joined as a browser shows them: white space is one space, blocks begin lines."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._ends = 0  # line ends that are due before the next text
        self._space = False

    def add(self, text: str, ends: int, as_it_is: bool) -> None:
        self._ends = max(self._ends, ends)
        if as_it_is:
            self._put(text)
            return
        words = " ".join(text.split())
        if not words:
            self._space = self._space or bool(text)
            return
        if (text[0].isspace() or self._space) and not self._ends and self._parts:
            words = " " + words
        self._space = False
        self._put(words)
        self._space = text[-1].isspace()

    def text(self) -> str:
        return "".join(self._parts)

    def _put(self, text: str) -> None:
        if not text:
            return
        if self._parts:
            text = "\n" * self._ends + text
        self._ends = 0
        self._parts.append(text)


def read_pdf(path: Path, limits: Limits) -> Read:
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        encrypted = "assword" in str(error)
        raise UnreadableError(
            "invalid_file", "it is encrypted" if encrypted else f"it is not a PDF that can be read: {error}"
        ) from None
    if len(pdf) > limits.most_pages:
        raise UnreadableError("invalid_file", f"it has {len(pdf)} pages; {limits.most_pages} are read")
    seen = _Pictures() if find_spec("rapidocr") else None
    drawn = [pypdfium2.raw.FPDF_PAGEOBJ_IMAGE, pypdfium2.raw.FPDF_PAGEOBJ_PATH]  # scanned, or letters as outlines
    parts, starts, length = [], [], 0
    for page in pdf:
        starts.append(length)
        # Line ends as elsewhere; U+FFFE is how pdfium tells a hyphen at a line's end, which parts a word.
        text = (
            page.get_textpage().get_text_bounded().replace("\r\n", "\n").replace("\ufffe\n", "").replace("\ufffe", "")
        )
        if seen is not None and not text.strip() and next(page.get_objects(filter=drawn), None) is not None:
            text = seen.text_in(_rendered(page))
        parts.append(f"{text}\n\n")
        length += len(parts[-1])
        if length > limits.most_chars:
            break
        page.close()
    text = bounded("".join(parts), limits)
    if not text.strip():
        how = "none was found in their pictures" if seen else f"pictures of text are {WITH_EXTRA}"
        raise UnreadableError("invalid_file", f"its pages have no text: {how}")
    return Read(text, starts)


def _rendered(page: Any) -> Any:
    """A page of a PDF as a picture of 150 dots an inch, fewer where it is huge."""
    width, height = page.get_size()  # in points, of which an inch has 72
    scale = min(150 / 72, (MOST_PIXELS / 2 / max(width * height, 1.0)) ** 0.5)
    return page.render(scale=scale).to_pil().convert("RGB")


class _Pictures:
    """What reads the text in pictures. It loads its models, so it is made for the first picture of a file."""

    def __init__(self) -> None:
        self._read: Callable[[Any], Any] | None = None

    def text_in(self, picture: Any) -> str:
        """Line by line; "" where there is none."""
        if self._read is None:
            import logging

            logging.disable(logging.CRITICAL)
            from rapidocr import RapidOCR

            self._read = RapidOCR(params=ONE_THREAD)
        found = self._read(picture)
        return "\n".join(line for line in (getattr(found, "txts", None) or ()) if line.strip())


def read_image(path: Path, limits: Limits) -> Read:
    if find_spec("rapidocr") is None:
        raise UnreadableError("unsupported_file", f"images are {WITH_EXTRA}")
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = MOST_PIXELS // 2  # PIL refuses twice as many
    try:
        with Image.open(path) as image:
            shown = image.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise UnreadableError("invalid_file", f"it is not an image that can be read: {error}") from None
    text = _Pictures().text_in(shown)
    if not text:
        raise UnreadableError("invalid_file", "no text was found in the image")
    return Read(bounded(text, limits), [])


READERS: dict[str, Callable[[Path, Limits], Read]] = {
    "text": read_text,
    "html": read_html,
    "pdf": read_pdf,
    "image": read_image,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"text", "page_starts"}, or where it cannot be read {"code", "message"}."""
    _allow_cpu_seconds(request["seconds"])
    path, name = Path(request["path"]), request["name"]
    limits = Limits(most_chars=request["most_chars"], most_pages=request["most_pages"])
    try:
        kind = kind_of(path, name)
        reader = READERS.get(kind)
        if reader is None:
            raise UnreadableError("unsupported_file", f"it is {kind}: {READABLE}")
        read = reader(path, limits)
        if not read.text.strip():
            raise UnreadableError("invalid_file", "it has no text")
        return {"text": read.text, "page_starts": read.page_starts}
    except UnreadableError as error:
        return {"code": error.code, "message": str(error)}
    except MemoryError:
        return {"code": "invalid_file", "message": "reading it takes more memory than it may"}
    except Exception as error:
        return {"code": "invalid_file", "message": f"it cannot be read: {type(error).__name__}"}


def _allow_cpu_seconds(seconds: float) -> None:
    """The kernel ends this process where it computes for longer, whatever the clock says and whoever is there."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    while len(head := requests.read(4)) == 4:
        request = json.loads(requests.read(int.from_bytes(head, "big")))
        data = json.dumps(answer(request)).encode()
        answers.write(len(data).to_bytes(4, "big") + data)
        answers.flush()


if __name__ == "__main__":
    if sys.platform == "linux":  # macOS has the limit but does not hold to it
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes to its pipe and to no file
    serve(sys.stdin.buffer, sys.stdout.buffer)
