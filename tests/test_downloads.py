"""Downloads: once, checked, resumed, and clear about what went wrong. The server is on this machine."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from keyless.errors import InputError
from keyless.paper.downloads import MOVIELENS_100K, Archive, data_home, fetch


def zipped(text: str = "1\t2\t3\n" * 5000) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("little/u.data", text)
        file.writestr("elsewhere/other.txt", "not unpacked")
    return buffer.getvalue()


def archive(url: str, data: bytes, **changes) -> Archive:
    checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
    settings = {"name": "little", "url": url, "checksum": checksum, "files": ("u.data",), "licence": "for tests"}
    return Archive(**(settings | changes))


@pytest.fixture
def server():
    """Serve `content[0]`; `asked` lists the Range header of every request; cut[0] bytes are sent where set."""
    content, asked, cut = [zipped()], [], [None]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            asked.append(wanted)
            if self.path != "/little.zip":
                self.send_error(404)
                return
            data = content[0]
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:][: cut[0]])

        def log_message(self, *args):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}/little.zip", content, asked, cut
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_download_is_unpacked_and_not_repeated(server, tmp_path):
    url, content, asked, _ = server
    told, notices = [], []
    wanted = archive(url, content[0])
    folder = fetch(wanted, home=tmp_path, progress=lambda *step: told.append(step), notice=notices.append)
    assert folder == tmp_path / "little"
    assert (folder / "u.data").read_text() == "1\t2\t3\n" * 5000
    assert told[-1] == (len(content[0]), len(content[0]))
    assert notices == ["for tests"]
    fetch(wanted, home=tmp_path, notice=notices.append)
    assert len(asked) == 1
    assert notices == ["for tests"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["little"]


def test_an_interrupted_download_goes_on_where_it_stopped(server, tmp_path):
    url, content, asked, cut = server
    cut[0] = 100
    with pytest.raises(InputError, match="ended after 100 of"):
        fetch(archive(url, content[0]), home=tmp_path)
    cut[0] = None
    assert (fetch(archive(url, content[0]), home=tmp_path) / "u.data").exists()
    assert asked == [None, "bytes=100-"]


def test_a_partial_file_that_is_whole_is_used(server, tmp_path):
    url, content, _, _ = server
    (tmp_path / "little.zip.partial").write_bytes(content[0])
    assert (fetch(archive(url, content[0]), home=tmp_path) / "u.data").exists()


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server, tmp_path):
    url, content, _, _ = server
    with pytest.raises(InputError, match="must have checksum 0000"):
        fetch(archive(url, content[0], checksum="0000"), home=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_zip_is_refused(server, tmp_path):
    url, content, _, _ = server
    content[0] = content[0][:300]
    with pytest.raises(InputError, match="must be a whole zip file"):
        fetch(archive(url, content[0]), home=tmp_path)
    assert not (tmp_path / "little").exists()


def test_a_zip_without_the_files_is_refused(server, tmp_path):
    url, content, _, _ = server
    with pytest.raises(InputError, match=r"u\.item is not in it"):
        fetch(archive(url, content[0], files=("u.data", "u.item")), home=tmp_path)


def test_no_network_is_said_plainly(tmp_path):
    with pytest.raises(InputError, match="KEYLESS_DATA_HOME"):
        fetch(archive("http://127.0.0.1:9/little.zip", b""), home=tmp_path, timeout=5)


def test_a_missing_page_is_said_plainly(server, tmp_path):
    url, content, _, _ = server
    with pytest.raises(InputError, match="answered 404"):
        fetch(archive(url.replace("little", "other"), content[0]), home=tmp_path)


def test_the_data_folder_is_the_variable_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KEYLESS_DATA_HOME", str(tmp_path))
    assert data_home() == tmp_path
    monkeypatch.delenv("KEYLESS_DATA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_home() == tmp_path / "cache" / "keyless"


def test_movielens_states_its_licence():
    assert "not for redistribution" in MOVIELENS_100K.licence
