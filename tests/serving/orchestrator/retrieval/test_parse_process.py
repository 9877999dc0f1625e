"""Files become text, or an error that says why not; whatever they do, reading them ends."""

import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from serving.orchestrator.retrieval import parse_worker
from serving.orchestrator.retrieval.document import Document
from serving.orchestrator.retrieval.parse_process import FileUnreadableError, ParseLimits, ParseProcess
from tests.fakes.pdf import pdf_of

HTML = b"""<!doctype html><html><head><title>T</title><script>bad()</script></head><body><h1>Wool</h1>
<p>It is <b>warm</b>,
 and soft.<br>Even wet.</p><ul><li>one<li>two</ul><pre>  a  b
c</pre><!-- no --><table><tr><td>1</td><td>2</td></tr></table></body></html>"""


def read(folder: Path, name: str, data: bytes, limits: ParseLimits | None = None) -> Document:
    (folder / "kept").write_bytes(data)
    return ParseProcess(limits).read(folder / "kept", name)


@pytest.mark.parametrize(
    ("name", "data", "text", "pages"),
    [
        ("a.md", "# Größe\r\n\r\nText.".encode(), "# Größe\r\n\r\nText.", ()),
        ("a.txt", "\ufeffText.".encode(), "Text.", ()),
        ("a", "Text.".encode("utf-16"), "Text.", ()),
        ("a.html", HTML, "Wool\n\nIt is warm, and soft.\nEven wet.\n\none\ntwo\n\n  a  b\nc\n\n1 2", ()),
        ("a.pdf", pdf_of(["One\nline.", "Two."]), "One\nline.\n\nTwo.\n\n", (0, 11)),
    ],
)
def test_a_file_is_read_by_what_it_is(
    tmp_path: Path, name: str, data: bytes, text: str, pages: tuple[int, ...]
) -> None:
    assert read(tmp_path, name, data) == Document(text, pages)


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (b"PK\x03\x04rest", "unsupported_file", "an archive"),
        (b"\xff\x00\x01", "unsupported_file", "UTF-8"),
        (b"a\x00b", "unsupported_file", "NUL"),
        (b" \n ", "invalid_file", "no text"),
        (b"%PDF-1.4 nonsense", "invalid_file", "not a PDF"),
        (pdf_of([""]), "invalid_file", "no text"),
        (pdf_of(["x"] * 4), "invalid_file", "4 pages"),
        (b"x" * 101, "invalid_file", "100 characters"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, data: bytes, code: str, words: str) -> None:
    with pytest.raises(FileUnreadableError, match=words) as caught:
        read(tmp_path, "a", data, ParseLimits(most_chars=100, most_pages=3))
    assert caught.value.code == code


def test_a_pdf_that_swells_meets_its_limits_and_nobody_else(tmp_path: Path) -> None:
    """A page of 160 MB, in 160 KB."""
    bomb = zlib.compress(b"(" + b"a" * (160 << 20) + b") '", 9)
    plain = pdf_of(["x"])
    before, _, rest = plain.partition(b"<< /Length ")
    stream = b"<< /Filter /FlateDecode /Length %d >>\nstream\n" % len(bomb) + bomb + b"\nendstream"
    swollen = before + stream + b"\nendobj" + rest.partition(b"endobj")[2]
    with pytest.raises(FileUnreadableError) as caught:
        read(tmp_path, "a.pdf", swollen, ParseLimits(memory_bytes=256 << 20, seconds=20))
    assert caught.value.code == "invalid_file"
    assert read(tmp_path, "a.txt", b"fine").text == "fine"


def picture_of(text: str) -> Image.Image:
    picture = Image.new("RGB", (700, 120), "white")
    ImageDraw.Draw(picture).text((20, 30), text, "black", ImageFont.load_default(40))
    return picture


def test_text_in_a_picture_is_read(tmp_path: Path) -> None:
    picture_of("Wool is washed in warm water").save(made := tmp_path / "made.png")
    assert "washed in warm water" in read(tmp_path, "a.png", made.read_bytes()).text


def test_scanned_pages_of_a_pdf_are_read_as_pictures(tmp_path: Path) -> None:
    first, second = picture_of("Wool is washed in warm water"), picture_of("Linen is ironed damp")
    first.save(made := tmp_path / "made.pdf", save_all=True, append_images=[second], resolution=150)
    found = read(tmp_path, "a.pdf", made.read_bytes())
    assert "washed in warm water" in found.text[: found.page_starts[1]]
    assert "Linen is ironed" in found.text[found.page_starts[1] :]


def test_a_picture_of_too_many_points_is_not_drawn(tmp_path: Path) -> None:
    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = part(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"\0" * 10_000)) + part(b"IEND", b"")
    with pytest.raises(FileUnreadableError, match="not an image that can be read"):
        read(tmp_path, "a.png", png)


def test_without_its_extra_an_image_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setattr(parse_worker, "find_spec", lambda _: None)
    with pytest.raises(parse_worker.UnreadableError, match=r"weft\[ocr\]"):
        parse_worker.read_image(tmp_path / "a.png", parse_worker.Limits(most_chars=9, most_pages=9))


def test_without_its_extra_a_scanned_pdf_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture_of("Wool").save(made := tmp_path / "made.pdf")
    monkeypatch.setattr(parse_worker, "find_spec", lambda _: None)
    with pytest.raises(parse_worker.UnreadableError, match=r"weft\[ocr\]"):
        parse_worker.read_pdf(made, parse_worker.Limits(most_chars=9, most_pages=9))
